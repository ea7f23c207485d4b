//! A driver whose user dies in the middle of a chosen call, before or after its effect. After that, none of the user's
//! code runs; only its files are closed, as the kernel would do. It also notes what was destroyed.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use cantle_driver::{
    Activation, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, Libraries, Load, Location,
    Memory, Mig, ProcessMemory, Versions, Xid,
};
use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Slice};

type Result<T> = std::result::Result<T, DriverError>;

pub(super) struct Mortal {
    inner: Arc<dyn Driver>,
    /// Steps until its user dies; 0: never.
    steps_left: AtomicU32,
    destroyed: Mutex<Vec<(GpuUuid, u32)>>,
}

/// The payload of the panic that unwinds the stack of a dying process.
struct Killed;

impl Mortal {
    pub(super) fn new(inner: Arc<dyn Driver>) -> Self {
        Self { inner, steps_left: AtomicU32::new(0), destroyed: Mutex::default() }
    }

    /// Does `work`, which dies at this step if it has as many; `None` if it died. Each call is two steps.
    pub(super) fn dying_at<T>(&self, step: u32, work: impl FnOnce() -> T) -> Option<T> {
        self.steps_left.store(step, Ordering::Relaxed);
        let ended = catch_unwind(AssertUnwindSafe(work));
        self.steps_left.store(0, Ordering::Relaxed);
        match ended {
            Ok(done) => Some(done),
            Err(thrown) if thrown.is::<Killed>() => None,
            Err(thrown) => resume_unwind(thrown),
        }
    }

    /// GPU instances that were destroyed since this was last asked.
    pub(super) fn take_destroyed(&self) -> Vec<(GpuUuid, u32)> {
        std::mem::take(&mut self.destroyed.lock().unwrap())
    }

    fn step(&self) {
        let left = self.steps_left.load(Ordering::Relaxed);
        self.steps_left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 1 {
            resume_unwind(Box::new(Killed));
        }
    }

    fn call<T>(&self, call: impl FnOnce(&dyn Driver) -> T) -> T {
        self.step();
        let answer = call(self.inner.as_ref());
        self.step();
        answer
    }
}

impl Mig for Mortal {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        self.call(|driver| driver.mig_table(gpu))
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        self.call(|driver| driver.gpu_instances(gpu))
    }

    fn recent_instances(&self, gpu: &GpuUuid, mark: u64) -> Result<Vec<GpuInstance>> {
        self.call(|driver| driver.recent_instances(gpu, mark))
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        self.call(|driver| driver.mig_devices(gpu))
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        self.call(|driver| driver.create_gpu_instance(gpu, profile, start, size))
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        self.call(|driver| driver.create_compute_instance(gpu, instance))
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.destroyed.lock().unwrap().push((gpu.clone(), instance));
        self.call(|driver| driver.destroy_compute_instances(gpu, instance))
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.destroyed.lock().unwrap().push((gpu.clone(), instance));
        self.call(|driver| driver.destroy_gpu_instance(gpu, instance))
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        self.inner.switches_mig(gpu)
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        self.call(|driver| driver.set_mig_mode(gpu, on))
    }
}

impl Driver for Mortal {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        self.inner.gpus()
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        self.inner.memory(gpu)
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        self.inner.load(gpu)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        self.call(|driver| driver.processes(gpu))
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

    fn versions(&self) -> Versions {
        self.inner.versions()
    }

    fn context_memory(&self, gpu: &GpuUuid, device: &str) -> Result<ContextMemory> {
        self.inner.context_memory(gpu, device)
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        self.inner.container_parts(slices)
    }

    fn libraries(&self) -> Result<Libraries> {
        self.inner.libraries()
    }
}
