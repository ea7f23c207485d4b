//! `cantle limits`: inside a task, its limits, its use, and whether the limits are enforced.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cantle_clearml::cantle::ComputeView;
use cantle_ledger::LIMITS_FILE;
use cantle_ledger::host::Observer;
use cantle_model::Bytes;
use cantle_node::compute_use;
use serde::Serialize;

use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::out::Column;

#[derive(Serialize)]
struct Limit {
    lease: String,
    gpu: String,
    memory_limit_bytes: u64,
    memory_used_bytes: u64,
    /// Of that, what the driver has taken by itself, for example for modules, or what is kept for it.
    modules_bytes: u64,
    processes: usize,
    /// Its part of the GPU's compute time; absent where the driver divides.
    #[serde(skip_serializing_if = "Option::is_none")]
    compute: Option<ComputeView>,
    /// CUDA itself shows the limit, so the filter library is loaded into this process.
    enforced: bool,
}

const COLUMNS: [Column<Limit>; 8] = [
    Column { head: "GPU", wide: false, cell: |l| l.gpu.clone() },
    Column { head: "LIMIT", wide: false, cell: |l| Bytes(l.memory_limit_bytes).to_string() },
    Column { head: "USED", wide: false, cell: |l| Bytes(l.memory_used_bytes).to_string() },
    Column { head: "MODULES", wide: false, cell: |l| Bytes(l.modules_bytes).to_string() },
    Column { head: "COMPUTE", wide: false, cell: compute },
    Column { head: "PROCESSES", wide: false, cell: |l| l.processes.to_string() },
    Column { head: "ENFORCED", wide: false, cell: |l| if l.enforced { "yes" } else { "NO" }.to_owned() },
    Column { head: "LEASE", wide: true, cell: |l| l.lease.clone() },
];

/// The request; the driver's division is `even`.
fn compute(limit: &Limit) -> String {
    limit.compute.as_ref().map_or_else(|| "even".to_owned(), ComputeView::asked)
}

/// Exit code 0 only if every limit is in force for this process.
pub(crate) fn limits(context: &Context) -> CommandResult {
    let dir = slice_dir().ok_or_else(|| {
        CliError::new(ErrorKind::Unavailable, "not inside a task: there is no slice here")
            .with_hint("try cantle run --gpu 0.5 -- cantle limits")
    })?;
    let snapshot =
        Observer::open(&dir).and_then(|o| o.snapshot()).map_err(as_kind(ErrorKind::Unavailable))?;
    let visible = cantle_driver::visible_memory();
    let own_compute = compute_use(&dir).map(|had| ComputeView {
        mode: had.share.mode,
        request_milli: had.share.request_milli.0,
        limit_milli: had.share.limit_milli.map(|limit| limit.0),
        share_ppm: had.share_ppm,
        gpu_time_us: had.granted_us,
        gate_wait_us: had.gate_wait_us,
    });
    let limits: Vec<Limit> = snapshot
        .gpus
        .iter()
        .map(|gpu| Limit {
            lease: snapshot.lease.clone(),
            gpu: gpu_name(&gpu.uuid),
            memory_limit_bytes: gpu.limit_bytes,
            memory_used_bytes: gpu.used_bytes(),
            modules_bytes: gpu.hidden_bytes,
            processes: snapshot.processes.iter().filter(|p| p.alive).count(),
            compute: own_compute,
            enforced: visible.iter().any(|(uuid, bytes)| *uuid == gpu.uuid && *bytes == gpu.limit_bytes),
        })
        .collect();
    context.printer.items(&limits, |l| l.gpu.clone(), &COLUMNS);
    if limits.iter().all(|l| l.enforced) {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CliError::new(ErrorKind::Unavailable, "the limits are not in force for this process")
        .with_hint("see cantle explain not-enforced"))
}

/// The place where the runtime puts the slice: a fixed directory in a mount namespace, otherwise the one that the
/// environment names.
#[expect(clippy::disallowed_methods, reason = "written by cantle's own runtime for this task")]
fn slice_dir() -> Option<PathBuf> {
    let mounted = Path::new("/run/cantle/slice");
    if mounted.join(LIMITS_FILE).exists() {
        return Some(mounted.to_owned());
    }
    std::env::var("CANTLE_SLICE_DIR").ok().map(PathBuf::from).filter(|dir| dir.join(LIMITS_FILE).exists())
}

fn gpu_name(uuid: &cantle_ledger::Uuid) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
