//! `cantle image-slice`: the slice that an image brings along.

use std::path::PathBuf;
use std::process::ExitCode;

use cantle_ledger::host::{self, GpuLimit};
use cantle_ledger::{ANY_GPU, GRANULE_BYTES, MAX_GPUS};
use cantle_model::Bytes;
use clap::Args;

use super::Context;
use crate::error::{CliError, Kind, Outcome, as_kind};

/// `cantle image-slice`
#[derive(Args, Debug)]
pub(crate) struct ImageSliceArgs {
    /// GPU memory for all processes of a container together, on each GPU that it sees: 8GiB
    #[arg(long, value_name = "M")]
    limit: Bytes,
    /// What the CUDA context of one process is charged with
    #[arg(long, value_name = "M", default_value = "512MiB")]
    context: Bytes,
    /// Folder for the two files; it must exist
    dir: PathBuf,
}

/// In place of a lease.
const LEASE: &str = "image";

/// Prints the limit in bytes, as it is enforced.
pub(crate) fn slice(context: &Context, args: &ImageSliceArgs) -> Outcome {
    let limit_bytes = args.limit.0 / GRANULE_BYTES * GRANULE_BYTES;
    let context_bytes = args.context.0;
    if limit_bytes <= context_bytes {
        let why = format!("--limit {}: it must be more than --context {}", args.limit, args.context);
        return Err(CliError::new(Kind::Usage, why));
    }
    // Which GPUs a container will see is not known when its image is made.
    let any = GpuLimit { uuid: ANY_GPU, limit_bytes, context_bytes };
    host::create(&args.dir, LEASE, &[any; MAX_GPUS]).map_err(as_kind(Kind::Failed))?;
    context.printer.data(&limit_bytes.to_string());
    Ok(ExitCode::SUCCESS)
}
