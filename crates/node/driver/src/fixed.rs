//! MIG instances that others have made: a driver that shows these and no other, and can neither make nor destroy one.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::Table;
use cantle_model::{DirectAccess, Gpu, GpuUuid, Slice, Topology};

use crate::{
    Activation, Checkpoints, ContainerParts, ContextMemory, Driver, DriverError, GpuInstance, Libraries,
    Load, Location, LostGpu, Memory, Mig, NativeLimit, ProcessMemory, Result, Versions, Xid,
};

/// Nothing changes fixed instances.
const UNMARKED: u64 = 0;

/// Another driver's GPUs, of which only these MIG devices may be used.
pub struct FixedInstances {
    inner: Arc<dyn Driver>,
    devices: BTreeMap<GpuUuid, Vec<String>>,
}

impl FixedInstances {
    /// `devices` are the names (`MIG-…`) of the instances, by GPU; other GPUs are as `inner` shows them.
    #[must_use]
    pub fn new(inner: Arc<dyn Driver>, devices: BTreeMap<GpuUuid, Vec<String>>) -> Self {
        Self { inner, devices }
    }

    fn unless_fixed(&self, gpu: &GpuUuid) -> Result<&dyn Driver> {
        if self.devices.contains_key(gpu) {
            return Err(DriverError::Fixed(gpu.clone()));
        }
        Ok(self.inner.as_ref())
    }

    fn chosen(&self, gpu: &GpuUuid, mut found: Vec<GpuInstance>) -> Vec<GpuInstance> {
        if let Some(devices) = self.devices.get(gpu) {
            found.retain(|instance| instance.devices.iter().any(|device| devices.contains(device)));
        }
        found
    }
}

impl Mig for FixedInstances {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        let Some(table) = self.inner.mig_table(gpu)? else { return Ok(None) };
        if !self.devices.contains_key(gpu) {
            return Ok(Some(table));
        }
        let instances = self.recent_instances(gpu, UNMARKED)?;
        let placements: Vec<(u32, u32)> = instances.iter().map(|one| (one.profile_id, one.start)).collect();
        Ok(Some(table.of_fixed(&placements)))
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        Ok(self.chosen(gpu, self.inner.gpu_instances(gpu)?))
    }

    fn recent_instances(&self, gpu: &GpuUuid, mark: u64) -> Result<Vec<GpuInstance>> {
        Ok(self.chosen(
            gpu,
            self.inner.recent_instances(gpu, if self.devices.contains_key(gpu) { UNMARKED } else { mark })?,
        ))
    }

    fn last_instances(&self, gpu: &GpuUuid) -> Option<(Table, Vec<GpuInstance>)> {
        // Those that were chosen are for tasks, and the others are not seen.
        self.inner.last_instances(gpu).filter(|_| !self.devices.contains_key(gpu))
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        self.inner.mig_devices(gpu)
    }

    fn fixed_devices(&self, gpu: &GpuUuid) -> Option<&[String]> {
        self.devices.get(gpu).map(Vec::as_slice)
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        self.unless_fixed(gpu)?.create_gpu_instance(gpu, profile, start, size)
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        self.unless_fixed(gpu)?.create_compute_instance(gpu, instance)
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.unless_fixed(gpu)?.destroy_compute_instances(gpu, instance)
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        self.unless_fixed(gpu)?.destroy_gpu_instance(gpu, instance)
    }

    fn holders(&self, gpu: &GpuUuid, instance: u32) -> Vec<u32> {
        self.inner.holders(gpu, instance)
    }

    fn switches_mig(&self, _gpu: &GpuUuid) -> Result<bool> {
        // A change of mode would destroy its instances.
        Ok(false)
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        self.unless_fixed(gpu)?.set_mig_mode(gpu, on)
    }
}

impl Driver for FixedInstances {
    fn gpus(&self) -> Result<Vec<Gpu>> {
        self.inner.gpus()
    }

    fn lost_gpus(&self) -> Vec<LostGpu> {
        self.inner.lost_gpus()
    }

    fn memory(&self, gpu: &GpuUuid) -> Result<Memory> {
        self.inner.memory(gpu)
    }

    fn load(&self, gpu: &GpuUuid) -> Result<Load> {
        self.inner.load(gpu)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<ProcessMemory>> {
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
