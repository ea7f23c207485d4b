//! The accounting region of a slice, as the watchdog reads and charges it.

use std::path::Path;

use cantle_ledger::GRANULE_BYTES;
use cantle_ledger::host::{GpuUse, Grown, Observer, cut_back};
use cantle_model::Bytes;

/// The count of the shim, and its count before the driver was asked. A region that its tenant has damaged counts
/// nothing.
pub(super) struct Region {
    pub(super) observer: Option<Observer>,
    pub(super) before: Vec<GpuUse>,
}

impl Region {
    pub(super) fn open(dir: &Path) -> Self {
        let observer = Observer::open(dir).ok();
        let snapshot = observer.as_ref().and_then(|region| region.snapshot().ok());
        Self { before: snapshot.map(|snapshot| snapshot.gpus).unwrap_or_default(), observer }
    }
}

/// Detects a task that only fills the memory of its node, and gives back the memory that it has taken. The task is not
/// accused for the other files, which it can only read.
pub(super) fn overgrown(dir: &Path) -> Option<String> {
    let Grown { by_task_bytes, by_others_bytes } = cut_back(dir);
    if let Some(length) = by_others_bytes {
        let (dir, length) = (dir.display(), Bytes(length));
        tracing::error!(
            "a process outside of the task has made a file in {dir} {length} long; it is cut back"
        );
    }
    let length = by_task_bytes?;
    Some(format!(
        "it has made a file of its slice's accounting {} long, which fills the memory of the node",
        Bytes(length)
    ))
}

/// Notes what the driver shows beyond what the shim has counted.
pub(super) fn charge(region: &Observer, now: &GpuUse, hidden_bytes: u64) {
    if now.hidden_bytes == hidden_bytes.next_multiple_of(GRANULE_BYTES) {
        return;
    }
    match region.set_hidden(&now.uuid, hidden_bytes) {
        // The task has ended meanwhile, and its slice with it.
        Err(error) if error.is_gone() => {}
        Ok(()) => {}
        Err(error) => tracing::warn!(%error, "hidden memory cannot be charged"),
    }
}
