//! The slices of a machine at one moment, of all its users, for people: with the processes as the machine sees them.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use cantle_driver::{Driver, Load, ProcessMemory};
use cantle_ledger::host::Observer;
use cantle_model::{Gpu, Holder, Lease, MigInstance, Milli, Slice};

use crate::members::Members;
use crate::store::NodeStore;
use crate::{NodeError, gpu_uuid_bytes, mig};

/// A GPU of this machine.
#[derive(Clone, Debug)]
pub struct GpuHere {
    /// The GPU.
    pub gpu: Gpu,
    /// The load; none where the driver does not report it, as in MIG mode.
    pub load: Option<Load>,
    /// Memory in use by any process, in bytes; none where the driver does not report it.
    pub used_bytes: Option<u64>,
    /// The slices of it, oldest first.
    pub slices: Vec<SliceHere>,
    /// The MIG instances of others, with their parts of the GPU.
    pub foreign: Vec<(MigInstance, Milli)>,
}

/// A slice on this machine.
#[derive(Clone, Debug)]
pub struct SliceHere {
    /// Its lease.
    pub lease: Lease,
    /// The slice of this GPU.
    pub slice: Slice,
    /// The user of the task's first process; none if it has none.
    pub uid: Option<u32>,
    /// The task's processes that hold memory of the GPU, by their pids on the machine.
    pub processes: Vec<ProcessMemory>,
    /// The task's first process.
    pub leader: Option<u32>,
    /// The filter's count, in bytes; none for a slice of another user.
    pub counted_bytes: Option<u64>,
}

impl SliceHere {
    /// The memory of its processes by the driver's figures, or by the filter's count where the driver has none, in
    /// bytes.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        let figures = self.processes.iter().filter_map(|process| process.used_bytes);
        figures.reduce(u64::saturating_add).or(self.counted_bytes).unwrap_or(0)
    }
}

/// The GPUs of this machine with the slices of all its users; `own` are the leases of `node`.
///
/// # Errors
/// If the driver fails.
pub fn gpus_here(driver: &dyn Driver, node: &NodeStore, own: &[Lease]) -> Result<Vec<GpuHere>, NodeError> {
    let others = node.neighbors();
    let members = Members::of(node, own).and(&others);
    let mut leases: Vec<Lease> = own.iter().cloned().chain(others).filter(is_active).collect();
    leases.sort_by_key(|lease| lease.placed_ms);
    let (mut found, gpus) = (Vec::new(), driver.gpus()?);
    mig::look(driver, node, &gpus);
    for gpu in gpus {
        // For people: a GPU that does not answer has no figures, and the others are shown.
        let processes = driver.processes(&gpu.uuid).unwrap_or_default();
        let of_lease = |lease: &Lease| {
            let is_its = |process: &&ProcessMemory| members.lease_of(process.pid).as_ref() == Some(&lease.id);
            processes.iter().filter(is_its).copied().collect()
        };
        let slice = |lease: &Lease| {
            let slice = lease.slices.iter().find(|slice| slice.gpu == gpu.uuid)?.clone();
            let leader = lease.leader.filter(cantle_runtime::alive);
            let uid = uid_of_lease(lease);
            let leader = leader.map(|leader| leader.pid);
            let counted_bytes = counted_bytes(node, lease, &slice);
            let processes = of_lease(lease);
            Some(SliceHere { lease: lease.clone(), slice, uid, processes, leader, counted_bytes })
        };
        let slices = leases.iter().filter_map(slice).collect();
        let load = driver.load(&gpu.uuid).ok();
        let used_bytes = driver.memory(&gpu.uuid).ok().map(|memory| memory.used_bytes);
        let foreign = mig::foreign(driver, node, &gpu, &leases);
        found.push(GpuHere { gpu, load, used_bytes, slices, foreign });
    }
    Ok(found)
}

fn counted_bytes(node: &NodeStore, lease: &Lease, slice: &Slice) -> Option<u64> {
    let region = Observer::open(&node.slice_dir(&lease.id)).and_then(|region| region.snapshot()).ok()?;
    let uuid = gpu_uuid_bytes(slice.device())?;
    region.gpus.iter().find(|gpu| gpu.uuid == uuid).map(|gpu| gpu.counted_bytes)
}

/// Its owner is alive, or its task is.
fn is_active(lease: &Lease) -> bool {
    lease.kept || [Some(lease.owner), lease.leader].iter().flatten().any(cantle_runtime::alive)
}

/// The user whose task or program has a lease; `None` if it has just ended.
#[must_use]
pub fn uid_of_lease(lease: &Lease) -> Option<u32> {
    let leader = lease.leader.filter(cantle_runtime::alive);
    uid_of(&leader.unwrap_or(lease.owner))
}

fn uid_of(process: &Holder) -> Option<u32> {
    fs::metadata(Path::new("/proc").join(process.pid.to_string())).ok().map(|of| of.uid())
}
