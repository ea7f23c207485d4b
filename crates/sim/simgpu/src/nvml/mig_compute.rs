//! Compute instances.

use super::handle::{
    Handle, MigTarget, compute_instance, gpu_instance, of_compute_instance, of_gpu, of_gpu_instance,
    of_mig_device,
};
use super::mig::{Placement, name_field, not_subscribed, privileged};
use super::process::list;
use super::settings::{Setting, is_on};
use super::{NvmlError, NvmlResult, nvml_api, version_word};
use crate::ffi::{In, Out};
use crate::mig::{ComputeInstanceProfile, GpuInstanceProfile, multiprocessors};

/// The common fields of all versions of the profile structures, in order: id, slices, instances, multiprocessors, and
/// the GPU instance's copy engines, decoders, encoders, JPEG, OFA.
type Counts = [u32; 9];

/// `nvmlComputeInstanceProfileInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProfileInfoV2 {
    version: u32,
    counts: Counts,
    name: [u8; 96],
}

/// `nvmlComputeInstanceProfileInfo_v3_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProfileInfoV3 {
    version: u32,
    counts: Counts,
    name: [u8; 96],
    capabilities: u32,
}

/// `nvmlComputeInstanceInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InstanceInfo {
    device: Handle,
    gpu_instance: Handle,
    id: u32,
    profile_id: u32,
    placement: Placement,
}

const PROFILE_KINDS: u32 = 9;

/// Shared engines are the only ones there are.
const ENGINES_SHARED: u32 = 0;

/// `NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1`.
const REV1: u32 = 7;

/// The number of a compute profile in this GPU instance from its number in the table, and back.
fn numbered(place: &MigTarget, gi: &GpuInstanceProfile, number: u32) -> u32 {
    let differs = is_on(Setting::Rev1Compute) && gi.compute_slices == 1 && place.instance % 2 == 1;
    if differs && (number == 0 || number == REV1) { REV1 - number } else { number }
}

fn profile_info(
    instance: Handle,
    kind: u32,
    engines: u32,
) -> NvmlResult<(Counts, &'static ComputeInstanceProfile)> {
    let place = gpu_instance(instance)?;
    if kind >= PROFILE_KINDS || engines != ENGINES_SHARED {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    let device = place.gpu.device();
    let (gi, _) = device.instance(place.instance)?;
    let wanted = numbered(&place, gi, kind);
    let profile = gi.compute.iter().find(|c| c.id == wanted).ok_or(NvmlError::NOT_SUPPORTED)?;
    let sm = multiprocessors(place.gpu.model, gi) * profile.slices / gi.compute_slices;
    let counts = [
        kind,
        profile.slices,
        profile.max_instances,
        sm,
        gi.copy_engines,
        gi.decoders,
        gi.encoders,
        gi.jpeg,
        gi.ofa,
    ];
    Ok((counts, profile))
}

/// Free slices for a profile in a GPU instance: where the next would start, how many more fit, and their size.
fn free_for(place: &MigTarget, profile_id: u32) -> NvmlResult<(Option<u32>, u32, u32)> {
    let device = place.gpu.device();
    let number = numbered(place, device.instance(place.instance)?.0, profile_id);
    let (_, profile) = device.compute_profile(place.instance, number)?;
    let (start, more) = device.free_compute(place.instance, profile)?;
    Ok((start, more, profile.slices))
}

fn create(instance: Handle, profile_id: u32, out: Out<Handle>) -> NvmlResult {
    let place = gpu_instance(instance)?;
    privileged()?;
    if out.is_null() {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    let mut state = place.gpu.swept();
    let number = numbered(&place, state.devices[place.gpu.index].instance(place.instance)?.0, profile_id);
    let id = state.devices[place.gpu.index].create_compute(place.instance, number)?;
    Ok(out.set(of_compute_instance(place.gpu.index, place.instance, id))?)
}

fn info(instance: Handle, mig_device: bool) -> NvmlResult<InstanceInfo> {
    let place = compute_instance(instance)?;
    let MigTarget { gpu, instance, compute } = place;
    let device = gpu.device();
    let mut existing = device.compute_instances(instance)?;
    let found = existing.find(|(id, ..)| *id == compute).ok_or(NvmlError::INVALID_ARGUMENT)?;
    Ok(InstanceInfo {
        device: if mig_device { of_mig_device(gpu.index, instance, compute) } else { of_gpu(gpu.index) },
        gpu_instance: of_gpu_instance(gpu.index, instance),
        id: compute as u32,
        profile_id: numbered(&place, device.instance(instance)?.0, found.1.id),
        placement: Placement { start: found.2.start, size: found.1.slices },
    })
}

nvml_api! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(instance: Handle, kind: u32, engines: u32, out: Out<Counts>) {
        Ok(out.set(profile_info(instance, kind, engines)?.0)?)
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance: Handle, kind: u32, engines: u32, out: Out<u32>) {
        let (counts, profile) = profile_info(instance, kind, engines)?;
        let name = name_field("MIG ", profile.name);
        let version = out.get()?;
        if version == version_word::<ProfileInfoV2>(2) {
            Ok(Out(out.0.cast()).set(ProfileInfoV2 { version, counts, name })?)
        } else if version == version_word::<ProfileInfoV3>(3) {
            Ok(Out(out.0.cast()).set(ProfileInfoV3 { version, counts, name, capabilities: 0 })?)
        } else {
            Err(NvmlError::INVALID_ARGUMENT)
        }
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance: Handle, profile_id: u32, count: Out<u32>) {
        Ok(count.set(free_for(&gpu_instance(instance)?, profile_id)?.1)?)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: Handle, profile_id: u32, placements: Out<Placement>, count: Out<u32>,
    ) {
        let (start, _, size) = free_for(&gpu_instance(instance)?, profile_id)?;
        let places: Vec<Placement> = start.map(|start| Placement { start, size }).into_iter().collect();
        if placements.is_null() {
            return Ok(count.set(places.len() as u32)?);
        }
        list(count, placements, places)
    }

    fn nvmlGpuInstanceCreateComputeInstance(instance: Handle, profile_id: u32, out: Out<Handle>) {
        create(instance, profile_id, out)
    }

    /// The place must be the one the driver would choose.
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: Handle, profile_id: u32, placement: In<Placement>, out: Out<Handle>,
    ) {
        let (start, _, size) = free_for(&gpu_instance(instance)?, profile_id)?;
        let wanted = placement.get()?;
        if start.is_some_and(|start| wanted.start != start || wanted.size != size) {
            return Err(NvmlError::INSUFFICIENT_RESOURCES);
        }
        create(instance, profile_id, out)
    }

    fn nvmlComputeInstanceDestroy(instance: Handle) {
        let place = compute_instance(instance)?;
        privileged()?;
        not_subscribed(&place)?;
        let MigTarget { gpu, instance, compute } = place;
        Ok(gpu.swept().devices[gpu.index].destroy_compute(instance, compute)?)
    }

    /// The buffer has space for as many as the profile allows; `count` is written only.
    fn nvmlGpuInstanceGetComputeInstances(instance: Handle, profile_id: u32, out: Out<Handle>, count: Out<u32>) {
        let place = gpu_instance(instance)?;
        let MigTarget { gpu, instance, .. } = place;
        let device = gpu.device();
        let number = numbered(&place, device.instance(instance)?.0, profile_id);
        // "Not supported" is the header's word for a profile that this instance has not.
        device.compute_profile(instance, number).map_err(|_| NvmlError::NOT_SUPPORTED)?;
        let of_profile = device.compute_instances(instance)?.filter(|(_, p, _)| p.id == number);
        let handles: Vec<Handle> = of_profile.map(|(id, ..)| of_compute_instance(gpu.index, instance, id)).collect();
        count.set(handles.len() as u32)?;
        if handles.is_empty() { Ok(()) } else { Ok(out.fill(handles.len(), handles)?) }
    }

    fn nvmlGpuInstanceGetComputeInstanceById(instance: Handle, id: u32, out: Out<Handle>) {
        let MigTarget { gpu, instance, .. } = gpu_instance(instance)?;
        let exists = gpu.device().compute_instances(instance)?.any(|(found, ..)| found == id as usize);
        if !exists {
            return Err(NvmlError::NOT_FOUND);
        }
        Ok(out.set(of_compute_instance(gpu.index, instance, id as usize))?)
    }

    /// The first form gives the GPU, the second the MIG device.
    fn nvmlComputeInstanceGetInfo(instance: Handle, out: Out<InstanceInfo>) { Ok(out.set(info(instance, false)?)?) }

    fn nvmlComputeInstanceGetInfo_v2(instance: Handle, out: Out<InstanceInfo>) { Ok(out.set(info(instance, true)?)?) }
}
