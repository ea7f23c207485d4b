//! MIG devices: compute instances as devices of their own.

use super::handle::{Handle, MigTarget, Target, gpu, of_gpu, of_mig_device, target};
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::Out;
use crate::mig::{mig_uuid, multiprocessors, nodes, table};
use crate::state::Sim;
use crate::{GRANULE_BYTES, identity};

/// `nvmlDeviceAttributes_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Attributes {
    multiprocessors: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpeg: u32,
    ofa: u32,
    gpu_instance_slices: u32,
    compute_instance_slices: u32,
    memory_mib: u64,
}

/// The MIG device with a UUID, in either of its notations: `MIG-<uuid>` and `MIG-GPU-<uuid>/<gi>/<ci>`.
pub(super) fn by_uuid(sim: &'static Sim, wanted: &str) -> NvmlResult<Handle> {
    let state = sim.lock();
    for (index, device) in state.devices().iter().enumerate() {
        let gpu = identity::gpu_uuid(index, device.model());
        let can_open = |gi: usize, ci: usize| nodes::can_open(sim.site(), index, gi, ci);
        for (instance, compute, ..) in
            device.mig_devices().into_iter().filter(|(gi, ci, ..)| can_open(*gi, *ci))
        {
            let new = mig_uuid(index, device, instance, compute);
            let old = format!("MIG-{gpu}/{instance}/{compute}");
            if wanted.eq_ignore_ascii_case(&new) || wanted.eq_ignore_ascii_case(&old) {
                return Ok(of_mig_device(index, instance, compute));
            }
        }
    }
    Err(NvmlError::NOT_FOUND)
}

/// `NVIDIA A100-SXM4-40GB MIG 1g.5gb`
pub(super) fn name(place: &MigTarget) -> NvmlResult<String> {
    let device = place.gpu.device();
    let mut existing = device.compute_instances(place.instance)?;
    let (_, profile, _) = existing.find(|(id, ..)| *id == place.compute).ok_or(NvmlError::NOT_FOUND)?;
    Ok(format!("{} MIG {}", place.gpu.model.name, profile.name))
}

/// The number of a MIG device on its GPU.
pub(super) fn index(place: &MigTarget) -> NvmlResult<u32> {
    let devices = place.gpu.device().mig_devices();
    let found = devices.iter().position(|(gi, ci, ..)| (*gi, *ci) == (place.instance, place.compute));
    Ok(found.ok_or(NvmlError::NOT_FOUND)? as u32)
}

fn mig(device: Handle) -> NvmlResult<MigTarget> {
    match target(device)? {
        Target::Mig(place) => Ok(place),
        Target::Gpu(_) => Err(NvmlError::INVALID_ARGUMENT),
    }
}

fn attributes(device: Handle) -> NvmlResult<Attributes> {
    let target = target(device)?;
    let Target::Mig(place) = target else { return Err(NvmlError::NOT_SUPPORTED) };
    let state = place.gpu.device();
    let (p, _) = state.instance(place.instance)?;
    let mut existing = state.compute_instances(place.instance)?;
    let (_, c, _) = existing.find(|(id, ..)| *id == place.compute).ok_or(NvmlError::NOT_FOUND)?;
    let memory_bytes = u64::from(state.capacity_granules[target.domains().start]) * GRANULE_BYTES;
    Ok(Attributes {
        multiprocessors: multiprocessors(place.gpu.model, p) * c.slices / p.compute_slices,
        copy_engines: p.copy_engines,
        decoders: p.decoders,
        encoders: p.encoders,
        jpeg: p.jpeg,
        ofa: p.ofa,
        gpu_instance_slices: p.compute_slices,
        compute_instance_slices: c.slices,
        memory_mib: memory_bytes >> 20,
    })
}

nvml_api! {
    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<u32>) {
        Ok(is_mig.set(u32::from(matches!(target(device)?, Target::Mig(_))))?)
    }

    fn nvmlDeviceGetGpuInstanceId(device: Handle, id: Out<u32>) { Ok(id.set(mig(device)?.instance as u32)?) }

    fn nvmlDeviceGetComputeInstanceId(device: Handle, id: Out<u32>) { Ok(id.set(mig(device)?.compute as u32)?) }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<u32>) {
        let profiles = table(gpu(device)?.model).map_or(&[][..], |t| t.profiles);
        Ok(count.set(profiles.iter().map(|p| p.max_instances).max().unwrap_or(0))?)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(device: Handle, index: u32, out: Out<Handle>) {
        let gpu = gpu(device)?;
        let devices = gpu.device().mig_devices();
        let numbered = devices.get(index as usize);
        let can_open = |gi: usize, ci: usize| nodes::can_open(gpu.sim.site(), gpu.index, gi, ci);
        let found = numbered.filter(|(gi, ci, ..)| can_open(*gi, *ci));
        let (instance, compute, ..) = found.ok_or(NvmlError::NOT_FOUND)?;
        Ok(out.set(of_mig_device(gpu.index, *instance, *compute))?)
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device: Handle, out: Out<Handle>) {
        Ok(out.set(of_gpu(mig(device)?.gpu.index))?)
    }

    fn nvmlDeviceGetAttributes(device: Handle, out: Out<Attributes>) { Ok(out.set(attributes(device)?)?) }

    fn nvmlDeviceGetAttributes_v2(device: Handle, out: Out<Attributes>) { Ok(out.set(attributes(device)?)?) }
}
