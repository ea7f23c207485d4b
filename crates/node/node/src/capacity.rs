//! This node as the scheduler sees it: what the driver shows, minus the leases, minus what others use.

use std::collections::BTreeMap;

use cantle_decide::{Offer, SnapshotBuilder};
use cantle_driver::{Driver, DriverError, ProcessMemory};
use cantle_model::{Gpu, Lease, LeaseId};

use crate::clock::now_ms;
use crate::members::Members;
use crate::watchdog::figures::{self, BORNE_BYTES};
use crate::watchdog::{actual_bytes, tolerance_bytes};
use crate::{NodeError, mig};

/// How memory counts that is lent to a slice beyond its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lent {
    /// It is the task's.
    Taken,
    /// It is free: the caller takes it back before it uses it ([`crate::take_back`]). That of other users is theirs.
    Free,
}

/// This machine for the scheduler: `gpus` of the node called `name` with the leases that are active, those of other users
/// among them.
pub fn describe(
    driver: &dyn Driver,
    node: &crate::NodeStore,
    name: &str,
    (gpus, lent): (&[Gpu], Lent),
    leases: &[Lease],
) -> SnapshotBuilder {
    let neighbors = node.neighbors();
    let members = Members::of(node, leases).and(&neighbors);
    let offer = |gpu: &Gpu| {
        // A GPU that cannot be queried now (lost, or the driver fails) gets nothing new; the others continue.
        offer(driver, node, gpu, (leases, &neighbors), &members).unwrap_or_else(|error| {
            tracing::warn!(gpu = gpu.index, %error, "GPU takes no new tasks");
            Offer { closed: true, ..Offer::new(gpu.clone()) }
        })
    };
    let world = SnapshotBuilder::default().node(name, gpus.iter().map(offer));
    let world = world.topology(name, driver.topology());
    let counted = |lease: &Lease| match lent {
        Lent::Free => Lease { slices: lease.counted_slices(), ..lease.clone() },
        Lent::Taken => lease.clone(),
    };
    let world = leases.iter().map(counted).fold(world, |world, lease| world.lease(&lease, name));
    neighbors.iter().fold(world, |world, lease| world.lease(lease, name))
}

fn offer(
    driver: &dyn Driver,
    node: &crate::NodeStore,
    gpu: &Gpu,
    (leases, neighbors): (&[Lease], &[Lease]),
    members: &Members,
) -> Result<Offer, NodeError> {
    let mut offer = Offer::new(gpu.clone());
    offer.closed = node.gpu_fault(&gpu.uuid).is_some();
    let geometry = mig::geometry(driver, node, gpu, leases, now_ms())?;
    offer.gpu.mig = geometry.is_some();
    match geometry {
        // In MIG mode others hold instances, not bytes.
        Some(geometry) => (offer.table, offer.instances) = (Some(geometry.table), geometry.instances),
        None => {
            offer.foreign_bytes = foreign_bytes(driver, node, gpu, leases.iter().chain(neighbors), members)?;
        }
    }
    Ok(offer)
}

/// Memory of `gpu` that no lease answers for: what processes outside of slices hold, and what a task was let take beyond its own
/// (the watchdog's tolerance aside, which every slice bears). Where no process has a figure, what is in use beyond all slices.
pub(crate) fn foreign_bytes<'a>(
    driver: &dyn Driver,
    node: &crate::NodeStore,
    gpu: &Gpu,
    leases: impl Iterator<Item = &'a Lease>,
    members: &Members,
) -> Result<u64, DriverError> {
    let mut foreign = 0;
    let mut held: BTreeMap<LeaseId, Vec<ProcessMemory>> = BTreeMap::new();
    let processes = driver.processes(&gpu.uuid)?;
    let without_figures = figures::are_missing(driver, node, gpu, &processes);
    for process in processes {
        match (members.lease_of(process.pid), process.used_bytes) {
            (Some(lease), _) => held.entry(lease).or_default().push(process),
            (None, Some(bytes)) => foreign += bytes,
            // The driver hides sizes (some containers): then all that is in use may be theirs.
            (None, None) => return Ok(driver.memory(&gpu.uuid)?.used_bytes),
        }
    }
    let limit = |lease: &Lease| lease.memory_limit_on(&gpu.uuid);
    if without_figures {
        let used_bytes = driver.memory(&gpu.uuid)?.used_bytes;
        return Ok(used_bytes.saturating_sub(leases.map(limit).sum::<u64>() + BORNE_BYTES));
    }
    for lease in leases {
        let limit = limit(lease);
        let held = held.get(&lease.id).map_or(&[][..], Vec::as_slice);
        foreign += actual_bytes(held).saturating_sub(limit + tolerance_bytes(held));
    }
    Ok(foreign)
}
