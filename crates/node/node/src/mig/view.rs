//! The view of GPUs in MIG mode that users get.

use cantle_driver::{Driver, GpuInstance, Installation};
use cantle_mig::{GpuGeometry, Table};
use cantle_model::{Gpu, Lease, MigInstance, Milli};
use serde::Serialize;

use super::geometry::{geometry, is_leased};
use super::journal::Journal;
use crate::clock::now_ms;
use crate::{NodeError, NodeStore};

/// A GPU in MIG mode.
#[derive(Clone, Debug)]
pub struct MigGpu {
    /// The GPU.
    pub gpu: Gpu,
    /// Its instances, and the placements that tasks are about to get, in order of their first memory slices.
    pub places: Vec<MigPlacement>,
    /// As the scheduler counts it, what tasks hold included as busy.
    pub geometry: GpuGeometry,
}

/// An instance, or a placement for one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MigPlacement {
    /// Name of its profile.
    pub profile: String,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// NVML's id of the GPU instance.
    pub gi: Option<u32>,
    /// Name of the MIG device.
    pub uuid: Option<String>,
    /// Its owner.
    pub state: PlacementState,
    /// The task that holds it.
    pub task: Option<String>,
}

/// The owner of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PlacementState {
    /// A task's.
    Held,
    /// About to be made for a task.
    Coming,
    /// Kept for the next task, or destroyed when its memory slices are needed.
    Free,
    /// Made by others.
    Foreign,
}

/// The instances of a GPU that are neither cantle's nor named by one of the leases, with their parts of it: as they were listed when a place was
/// last looked for. The driver takes dozens of calls for a list, and may not answer.
pub fn foreign(
    driver: &dyn Driver,
    node: &NodeStore,
    gpu: &Gpu,
    leases: &[Lease],
) -> Vec<(MigInstance, Milli)> {
    let Some((table, found)) = driver.last_instances(&gpu.uuid).filter(|_| gpu.mig) else {
        return Vec::new();
    };
    // This is for people; the scheduler reports what cannot be read.
    let Ok(journal) = Journal::read(node, &gpu.uuid) else { return Vec::new() };
    let is_foreign = |found: &&GpuInstance| {
        !journal.is_ours(found) && !found.devices.iter().any(|device| is_leased(leases, device))
    };
    let foreign = |found| {
        let MigPlacement { profile, start, size, uuid, .. } = place(&table, &journal, found);
        let milli = Milli(size * Milli::ONE.0 / table.units.max(1));
        (MigInstance { profile, start, size, uuid: uuid.unwrap_or_default() }, milli)
    };
    found.iter().filter(is_foreign).map(foreign).collect()
}

/// The GPUs of this machine that are in MIG mode.
///
/// # Errors
/// If the driver or a file cannot be read.
pub fn mig_gpus(installation: &Installation) -> Result<Vec<MigGpu>, NodeError> {
    let driver = cantle_driver::open(installation)?;
    let node = NodeStore::open(&NodeStore::dir_for(installation))?;
    let gpus = driver.gpus()?.into_iter().filter(|gpu| gpu.mig);
    gpus.filter_map(|gpu| mig_gpu(driver.as_ref(), &node, gpu).transpose()).collect()
}

fn mig_gpu(driver: &dyn Driver, node: &NodeStore, gpu: Gpu) -> Result<Option<MigGpu>, NodeError> {
    let leases = node.lock()?.sweep()?;
    let Some(mut geometry) = geometry(driver, node, &gpu, &leases, now_ms())? else { return Ok(None) };
    let table = geometry.table.clone();
    let journal = Journal::read(node, &gpu.uuid)?;
    let found = driver.gpu_instances(&gpu.uuid)?;
    let mut places: Vec<MigPlacement> = found.iter().map(|found| place(&table, &journal, found)).collect();
    for lease in &leases {
        for slice in lease.slices.iter().filter(|slice| slice.gpu == gpu.uuid) {
            let Some(mig) = &slice.mig else { continue };
            let task = if lease.name.is_empty() { lease.task.0.clone() } else { lease.name.clone() };
            let at = places.iter_mut().find(|place| place.uuid.as_ref() == Some(&mig.uuid));
            match at {
                Some(place) => (place.state, place.task) = (PlacementState::Held, Some(task)),
                None => places.push(MigPlacement {
                    profile: mig.profile.clone(),
                    start: mig.start,
                    size: mig.size,
                    gi: None,
                    uuid: None,
                    state: PlacementState::Coming,
                    task: Some(task),
                }),
            }
            if let Some(profile) = table.position(&mig.profile) {
                geometry.occupy(profile, mig.start);
            }
        }
    }
    places.sort_by_key(|place| place.start);
    Ok(Some(MigGpu { gpu, places, geometry }))
}

fn place(table: &Table, journal: &Journal, found: &GpuInstance) -> MigPlacement {
    let profile = table.profiles.iter().find(|profile| profile.id == found.profile_id);
    MigPlacement {
        profile: profile.map_or_else(|| found.profile_id.to_string(), |profile| profile.name.clone()),
        start: found.start,
        size: found.size,
        gi: Some(found.id),
        uuid: found.devices.first().cloned(),
        state: if journal.is_ours(found) { PlacementState::Free } else { PlacementState::Foreign },
        task: None,
    }
}
