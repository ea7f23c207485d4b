//! The agent's view of GPUs: one long-lived NVML session behind the [`Driver`] trait, real or simulated.
//!
//! The same code talks to NVIDIA's `libnvidia-ml.so.1` and to the simulated one, and cannot tell them apart. [`fault`]
//! wraps a driver with scripted failures for tests.

mod amd;
mod checkpoint;
mod context;
mod device_rule;
mod dmem;
mod error;
pub mod fault;
mod fixed;
mod installation;
mod libraries;
mod mig;
mod mig_process;
mod native_limit;
mod no_gpus;
mod nodes;
mod nvml;
mod recent;
pub mod simulated;
mod timeout;
mod visible;
mod xid;

use std::path::PathBuf;
use std::sync::Arc;

use cantle_model::{DirectAccess, Gpu, GpuUuid, Slice, Topology};

pub use checkpoint::{
    CHECKPOINTS_FROM, CheckpointState, Checkpoints, MOVES_FROM, SHARED_FROM, checkpoint_main,
};
pub use context::{ContextCache, ContextMemory, probe_context_main};
pub use device_rule::{DeviceNumber, set_device_rule};
pub use error::DriverError;
pub use fixed::FixedInstances;
pub use installation::Installation;
pub use libraries::{Libraries, Library};
pub use mig::{Activation, GpuInstance, Mig};
pub use mig_process::mig_main;
pub use native_limit::{GroupMemory, LimitSupport, NativeLimit};
pub use no_gpus::no_gpus;
pub use nvml::LostGpu;
pub use visible::visible_memory;
pub use xid::Xid;

/// The first argument that makes the binary act as the context probe: see [`probe_context_main`].
pub const PROBE_CONTEXT_COMMAND: &str = "__probe-context";

/// The first argument that makes the binary carry out one call about MIG instances: see [`mig_main`].
pub const MIG_COMMAND: &str = "__mig";

/// The first argument that makes the binary the helper for checkpoints: see [`checkpoint_main`].
pub const CHECKPOINT_COMMAND: &str = "__checkpoint";

type Result<T> = std::result::Result<T, DriverError>;

/// Memory of one GPU, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub total_bytes: u64,
    /// In use by all processes, and the driver's own reserve.
    pub used_bytes: u64,
    /// The rest.
    pub free_bytes: u64,
}

/// Utilization, temperature and power of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Percentage of the last sampling period in which a kernel ran.
    pub busy_percent: u32,
    /// Temperature in °C.
    pub celsius: u32,
    /// Power draw in mW; none where the GPU does not report it.
    pub milliwatts: Option<u32>,
}

/// The memory of one process on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Process id in the machine's own pid namespace.
    pub pid: u32,
    /// Memory in bytes; `None` where the driver does not report it (for example inside some containers).
    pub used_bytes: Option<u64>,
    /// The GPU instance it is in, on a GPU in MIG mode.
    pub instance: Option<u32>,
}

/// A GPU's address on its bus, and its node in `/dev`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// PCI address as NVML writes it, e.g. `00000000:01:00.0`.
    pub pci_bus_id: String,
    /// `N` of `/dev/nvidiaN`.
    pub minor: u32,
}

/// Versions of the parts of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Kernel driver, e.g. `550.163.01`.
    pub driver: String,
    /// Highest CUDA version it supports, e.g. `12.4`.
    pub cuda: String,
    /// The NVML library, e.g. `12.550.163.01`.
    pub nvml: String,
}

/// The files that a container needs to use GPUs, in addition to libcuda and libnvidia-ml.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerParts {
    /// Device nodes: those of the GPUs and those that all share.
    pub devices: Vec<PathBuf>,
    /// More libraries of the driver under all their names, and its programs.
    pub files: Vec<PathBuf>,
}

/// A node's GPUs, of one vendor. Calls are synchronous and short (one library call, about 10 µs to 1 ms on real hardware). A call that
/// asks one GPU waits for it for a limited time, and never for another one: see [`DriverError::Stalled`].
pub trait Driver: Mig + Send + Sync {
    /// All GPUs, in NVML's order.
    ///
    /// # Errors
    /// If the driver fails; the error names the call and the GPU.
    fn gpus(&self) -> Result<Vec<Gpu>>;

    /// The GPUs that NVML counted at the start and could not open: fallen off the bus, or in need of a reset.
    fn lost_gpus(&self) -> Vec<LostGpu> {
        Vec::new()
    }

    /// Memory of one GPU, by all of its users.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn memory(&self, gpu: &GpuUuid) -> Result<Memory>;

    /// Utilization, temperature and power of the GPU.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails; GPUs in MIG mode do not report it.
    fn load(&self, gpu: &GpuUuid) -> Result<Load>;

    /// Every process that holds memory of the GPU, each once, in ascending order of pid.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>>;

    /// The processes that computed on the GPU, or used its video engines, after `since_us` (microseconds since 1970), by pid. The driver
    /// keeps that for a few seconds only.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails; GPUs in MIG mode do not report it, nor do WSL and some vGPUs.
    fn busy_processes(&self, gpu: &GpuUuid, since_us: u64) -> Result<Vec<u32>>;

    /// The faults that the driver has reported since the last call, oldest first; the first call starts listening. It does
    /// not wait.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>>;

    /// Bus address and device node.
    ///
    /// # Errors
    /// If there is no such GPU, or the driver fails.
    fn location(&self, gpu: &GpuUuid) -> Result<Location>;

    /// The connections of the GPUs. Read once, when it is first asked for; what the driver does not report is unknown.
    fn topology(&self) -> Topology {
        Topology::default()
    }

    /// Versions of the driver's parts.
    fn versions(&self) -> Versions;

    /// The memory of a context on `device` (this GPU's own name, or that of a MIG device on it): memory that a process
    /// holds before it allocates anything. Measured with a child process, which takes up to a
    /// second on real hardware; [`ContextCache`] remembers.
    ///
    /// # Errors
    /// If the probe cannot run, or the driver fails.
    fn context_memory(&self, gpu: &GpuUuid, device: &str) -> Result<ContextMemory>;

    /// The files that a container needs for these slices, in addition to the two libraries. Of a GPU in MIG mode it gets the
    /// nodes of the slice's instance only.
    ///
    /// # Errors
    /// If there is no such GPU or instance, or the driver fails.
    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts>;

    /// The driver's own memory limits of control groups.
    fn native_limit(&self) -> &dyn NativeLimit {
        &native_limit::NoNativeLimit
    }

    /// Starts a helper for checkpoints of processes, which takes seconds on real hardware.
    ///
    /// # Errors
    /// If it cannot be started, or the driver refuses.
    fn start_checkpoints(&self) -> Result<Checkpoints> {
        Err(DriverError::CheckpointHelper("this driver has none".to_owned()))
    }

    /// The view that a task with these slices has of its GPUs, where no filter library is between it and them: the driver's own limit is then the
    /// only one. `None` where there is a filter. Programs compute on these `units` of the first GPU, or on all if there are none.
    ///
    /// # Errors
    /// If there is no such GPU.
    fn direct_access(&self, _slices: &[Slice], _units: &[(u32, u32)]) -> Result<Option<DirectAccess>> {
        Ok(None)
    }

    /// The number of compute units of a GPU from which a mask can select some; 0 where there is no such mask.
    ///
    /// # Errors
    /// If there is no such GPU.
    fn compute_units(&self, _gpu: &GpuUuid) -> Result<u32> {
        Ok(0)
    }

    /// Whether a filter library enforces the limits of tasks on these GPUs.
    fn has_filter(&self) -> bool {
        matches!(self.direct_access(&[], &[]), Ok(None))
    }

    /// The driver's libraries and all the names they have on this machine.
    ///
    /// # Errors
    /// If a library cannot be found.
    fn libraries(&self) -> Result<Libraries>;
}

/// Opens the session. Keep it for the life of the program: opening takes about 10 ms on real hardware. GPUs of AMD are used where
/// NVIDIA's driver is not installed, or its kernel module is not loaded.
///
/// # Errors
/// If there is no driver, no simulated GPU, or the driver refuses to start.
pub fn open(installation: &Installation) -> Result<Arc<dyn Driver>> {
    open_with_probe(installation, PathBuf::from("/proc/self/exe"))
}

/// As [`open`], with another program for what is done in a process of its own: it must call [`probe_context_main`] when its first
/// argument is [`PROBE_CONTEXT_COMMAND`], and [`mig_main`] when that is [`MIG_COMMAND`]. [`open`] takes the running program itself.
///
/// # Errors
/// As [`open`].
pub fn open_with_probe(installation: &Installation, exe: PathBuf) -> Result<Arc<dyn Driver>> {
    let process = mig_process::MigProcess::new(exe.clone(), installation.clone());
    match nvml::Session::open(installation, exe) {
        Ok(session) => Ok(Arc::new(timeout::TimedDriver::new(session, Some(process))?)),
        Err(error) if error.is_no_driver() => match amd::AmdDriver::open(installation.root()) {
            Some(driver) => Ok(Arc::new(driver)),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// For unit tests, whose program is the test harness: as [`open`], but MIG calls are made in this process.
///
/// # Errors
/// As [`open`].
pub fn open_in_process(installation: &Installation) -> Result<Arc<dyn Driver>> {
    let session = nvml::Session::open(installation, PathBuf::from("/proc/self/exe"))?;
    Ok(Arc::new(timeout::TimedDriver::new(session, None)?))
}
