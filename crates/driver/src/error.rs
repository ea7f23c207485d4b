use std::path::PathBuf;

use cantle_model::GpuUuid;

/// Why the driver can't be used. All of these are exit code 7 (GPU, driver or enforcement unavailable).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// No NVML library anywhere.
    #[error("no NVIDIA driver found (libnvidia-ml.so.1 is missing); try --sim-gpus 3xA100-40GB")]
    NoDriver,
    /// A driver library is there but can't be loaded.
    #[error("cannot load {}: {why}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        why: String,
    },
    /// The library lacks a function.
    #[error("the driver has no {function}; cantle needs NVIDIA driver 470 or newer")]
    TooOld {
        /// The function.
        function: &'static str,
    },
    /// An NVML call failed.
    #[error("{function} failed{}: {text} (NVML error {code})", on(gpu.as_ref()))]
    Nvml {
        /// The call.
        function: &'static str,
        /// The GPU it was about.
        gpu: Option<GpuUuid>,
        /// NVML's return code.
        code: u32,
        /// NVML's own words.
        text: String,
    },
    /// No GPU of that name.
    #[error("there is no GPU {0} on this machine")]
    NoSuchGpu(GpuUuid),
    /// A library of the driver is not where libraries are.
    #[error(
        "cannot find the driver's {name} (looked in {looked_in}); is the NVIDIA driver installed completely?"
    )]
    NoLibrary {
        /// Soname.
        name: &'static str,
        /// Folders that were looked in.
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
        /// What went wrong.
        why: String,
    },
}

impl DriverError {
    /// NVML says that the GPU is gone from the bus or needs a reset.
    #[must_use]
    pub const fn is_gpu_lost(&self) -> bool {
        // NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
        matches!(self, Self::Nvml { code: 15 | 16, .. })
    }
}

fn on(gpu: Option<&GpuUuid>) -> String {
    gpu.map_or_else(String::new, |gpu| format!(" on {gpu}"))
}
