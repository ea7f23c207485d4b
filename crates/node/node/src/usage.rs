//! How much the pods of a node use of their slices, for metrics.

use std::collections::BTreeMap;
use std::path::Path;

use cantle_ledger::host::Observer;
use cantle_model::{Gpu, Lease, LeaseId, Measured};

use crate::compute::{ComputeUse, compute_use};
use crate::gpu_uuid_bytes;
use crate::refusals::Refusals;
use crate::store::NodeStore;

/// A slice, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceUsage {
    /// Its lease.
    pub lease: LeaseId,
    /// The task that it belongs to: of a pod `namespace/name`.
    pub name: String,
    /// The GPU.
    pub gpu: Gpu,
    /// Profile of the MIG instance; none if it is a share.
    pub mig_profile: Option<String>,
    /// The limit, in bytes.
    pub memory_limit_bytes: u64,
    /// The use, in bytes.
    pub memory_used_bytes: u64,
    /// Its use of the GPU's compute time; none without a share.
    pub compute: Option<ComputeUse>,
    /// Allocations that were refused since this process first saw the lease; refusals that the region drops between two
    /// scans are missing.
    pub refused: u64,
}

/// The use of a slice by its processes until now.
#[must_use]
pub fn measured(slice_dir: &Path) -> Measured {
    let now = Observer::open(slice_dir).and_then(|region| region.snapshot()).ok();
    // The agent counts what is hidden, also when no process allocates any more.
    let peaks = now.iter().flat_map(|now| &now.gpus).map(|gpu| gpu.peak_bytes.max(gpu.used_bytes()));
    Measured {
        peak_bytes: peaks.max().filter(|bytes| *bytes > 0),
        gpu_time_us: compute_use(slice_dir).map(|used| used.granted_us),
    }
}

/// Counts refusals, lease by lease.
#[derive(Debug, Default)]
pub(crate) struct UsageMeter {
    refused: BTreeMap<LeaseId, (Refusals, Vec<u64>)>,
}

impl UsageMeter {
    /// Records the refusals since the last scan.
    pub(crate) fn look(&mut self, node: &NodeStore, leases: &[Lease]) {
        self.refused.retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        for lease in leases {
            if !self.refused.contains_key(&lease.id) {
                let Some(refusals) = Refusals::of(&node.slice_dir(&lease.id)) else { continue };
                let none = vec![0; lease.slices.len()];
                self.refused.insert(lease.id.clone(), (refusals, none));
            }
            if let Some((refusals, counts)) = self.refused.get_mut(&lease.id) {
                let new = refusals.count(&lease.slices);
                counts.iter_mut().zip(new).for_each(|(count, new)| *count += new);
            }
        }
    }

    /// The use of each slice.
    pub(crate) fn usage(&self, node: &NodeStore, gpus: &[Gpu], leases: &[Lease]) -> Vec<SliceUsage> {
        leases.iter().flat_map(|lease| self.of_lease(node, gpus, lease)).collect()
    }

    fn of_lease(&self, node: &NodeStore, gpus: &[Gpu], lease: &Lease) -> Vec<SliceUsage> {
        let region = Observer::open(&node.slice_dir(&lease.id)).and_then(|region| region.snapshot()).ok();
        let used = |device: &_| {
            let (region, uuid) = (region.as_ref()?, gpu_uuid_bytes(device)?);
            Some(region.gpus.iter().find(|gpu| gpu.uuid == uuid)?.used_bytes())
        };
        let refused = self.refused.get(&lease.id).map_or(&[][..], |(_, counts)| counts.as_slice());
        let slices = lease.slices.iter().enumerate().filter_map(|(at, slice)| {
            Some(SliceUsage {
                lease: lease.id.clone(),
                name: lease.name.clone(),
                gpu: gpus.iter().find(|gpu| gpu.uuid == slice.gpu)?.clone(),
                mig_profile: slice.mig.as_ref().map(|mig| mig.profile.clone()),
                memory_limit_bytes: slice.memory_limit_bytes,
                memory_used_bytes: used(slice.device()).unwrap_or(0),
                compute: lease.compute.and_then(|_| compute_use(&node.slice_dir(&lease.id))),
                refused: refused.get(at).copied().unwrap_or(0),
            })
        });
        slices.collect()
    }
}
