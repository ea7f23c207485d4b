//! Ids and UUIDs of instances.

use super::{GpuInstanceProfile, ProfileTable};
use crate::identity::{DeviceUuid, gpu_uuid, uuid_of};
use crate::state::{MAX_INSTANCES, SimGpu};

/// A driver's names for the instances of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Ids of each size count from the last placement to the first.
    pub backwards: bool,
    /// The UUID depends on the pipe that an instance gets, the first that is free.
    pub by_pipe: bool,
}

impl Names {
    /// Ids number the placements of each size: the whole is 0, halves 1 and 2, quarters 3 to 6, eighths 7 to 14.
    pub(super) fn id(self, table: &ProfileTable, profile: &GpuInstanceProfile, start: u32) -> usize {
        let places = table.units / profile.size;
        let place = start / profile.size;
        let place = if self.backwards { places - 1 - place } else { place };
        ((places.next_power_of_two() - 1 + place) as usize).min(MAX_INSTANCES - 1)
    }

    /// The pipe of the next instance, plus 1.
    pub(super) fn pipe(self, gpu: &SimGpu) -> u32 {
        let is_free = |pipe: &u32| gpu.instances().all(|(_, _, instance)| instance.pipe != *pipe);
        if self.by_pipe { (1..).find(is_free).unwrap_or_default() } else { 0 }
    }
}

/// The UUID of a compute instance of GPU `index`, as bytes.
pub fn mig_uuid_bytes(
    index: usize,
    gpu: &SimGpu,
    gpu_instance: usize,
    compute_instance: usize,
) -> DeviceUuid {
    let pipe = gpu.instances.get(gpu_instance).map_or(0, |instance| instance.pipe);
    let pipe = if pipe > 1 { format!("/pipe{pipe}") } else { String::new() };
    uuid_of(&format!("{}/{gpu_instance}/{compute_instance}{pipe}", gpu_uuid(index, gpu.model())))
}

/// The UUID of a compute instance of GPU `index`, as text.
pub fn mig_uuid(index: usize, gpu: &SimGpu, gpu_instance: usize, compute_instance: usize) -> String {
    format!("MIG-{}", mig_uuid_bytes(index, gpu, gpu_instance, compute_instance))
}
