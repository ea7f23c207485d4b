//! A driver without GPUs, for an agent whose tasks get none, on machines with and without NVIDIA's driver.

use std::sync::Arc;

use cantle_mig::Table;
use cantle_model::{Gpu, GpuUuid, Slice};

use crate::{
    Activation, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, Libraries, Load, Location,
    Memory, Mig, ProcessMemory, Result, Versions, Xid,
};

struct NoGpus;

/// A driver without GPUs. Nothing is opened for it.
#[must_use]
pub fn no_gpus() -> Arc<dyn Driver> {
    Arc::new(NoGpus)
}

fn none<T>(gpu: &GpuUuid) -> Result<T> {
    Err(DriverError::NoSuchGpu(gpu.clone()))
}

impl Driver for NoGpus {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        Ok(Vec::new())
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        none(gpu)
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        none(gpu)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
        none(gpu)
    }

    fn busy_processes(&self, gpu: &GpuUuid, _since_us: u64) -> Result<Vec<u32>> {
        none(gpu)
    }

    fn xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        none(gpu)
    }

    fn location(&self, gpu: &GpuUuid) -> Result<Location> {
        none(gpu)
    }

    fn versions(&self) -> Versions {
        Versions { driver: String::new(), cuda: String::new(), nvml: String::new() }
    }

    fn context_memory(&self, gpu: &GpuUuid, _device: &str) -> Result<ContextMemory> {
        none(gpu)
    }

    fn container_parts(&self, slices: &[Slice]) -> Result<ContainerParts> {
        slices.first().map_or_else(|| Ok(ContainerParts::default()), |slice| none(&slice.gpu))
    }

    fn libraries(&self) -> Result<Libraries> {
        Ok(Libraries::default())
    }
}

impl Mig for NoGpus {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        none(gpu)
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        none(gpu)
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        none(gpu)
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, _profile: u32, _start: u32, _size: u32) -> Result<u32> {
        none(gpu)
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, _instance: u32) -> Result<String> {
        none(gpu)
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, _instance: u32) -> Result<()> {
        none(gpu)
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, _instance: u32) -> Result<()> {
        none(gpu)
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        none(gpu)
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, _on: bool) -> Result<Activation> {
        none(gpu)
    }
}
