//! The accounting region of a slice, as the watchdog reads and charges it.

use std::collections::BTreeMap;
use std::path::Path;

use cantle_ledger::GRANULE_BYTES;
use cantle_ledger::host::{GpuUse, Grown, Observer, SliceUse, cut_back};
use cantle_model::{Bytes, LeaseId};

use crate::store::NodeStore;

/// The count of the shim, and its count before the driver was asked. A region that its tenant has damaged counts
/// nothing.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) observer: Option<Observer>,
    pub(super) before: Option<SliceUse>,
    /// Its files are those of the scan before, and have their lengths.
    pub(super) is_intact: bool,
}

/// Regions that are open from one scan to the next.
#[derive(Debug, Default)]
pub(super) struct Regions(BTreeMap<LeaseId, Observer>);

/// Up to this number of regions stays open: each takes two descriptors.
const KEPT: usize = 200;

impl Regions {
    /// The region of a lease.
    pub(super) fn take(&mut self, node: &NodeStore, lease: &LeaseId) -> Region {
        Region::of(self.0.remove(lease).filter(Observer::is_intact), &node.slice_dir(lease))
    }

    /// These regions stay open, and no others.
    pub(super) fn keep<'a>(&mut self, regions: impl Iterator<Item = (&'a LeaseId, Region)>) {
        let open = regions.filter_map(|(lease, region)| Some((lease.clone(), region.observer?)));
        self.0 = open.take(KEPT).collect();
    }
}

impl Region {
    pub(super) fn open(dir: &Path) -> Self {
        Self::of(None, dir)
    }

    fn of(known: Option<Observer>, dir: &Path) -> Self {
        let is_intact = known.is_some();
        let observer = known.or_else(|| Observer::open(dir).ok());
        let before = observer.as_ref().and_then(|region| region.snapshot().ok());
        Self { observer, before, is_intact }
    }

    /// Its count now. Without a process that the driver knows of, it is compared with nothing, and the former one does.
    pub(super) fn after(&self, has_processes: bool) -> Option<SliceUse> {
        if has_processes { self.observer.as_ref()?.snapshot().ok() } else { self.before.clone() }
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
