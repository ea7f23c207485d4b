//! This node as the scheduler sees it: what the driver shows, minus what is leased, minus what others use.

use cantle_decide::{Offer, SnapshotBuilder};
use cantle_driver::{Driver, DriverError};
use cantle_model::{Gpu, Lease};

use crate::clock::now_ms;
use crate::members::Members;
use crate::{NodeError, mig};

/// This machine for the scheduler: `gpus` of the node called `name` with the leases that are active, those of other users
/// among them.
pub fn describe(
    driver: &dyn Driver,
    node: &crate::NodeStore,
    name: &str,
    gpus: &[Gpu],
    leases: &[Lease],
) -> SnapshotBuilder {
    let neighbours = node.neighbours();
    let members = Members::of(node, leases).and(&neighbours);
    let offer = |gpu: &Gpu| {
        // A GPU that can't be asked now (lost, or the driver fails) takes nothing new; the others go on.
        offer(driver, node, gpu, leases, &members).unwrap_or_else(|error| {
            tracing::warn!(gpu = gpu.index, %error, "GPU takes no new tasks");
            Offer { closed: true, ..Offer::new(gpu.clone()) }
        })
    };
    let world = SnapshotBuilder::default().node(name, gpus.iter().map(offer));
    leases.iter().chain(&neighbours).fold(world, |world, lease| world.lease(lease, name))
}

fn offer(
    driver: &dyn Driver,
    node: &crate::NodeStore,
    gpu: &Gpu,
    leases: &[Lease],
    members: &Members,
) -> Result<Offer, NodeError> {
    let mut offer = Offer::new(gpu.clone());
    let geometry = mig::geometry(driver, node, gpu, leases, now_ms())?;
    offer.gpu.mig = geometry.is_some();
    match geometry {
        // In MIG mode others hold instances, not bytes.
        Some(geometry) => (offer.table, offer.instances) = (Some(geometry.table), geometry.instances),
        None => offer.foreign_bytes = foreign_bytes(driver, gpu, members)?,
    }
    Ok(offer)
}

/// Memory of `gpu` held by processes that no lease answers for.
///
/// # Errors
/// If the driver can't say.
pub fn foreign_bytes(driver: &dyn Driver, gpu: &Gpu, members: &Members) -> Result<u64, DriverError> {
    let mut foreign = 0;
    for process in driver.processes(&gpu.uuid)? {
        if members.lease_of(process.pid).is_some() {
            continue;
        }
        foreign += match process.used_bytes {
            Some(bytes) => bytes,
            // The driver hides sizes (some containers): then all that is in use may be theirs.
            None => return Ok(driver.memory(&gpu.uuid)?.used_bytes),
        };
    }
    Ok(foreign)
}
