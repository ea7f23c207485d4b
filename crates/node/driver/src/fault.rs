//! A driver whose calls fail by a script, to test how the agent handles a failing GPU.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use cantle_mig::Table;
use cantle_model::{DirectAccess, Gpu, GpuUuid, Slice, Topology};

use crate::{
    Activation, Checkpoints, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, Libraries,
    Load, Location, Memory, Mig, NativeLimit, ProcessMemory, Result, Versions, Xid,
};

/// The calls that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// [`Driver::gpus`]
    Gpus,
    /// [`Driver::memory`]
    Memory,
    /// [`Driver::processes`]
    Processes,
    /// [`Driver::context_memory`]
    ContextMemory,
}

/// One failure: the next matching call returns `error` instead of reaching the driver.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The name of the call.
    pub call: Call,
    /// On which GPU; any if `None`.
    pub gpu: Option<GpuUuid>,
    /// Number of matching calls that succeed before.
    pub after: u32,
    /// Number of calls that fail then; `u32::MAX` means all.
    pub times: u32,
    /// The error with which they fail.
    pub error: DriverError,
}

/// A GPU that fell off the bus, as NVML reports it.
#[must_use]
pub fn gpu_is_lost(gpu: &GpuUuid) -> DriverError {
    DriverError::Nvml {
        function: "nvmlDeviceGetMemoryInfo".into(),
        gpu: Some(gpu.clone()),
        code: 15,
        text: "GPU is lost".to_owned(),
    }
}

/// Passes calls on to another driver, except those that fail by the script.
pub struct FaultyDriver {
    inner: Arc<dyn Driver>,
    script: Mutex<VecDeque<Fault>>,
}

impl FaultyDriver {
    /// A driver without faults so far.
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>) -> Self {
        Self { inner, script: Mutex::default() }
    }

    /// Adds a failure.
    pub fn inject(&self, fault: Fault) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    /// Removes all failures: the GPU works again.
    pub fn heal(&self) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn pass(&self, call: Call, gpu: Option<&GpuUuid>) -> Result<()> {
        let mut script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        let matches =
            |fault: &Fault| fault.call == call && (fault.gpu.is_none() || fault.gpu.as_ref() == gpu);
        let Some(index) = script.iter().position(matches) else { return Ok(()) };
        let fault = &mut script[index];
        if fault.after > 0 {
            fault.after -= 1;
            return Ok(());
        }
        let error = fault.error.clone();
        match fault.times {
            u32::MAX => {}
            0 | 1 => drop(script.remove(index)),
            _ => fault.times -= 1,
        }
        Err(error)
    }
}

impl Driver for FaultyDriver {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        self.pass(Call::Gpus, None)?;
        self.inner.gpus()
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        self.pass(Call::Memory, Some(gpu))?;
        self.inner.memory(gpu)
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        self.inner.load(gpu)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        self.pass(Call::Processes, Some(gpu))?;
        self.inner.processes(gpu)
    }

    fn busy_processes(&self, gpu: &GpuUuid, since_us: u64) -> Result<Vec<u32>> {
        self.inner.busy_processes(gpu, since_us)
    }

    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        self.inner.xids(gpu)
    }

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        self.inner.location(gpu)
    }

    fn topology(&self) -> Topology {
        self.inner.topology()
    }

    fn versions(&self) -> Versions {
        self.inner.versions()
    }

    fn context_memory(&self, gpu: &GpuUuid, device: &str) -> Result<ContextMemory> {
        self.pass(Call::ContextMemory, Some(gpu))?;
        self.inner.context_memory(gpu, device)
    }

    fn start_checkpoints(&self) -> Result<Checkpoints> {
        self.inner.start_checkpoints()
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        self.inner.container_parts(slices)
    }

    fn native_limit(&self) -> &dyn NativeLimit {
        self.inner.native_limit()
    }

    fn direct_access(&self, slices: &[Slice], units: &[(u32, u32)]) -> Result<Option<DirectAccess>> {
        self.inner.direct_access(slices, units)
    }

    fn compute_units(&self, gpu: &GpuUuid) -> Result<u32> {
        self.inner.compute_units(gpu)
    }

    fn libraries(&self) -> Result<Libraries> {
        self.inner.libraries()
    }
}

/// The simulated driver has scripted faults of its own for these.
impl Mig for FaultyDriver {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        self.inner.mig_table(gpu)
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        self.inner.gpu_instances(gpu)
    }

    fn recent_instances(&self, gpu: &GpuUuid, mark: u64) -> Result<Vec<GpuInstance>> {
        self.inner.recent_instances(gpu, mark)
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        self.inner.mig_devices(gpu)
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        self.inner.create_gpu_instance(gpu, profile, start, size)
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        self.inner.create_compute_instance(gpu, instance)
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.inner.destroy_compute_instances(gpu, instance)
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.inner.destroy_gpu_instance(gpu, instance)
    }

    fn holders(&self, gpu: &GpuUuid, instance: u32) -> Vec<u32> {
        self.inner.holders(gpu, instance)
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        self.inner.switches_mig(gpu)
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        self.inner.set_mig_mode(gpu, on)
    }
}
