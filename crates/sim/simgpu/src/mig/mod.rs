//! MIG: profiles of the models that have it, and the instances of a GPU.
//!
//! It refuses what the driver refuses: overlaps, more instances of a profile than allowed, and the destruction of an
//! instance in use. [`Names`] has the naming of instances.

mod instances;
mod names;
pub mod nodes;

pub use instances::{MigRefusal, ModeChange};
pub use names::{Names, mig_uuid, mig_uuid_bytes};

use crate::models::Model;

/// The profiles of one kind of GPU.
#[derive(Debug)]
pub struct ProfileTable {
    /// The key in `data/mig_profiles.json`, which [`Model::mig`] names.
    pub key: &'static str,
    /// Memory slices of the placement grid.
    pub units: u32,
    /// In the order of the data.
    pub profiles: &'static [GpuInstanceProfile],
}

/// A GPU instance profile.
#[derive(Debug)]
pub struct GpuInstanceProfile {
    /// E.g. `1g.5gb`.
    pub name: &'static str,
    /// `NVML_GPU_INSTANCE_PROFILE_…`.
    pub kind: u32,
    /// The profile's id.
    pub id: u32,
    /// Compute slices.
    pub compute_slices: u32,
    /// Memory slices.
    pub size: u32,
    /// Its possible starts.
    pub starts: &'static [u32],
    /// The number that fits on an empty GPU.
    pub max_instances: u32,
    /// Memory; 0 if unpublished (see [`memory_mib`]).
    pub memory_mib: u32,
    /// Streaming multiprocessors; 0 if unpublished.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg: u32,
    /// Optical flow engines.
    pub ofa: u32,
    /// The compute instances that it can be divided into.
    pub compute: &'static [ComputeInstanceProfile],
}

/// A compute instance profile of a GPU instance profile.
#[derive(Debug)]
pub struct ComputeInstanceProfile {
    /// E.g. `1c.3g.20gb`; the whole GPU instance has the GPU instance's name.
    pub name: &'static str,
    /// Both the id and the `NVML_COMPUTE_INSTANCE_PROFILE_…` number.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// The number that fits into the GPU instance.
    pub max_instances: u32,
}

include!(concat!(env!("OUT_DIR"), "/mig_generated.rs"));

/// The table of a model; `None` if it has no MIG.
pub fn table(model: &Model) -> Option<&'static ProfileTable> {
    TABLES.iter().find(|t| Some(t.key) == model.mig)
}

/// Memory of an instance. Without a published figure, its share of the whole, in whole granules.
pub fn memory_mib(model: &Model, table: &ProfileTable, profile: &GpuInstanceProfile) -> u32 {
    match profile.memory_mib {
        0 => model.memory_mib / table.units * profile.size / 2 * 2,
        published => published,
    }
}

/// Multiprocessors of an instance, by the same rule.
pub fn multiprocessors(model: &Model, profile: &GpuInstanceProfile) -> u32 {
    match profile.multiprocessors {
        0 => model.multiprocessors as u32 * profile.compute_slices / 8,
        known => known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::MODELS;

    #[test]
    fn every_mig_model_has_a_table_that_fits_its_memory() {
        for model in MODELS.iter().filter(|m| m.mig.is_some()) {
            let table = table(model).unwrap();
            for profile in table.profiles {
                let memory = memory_mib(model, table, profile);
                assert!(memory > 0 && memory <= model.memory_mib, "{} {}", model.key, profile.name);
                assert!(profile.starts.iter().all(|s| s + profile.size <= table.units));
                assert!(profile.compute.iter().any(|c| c.slices == profile.compute_slices));
            }
        }
    }
}
