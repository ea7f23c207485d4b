//! `cantle image-slice`: the slice that is part of a container image.

use std::path::PathBuf;
use std::process::ExitCode;

use cantle_ledger::host::{self, GpuLimit};
use cantle_ledger::{ANY_GPU, GRANULE_BYTES, MAX_GPUS};
use cantle_model::Bytes;
use clap::Args;

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};

/// `cantle image-slice`
#[derive(Args, Debug)]
pub(crate) struct ImageSliceArgs {
    /// Limit of GPU memory for all processes of a container together, on each GPU that it sees: 8GiB
    #[arg(long, value_name = "M")]
    limit: Bytes,
    /// Memory that is charged for the CUDA context of a process
    #[arg(long, value_name = "M", default_value = "512MiB")]
    context: Bytes,
    /// Directory for the two files; it must exist
    dir: PathBuf,
}

/// Used in place of a lease id.
const LEASE: &str = "image";

/// Prints the limit in bytes, as it is enforced.
pub(crate) fn slice(context: &Context, args: &ImageSliceArgs) -> CommandResult {
    let limit_bytes = args.limit.0 / GRANULE_BYTES * GRANULE_BYTES;
    let context_bytes = args.context.0;
    if limit_bytes <= context_bytes {
        let why = format!("--limit {}: it must be more than --context {}", args.limit, args.context);
        return Err(CliError::new(ErrorKind::Usage, why));
    }
    // The GPUs of a container are unknown when its image is built.
    let any = GpuLimit { uuid: ANY_GPU, limit_bytes, context_bytes };
    host::create(&args.dir, LEASE, &[any; MAX_GPUS]).map_err(as_kind(ErrorKind::Failed))?;
    context.printer.data(&limit_bytes.to_string());
    Ok(ExitCode::SUCCESS)
}
