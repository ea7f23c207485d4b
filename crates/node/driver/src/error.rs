use std::borrow::Cow;
use std::path::PathBuf;

use cantle_model::GpuUuid;

/// Why the driver cannot be used. All of these are exit code 7 (GPU, driver or enforcement unavailable).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// No NVML library anywhere.
    #[error("no NVIDIA driver found (libnvidia-ml.so.1 is missing); try --sim-gpus 3xA100-40GB")]
    NoDriver,
    /// A driver library is there but cannot be loaded.
    #[error("cannot load {}: {why}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// The loader's error.
        why: String,
    },
    /// The library lacks a function.
    #[error("the driver has no {function}; cantle needs NVIDIA driver 470 or newer")]
    TooOld {
        /// The function.
        function: Cow<'static, str>,
    },
    /// An NVML call failed.
    #[error("{function} failed{}: {text} (NVML error {code})", on(gpu.as_ref()))]
    Nvml {
        /// The call.
        function: Cow<'static, str>,
        /// The GPU it was about.
        gpu: Option<GpuUuid>,
        /// NVML's return code.
        code: u32,
        /// NVML's description of the code.
        text: String,
    },
    /// A GPU that does not answer in time; it is asked again once its last call has returned.
    #[error("GPU {gpu} does not answer: {call} takes longer than {waited_s} s")]
    Stalled {
        /// The GPU.
        gpu: GpuUuid,
        /// The call.
        call: &'static str,
        /// Seconds that the caller has waited.
        waited_s: u64,
    },
    /// A checkpoint function of CUDA's failed.
    #[error("{call} of process {pid} failed: {text} ({code})")]
    Checkpoint {
        /// The call.
        call: &'static str,
        /// The process.
        pid: u32,
        /// CUDA's code.
        code: i32,
        /// Its name.
        text: &'static str,
    },
    /// The helper for checkpoints failed by itself.
    #[error("the helper for checkpoints failed: {0}")]
    CheckpointHelper(String),
    /// The driver of this GPU has no such thing.
    #[error("GPU {gpu}: its driver does not have {what}")]
    Unsupported {
        /// The GPU.
        gpu: GpuUuid,
        /// The missing part.
        what: &'static str,
    },
    /// A file of the kernel: of its controller of device memory, or about a GPU.
    #[error("{}: {why}", file.display())]
    KernelFile {
        /// The file.
        file: PathBuf,
        /// The system's error.
        why: String,
    },
    /// No thread could be started for it.
    #[error("no thread can be started to ask GPU {gpu}: {why}")]
    Thread {
        /// The GPU.
        gpu: GpuUuid,
        /// The system's error.
        why: String,
    },
    /// The process that asks about a GPU's MIG instances, or changes them, failed by itself.
    #[error("the process for MIG instances of GPU {gpu} failed: {why}")]
    MigProcess {
        /// The GPU.
        gpu: GpuUuid,
        /// The fault.
        why: String,
    },
    /// NVML contradicts itself about one instance: it was replaced while it was read, or NVML remembers another one.
    #[error("NVML contradicts itself about MIG instance {instance} of GPU {gpu}")]
    Contradiction {
        /// The GPU.
        gpu: GpuUuid,
        /// NVML's id of the GPU instance.
        instance: u32,
    },
    /// No GPU of that name.
    #[error("there is no GPU {0} on this machine")]
    NoSuchGpu(GpuUuid),
    /// No MIG device of that name.
    #[error("there is no MIG instance {0} on this machine")]
    NoSuchInstance(String),
    /// A container cannot be given its instance.
    #[error(
        "the MIG instance's device node {} is missing and cannot be made: {why}; make it as root: nvidia-modprobe -f \
         /proc/driver/nvidia/capabilities/{}", node.display(), capability
    )]
    NoNode {
        /// The node.
        node: PathBuf,
        /// The capability that it opens, as named in `/proc/driver/nvidia/capabilities`.
        capability: String,
        /// The system's error.
        why: String,
    },
    /// The driver does not number the instance's capabilities.
    #[error(
        "{} does not list {name}: no container can be given this MIG instance; is the driver's nvidia-caps there?",
        file.display()
    )]
    NoCapability {
        /// The driver's list.
        file: PathBuf,
        /// The instance as it would be named there.
        name: String,
    },
    /// Instances that others have made and that are only used.
    #[error("GPU {0} has fixed MIG instances; none is made or destroyed there")]
    Fixed(GpuUuid),
    /// A library of the driver is in none of the usual directories.
    #[error(
        "cannot find the driver's {name} (looked in {looked_in}); is the NVIDIA driver installed completely?"
    )]
    NoLibrary {
        /// Soname.
        name: &'static str,
        /// Directories that were searched.
        looked_in: String,
    },
    /// The simulated driver is missing.
    #[error("no simulated driver at {}; run `make build`, or set CANTLE_LIB_DIR", .0.display())]
    NoSimDriver(PathBuf),
    /// The simulated driver refuses.
    #[error("simulated GPUs: {0}")]
    Sim(String),
    /// The context probe failed.
    #[error("cannot measure the memory of a CUDA context on {gpu}: {why}")]
    Probe {
        /// The GPU.
        gpu: GpuUuid,
        /// The fault.
        why: String,
    },
}

impl DriverError {
    /// NVIDIA's driver is not installed, or its kernel module is not loaded (`NVML_ERROR_DRIVER_NOT_LOADED`).
    #[must_use]
    pub const fn is_no_driver(&self) -> bool {
        matches!(self, Self::NoDriver | Self::Nvml { code: 9, .. })
    }

    /// NVML reports that the GPU is gone from the bus or needs a reset.
    #[must_use]
    pub const fn is_gpu_lost(&self) -> bool {
        // NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
        matches!(self, Self::Nvml { code: 15 | 16, .. })
    }

    /// A fault of one GPU, with which the others serve: it is lost, needs a reset or does not answer.
    #[must_use]
    pub const fn is_of_one_gpu(&self) -> bool {
        // NVML_ERROR_TIMEOUT, NVML_ERROR_UNKNOWN
        self.is_gpu_lost() || matches!(self, Self::Stalled { .. } | Self::Nvml { code: 10 | 999, .. })
    }

    /// This process may not ask that: it is not root, or in a container without the right (`NVML_ERROR_NO_PERMISSION`).
    #[must_use]
    pub const fn is_no_permission(&self) -> bool {
        matches!(self, Self::Nvml { code: 4, .. })
    }

    /// The library, or the kernel's driver under it, is older than the function (`NVML_ERROR_FUNCTION_NOT_FOUND`).
    #[must_use]
    pub const fn is_too_old(&self) -> bool {
        matches!(self, Self::TooOld { .. } | Self::Nvml { code: 13, .. })
    }
}

/// The meaning of NVML's codes for MIG. They are ambiguous: for a placement that is taken NVML returns the code for too few
/// resources. To find out, read the instances.
impl DriverError {
    /// The instance, or the GPU, is in use (`NVML_ERROR_IN_USE`). That may end by itself.
    #[must_use]
    pub const fn is_in_use(&self) -> bool {
        matches!(self, Self::Nvml { code: 19, .. })
    }

    /// The placement is taken, or there are as many instances as there can be (`NVML_ERROR_INSUFFICIENT_RESOURCES`).
    #[must_use]
    pub const fn is_placement_taken(&self) -> bool {
        matches!(self, Self::Nvml { code: 23, .. })
    }

    /// MIG mode is off, the GPU has none, or this is a vGPU guest (`NVML_ERROR_NOT_SUPPORTED`).
    #[must_use]
    pub const fn is_not_supported(&self) -> bool {
        matches!(self, Self::Nvml { code: 3, .. } | Self::Unsupported { .. })
    }

    /// There is no such instance any more (`NVML_ERROR_INVALID_ARGUMENT` of a stale handle, `NVML_ERROR_NOT_FOUND`).
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Nvml { code: 2 | 6, .. })
    }
}

fn on(gpu: Option<&GpuUuid>) -> String {
    gpu.map_or_else(String::new, |gpu| format!(" on {gpu}"))
}
