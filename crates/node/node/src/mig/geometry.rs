//! The scheduler's view of a GPU in MIG mode.

use cantle_driver::Driver;
use cantle_mig::{GpuGeometry, Instance};
use cantle_model::{Gpu, Lease};

use super::journal::Journal;
use crate::{NodeError, NodeStore};

/// The offers and instances of a GPU in MIG mode, as the scheduler counts them: without the instances that leases name,
/// and with those as busy that are not ours, have a process in them, or would not go away. `None` if it is not in MIG
/// mode.
///
/// # Errors
/// If the driver cannot say.
pub fn geometry(
    driver: &dyn Driver,
    node: &NodeStore,
    gpu: &Gpu,
    leases: &[Lease],
    now_ms: i64,
) -> Result<Option<GpuGeometry>, NodeError> {
    let Some(table) = driver.mig_table(&gpu.uuid)? else { return Ok(None) };
    // Before the journal is read: what is written after that counts at the next time.
    let mark = Journal::mark(node, &gpu.uuid);
    let journal = Journal::read(node, &gpu.uuid)?;
    let processes = driver.processes(&gpu.uuid)?;
    let mut instances = Vec::new();
    for found in driver.recent_instances(&gpu.uuid, mark)? {
        if found.devices.iter().any(|device| is_leased(leases, device)) {
            continue;
        }
        let profile = table.profiles.iter().position(|profile| profile.id == found.profile_id);
        let profile = profile.ok_or(NodeError::UnknownProfile(gpu.index, found.profile_id))?;
        let in_use = processes.iter().any(|process| process.instance == Some(found.id));
        let given = driver.fixed_devices(&gpu.uuid).is_some();
        let busy = in_use || !(given || journal.is_ours(&found));
        instances.push(Instance { id: found.id, profile, start: found.start, busy });
    }
    let mut geometry = GpuGeometry { table: table.into(), instances };
    for place in journal.avoided(now_ms) {
        if let Some(profile) = geometry.table.profiles.iter().position(|known| known.id == place.profile_id) {
            geometry.occupy(profile, place.start);
        }
    }
    Ok(Some(geometry))
}

/// Asks all GPUs in MIG mode at once what instances they have, so that the next planner, under the node's lock, need not
/// query one after the other. A call that fails here fails there again, and is reported there.
pub fn look(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu]) {
    std::thread::scope(|threads| {
        for gpu in gpus.iter().filter(|gpu| gpu.mig) {
            threads.spawn(move || {
                // The answer is kept by the driver.
                if let Ok(Some(_)) = driver.mig_table(&gpu.uuid) {
                    let _ = driver.recent_instances(&gpu.uuid, Journal::mark(node, &gpu.uuid));
                }
            });
        }
    });
}

/// Does a lease name this MIG device?
pub(super) fn is_leased(leases: &[Lease], device: &str) -> bool {
    let named = leases.iter().flat_map(|lease| &lease.slices).filter_map(|slice| slice.mig.as_ref());
    named.into_iter().any(|mig| mig.uuid == device)
}
