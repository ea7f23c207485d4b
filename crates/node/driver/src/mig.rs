//! MIG instances: lists, creates and destroys them through NVML.

use cantle_mig::Table;
use cantle_model::GpuUuid;
use serde::{Deserialize, Serialize};

use crate::Result;

/// A GPU instance that exists, made by cantle or by others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    /// NVML's id of it. It does not determine the placement.
    pub id: u32,
    /// NVML's id of its profile.
    pub profile_id: u32,
    /// First memory slice of its placement.
    pub start: u32,
    /// Memory slices that it takes.
    pub size: u32,
    /// Names (`MIG-…`) of its compute instances; none on one that is half made or half destroyed.
    pub devices: Vec<String>,
}

/// The outcome of a change of MIG mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// It is done.
    Done,
    /// A process uses the GPU (a monitor, a display, a task).
    InUse,
    /// The GPU has to be reset first.
    ResetRequired,
}

/// MIG. The profiles are read from the driver, never from a table: they differ by GPU and by driver.
///
/// Making and destroying instances takes a second or more on real hardware. The caller's thread waits for it, and nothing else
/// should wait for that thread. Only one process may do it to a GPU at a time; the agent has a lock for that.
pub trait Mig {
    /// The GPU's profiles and placements; `None` if it is not in MIG mode.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>>;

    /// Its GPU instances, in order of their placements; none if it is not in MIG mode.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>>;

    /// As [`Self::gpu_instances`], for planning only: the answer may be up to a minute old, but no older than `mark`, which
    /// changes whenever a cantle program may have changed an instance there. The driver is asked less and less often while
    /// nothing changes. Before anything is made or destroyed, ask [`Self::gpu_instances`].
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn recent_instances(&self, gpu: &GpuUuid, _mark: u64) -> Result<Vec<GpuInstance>> {
        self.gpu_instances(gpu)
    }

    /// The profiles and the last answer of [`Self::recent_instances`], as old as it may be; `None` if it has not been asked since an instance
    /// was made or destroyed there. The driver is not asked, so this never waits.
    fn last_instances(&self, _gpu: &GpuUuid) -> Option<(Table, Vec<GpuInstance>)> {
        None
    }

    /// Numbers and names of its MIG devices, as `nvidia-smi -L` lists them; none if it is not in MIG mode. Slow on a busy
    /// machine, so only for numbers that people read.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>>;

    /// Names of the MIG devices of this GPU if they are fixed, that is, if none is made or destroyed there: see
    /// [`crate::FixedInstances`].
    fn fixed_devices(&self, _gpu: &GpuUuid) -> Option<&[String]> {
        None
    }

    /// Makes a GPU instance at a placement, and returns its id.
    ///
    /// # Errors
    /// [`crate::DriverError::is_placement_taken`], or the driver fails.
    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32>;

    /// Makes the compute instance that takes all of a GPU instance, and returns the name of the MIG device.
    ///
    /// # Errors
    /// If there is no such instance, or the driver fails.
    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String>;

    /// Destroys all compute instances of a GPU instance.
    ///
    /// # Errors
    /// [`crate::DriverError::is_in_use`] while a process uses one, or the driver fails.
    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()>;

    /// Destroys a GPU instance without compute instances.
    ///
    /// # Errors
    /// [`crate::DriverError::is_in_use`] while it has compute instances or is used, or the driver fails.
    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()>;

    /// Processes that keep a GPU instance in use by having one of its device nodes open: monitors, and programs without memory.
    fn holders(&self, _gpu: &GpuUuid, _instance: u32) -> Vec<u32> {
        Vec::new()
    }

    /// Can MIG mode be turned on and off without a reset of the GPU (Hopper and newer)?
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool>;

    /// Turns MIG mode on or off where that needs no reset of the GPU (Hopper and newer); elsewhere nothing changes.
    ///
    /// # Errors
    /// If the GPU has no MIG, this process lacks the permission, or the driver fails.
    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation>;
}
