//! The driver's own memory limit of a control group, which it enforces below its libraries.

use std::path::{Path, PathBuf};

use cantle_model::{GpuUuid, LimitBackend};

use crate::{DriverError, Result};

/// Whether the driver can limit the memory of a control group on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSupport {
    /// It can, by this backend.
    Supported(LimitBackend),
    /// It cannot, for this reason.
    Unsupported(String),
}

/// A control group's memory on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// Its hard limit in bytes; `None` without one.
    pub hard_bytes: Option<u64>,
    /// The memory that its processes hold, in bytes.
    pub used_bytes: u64,
}

/// Memory limits that the driver enforces for all processes of a control group, whatever libraries they use. A limit belongs to the group: it
/// outlives the process that has set it, and it ends with the group. A group is named by its directory in the hierarchy of version 2.
///
/// NVIDIA's driver has them from 615 on (`nvmlDeviceSetMemoryLimits_v1`). Where NVML lacks them, the kernel's controller of device memory
/// is used if it knows the GPU (`dmem`). They were tried with a simulated driver only, and it is open whether the
/// hard limit of a real one holds without an MPS daemon.
pub trait NativeLimit {
    /// Whether the driver has such limits on this GPU; `group` is any group of this machine.
    fn probe(&self, gpu: &GpuUuid, group: &Path) -> LimitSupport;

    /// Sets the hard limit of a group, in bytes. The soft limit is 0: a reservation of a group that is removed would stay with its parents.
    ///
    /// # Errors
    /// If this process is not root, the limit is larger than the GPU, the group is gone, or the driver fails.
    fn set(&self, gpu: &GpuUuid, group: &Path, hard_bytes: u64) -> Result<()>;

    /// Clears the limit of a group.
    ///
    /// # Errors
    /// As [`Self::set`].
    fn clear(&self, gpu: &GpuUuid, group: &Path) -> Result<()>;

    /// The limit of a group, and the memory that its processes hold.
    ///
    /// # Errors
    /// If the group is gone, or the driver fails.
    fn used(&self, gpu: &GpuUuid, group: &Path) -> Result<GroupMemory>;

    /// The files to which each process of the group writes `0` so that its limit holds, in addition to that of the group itself: of a
    /// hierarchy of version 1, which a process enters by itself.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn doors(&self, _gpu: &GpuUuid, _group: &Path) -> Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }
}

/// A driver without such limits.
pub(crate) struct NoNativeLimit;

impl NativeLimit for NoNativeLimit {
    fn probe(&self, gpu: &GpuUuid, _group: &Path) -> LimitSupport {
        LimitSupport::Unsupported(DriverError::NoSuchGpu(gpu.clone()).to_string())
    }

    fn set(&self, gpu: &GpuUuid, _group: &Path, _hard_bytes: u64) -> Result<()> {
        Err(DriverError::NoSuchGpu(gpu.clone()))
    }

    fn clear(&self, gpu: &GpuUuid, _group: &Path) -> Result<()> {
        Err(DriverError::NoSuchGpu(gpu.clone()))
    }

    fn used(&self, gpu: &GpuUuid, _group: &Path) -> Result<GroupMemory> {
        Err(DriverError::NoSuchGpu(gpu.clone()))
    }
}
