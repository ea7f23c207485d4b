//! MIG mode and GPU instances.

use super::handle::{Gpu, Handle, MigTarget, gpu, gpu_instance, of_gpu, of_gpu_instance};
use super::process::list;
use super::settings::{Setting, is_on};
use super::versions::needs_profile_names;
use super::{NvmlError, NvmlResult, nvml_api, remembered, session, version_word};
use crate::ffi::{In, Out};
use crate::mig::{
    GpuInstanceProfile, MigRefusal, ModeChange, Names, memory_mib, multiprocessors, nodes, table,
};
use crate::models::Model;

/// `nvmlGpuInstancePlacement_t`; that of compute instances looks the same.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Placement {
    pub(super) start: u32,
    pub(super) size: u32,
}

/// The common fields of all versions of the profile structures, in order: id, slices, instances, multiprocessors, copy
/// engines, decoders, encoders, JPEG, OFA.
type Counts = [u32; 9];

/// `nvmlGpuInstanceProfileInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ProfileInfo {
    id: u32,
    is_p2p_supported: u32,
    counts: [u32; 8],
    memory_mib: u64,
}

/// `nvmlGpuInstanceProfileInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProfileInfoV2 {
    version: u32,
    id: u32,
    is_p2p_supported: u32,
    counts: [u32; 8],
    memory_mib: u64,
    name: [u8; 96],
}

/// `nvmlGpuInstanceProfileInfo_v3_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ProfileInfoV3 {
    version: u32,
    counts: Counts,
    memory_mib: u64,
    name: [u8; 96],
    capabilities: u32,
}

/// `nvmlGpuInstanceInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct InstanceInfo {
    device: Handle,
    id: u32,
    profile_id: u32,
    placement: Placement,
}

/// Profile numbers beyond the last that NVML knows; enumeration ends here.
const PROFILE_KINDS: u32 = 0x12;

/// A profile of a GPU by its NVML number. Works with MIG mode off too.
fn profile_of_kind(model: &'static Model, kind: u32) -> NvmlResult<&'static GpuInstanceProfile> {
    let table = table(model).ok_or(NvmlError::NOT_SUPPORTED)?;
    if kind >= PROFILE_KINDS {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    table.profiles.iter().find(|p| p.kind == kind).ok_or(NvmlError::NOT_SUPPORTED)
}

fn counts(model: &Model, p: &GpuInstanceProfile) -> Counts {
    let sm = multiprocessors(model, p);
    [p.id, p.compute_slices, p.max_instances, sm, p.copy_engines, p.decoders, p.encoders, p.jpeg, p.ofa]
}

/// A name in NVML's fixed field.
pub(super) fn name_field(prefix: &str, name: &str) -> [u8; 96] {
    let mut field = [0; 96];
    for (to, from) in field[..95].iter_mut().zip(prefix.bytes().chain(name.bytes())) {
        *to = from;
    }
    field
}

fn profile_info(device: Handle, kind: u32) -> NvmlResult<(Counts, u64, &'static GpuInstanceProfile)> {
    let gpu = gpu(device)?;
    let profile = profile_of_kind(gpu.model, kind)?;
    let table = table(gpu.model).ok_or(NvmlError::NOT_SUPPORTED)?;
    let memory = u64::from(memory_mib(gpu.model, table, profile));
    Ok((counts(gpu.model, profile), memory, profile))
}

fn after_id(counts: Counts) -> [u32; 8] {
    std::array::from_fn(|i| counts[i + 1])
}

/// Checks the capability `mig/config`.
pub(super) fn privileged() -> NvmlResult {
    if is_on(Setting::Unprivileged) { Err(NvmlError::NO_PERMISSION) } else { Ok(()) }
}

fn versioned_profile_info(device: Handle, kind: u32, out: Out<u32>) -> NvmlResult {
    needs_profile_names(gpu(device)?.sim)?;
    let (counts, memory_mib, profile) = profile_info(device, kind)?;
    let name = name_field("MIG ", profile.name);
    let version = out.get()?;
    if version == version_word::<ProfileInfoV2>(2) {
        let (id, counts) = (counts[0], after_id(counts));
        let info = ProfileInfoV2 { version, id, is_p2p_supported: 0, counts, memory_mib, name };
        Ok(Out(out.0.cast()).set(info)?)
    } else if version == version_word::<ProfileInfoV3>(3) {
        let info = ProfileInfoV3 { version, counts, memory_mib, name, capabilities: 0 };
        Ok(Out(out.0.cast()).set(info)?)
    } else {
        // Not the code for a wrong version: so says the library of 550.
        Err(NvmlError::INVALID_ARGUMENT)
    }
}

/// "Regardless of whether MIG is enabled or not", says the header.
fn possible_placements(device: Handle, profile_id: u32, out: Out<Placement>, count: Out<u32>) -> NvmlResult {
    let gpu = gpu(device)?;
    privileged()?;
    let profiles = table(gpu.model).ok_or(NvmlError::NOT_SUPPORTED)?.profiles;
    let profile = profiles.iter().find(|p| p.id == profile_id).ok_or(NvmlError::INVALID_ARGUMENT)?;
    let placements = profile.starts.iter().map(|&start| Placement { start, size: profile.size });
    if out.is_null() {
        return Ok(count.set(profile.starts.len() as u32)?);
    }
    list(count, out, placements.collect())
}

fn create(device: Handle, profile_id: u32, start: Option<u32>, out: Out<Handle>) -> NvmlResult {
    let gpu = gpu(device)?;
    privileged()?;
    if out.is_null() {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    let mut state = gpu.swept();
    let names = Names {
        backwards: is_on(Setting::IdsByGpu) && gpu.index % 2 == 1,
        by_pipe: is_on(Setting::UuidByPipe),
    };
    let id = state.devices[gpu.index].create_instance(profile_id, start, names)?;
    if nodes::make(gpu.sim.site(), gpu.index, id).is_err() {
        state.devices[gpu.index].destroy_instance(id)?;
        return Err(NvmlError::OPERATING_SYSTEM);
    }
    drop(state);
    remembered::forget(&gpu, id);
    remembered::note(&gpu, id);
    Ok(out.set(of_gpu_instance(gpu.index, id))?)
}

/// No other process has a node of the instance open.
pub(super) fn not_subscribed(place: &MigTarget) -> NvmlResult {
    let MigTarget { gpu, instance, .. } = place;
    let opened =
        is_on(Setting::OpenCapability) && nodes::is_open_elsewhere(gpu.sim.site(), gpu.index, *instance);
    if opened { Err(NvmlError::IN_USE) } else { Ok(()) }
}

/// At once on an unused GPU; else, or where a reset is needed and not possible, it stays pending for the returned reason.
fn set_mode(gpu: &Gpu, on: bool) -> NvmlResult<i32> {
    let resets = gpu.device().resets_for_mig();
    if resets && is_on(Setting::NoReset) {
        let device = &mut gpu.swept().devices[gpu.index];
        device.mig_pending = u32::from(on);
        return Ok(if device.mig_pending == device.mig_enabled { 0 } else { RESET_REQUIRED });
    }
    let opened = resets && is_on(Setting::AmpereReset) && session::is_open_elsewhere(gpu.sim);
    let result = gpu.swept().devices[gpu.index].set_mig_mode(on, opened)?;
    Ok(if result == ModeChange::Done { 0 } else { NvmlError::IN_USE.0 })
}

/// `NVML_ERROR_RESET_REQUIRED`
const RESET_REQUIRED: i32 = 16;

nvml_api! {
    fn nvmlDeviceGetMigMode(device: Handle, current: Out<u32>, pending: Out<u32>) {
        let gpu = gpu(device)?;
        table(gpu.model).ok_or(NvmlError::NOT_SUPPORTED)?;
        let state = gpu.device();
        current.set(state.mig_enabled)?;
        Ok(pending.set(state.mig_pending)?)
    }

    fn nvmlDeviceSetMigMode(device: Handle, mode: u32, activation: Out<i32>) {
        let gpu = gpu(device)?;
        if mode > 1 {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        if let Some(reason) = super::faults::activation(gpu.sim, gpu.index) {
            gpu.swept().devices[gpu.index].mig_pending = mode;
            return Ok(activation.set(reason)?);
        }
        table(gpu.model).ok_or(NvmlError::NOT_SUPPORTED)?;
        Ok(activation.set(set_mode(&gpu, mode == 1)?)?)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(device: Handle, kind: u32, info: Out<ProfileInfo>) {
        let (counts, memory_mib, _) = profile_info(device, kind)?;
        let (id, counts) = (counts[0], after_id(counts));
        Ok(info.set(ProfileInfo { id, is_p2p_supported: 0, counts, memory_mib })?)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(device: Handle, kind: u32, info: Out<u32>) {
        versioned_profile_info(device, kind, info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: Handle, profile_id: u32, placements: Out<Placement>, count: Out<u32>,
    ) {
        possible_placements(device, profile_id, placements, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: Handle, profile_id: u32, placements: Out<Placement>, count: Out<u32>,
    ) {
        possible_placements(device, profile_id, placements, count)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(device: Handle, profile_id: u32, count: Out<u32>) {
        let gpu = gpu(device)?;
        let state = gpu.device();
        Ok(count.set(state.remaining(state.profile(profile_id)?))?)
    }

    fn nvmlDeviceCreateGpuInstance(device: Handle, profile_id: u32, instance: Out<Handle>) {
        create(device, profile_id, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: Handle, profile_id: u32, placement: In<Placement>, instance: Out<Handle>,
    ) {
        let gpu = gpu(device)?;
        let Placement { start, size } = placement.get()?;
        if gpu.device().profile(profile_id)?.size != size {
            return Err(NvmlError::INVALID_ARGUMENT);
        }
        create(device, profile_id, Some(start), instance)
    }

    fn nvmlGpuInstanceDestroy(instance: Handle) {
        let place = gpu_instance(instance)?;
        privileged()?;
        not_subscribed(&place)?;
        place.gpu.swept().devices[place.gpu.index].destroy_instance(place.instance)?;
        remembered::forget(&place.gpu, place.instance);
        Ok(())
    }

    /// The buffer has space for as many as the profile allows; `count` is written only.
    fn nvmlDeviceGetGpuInstances(device: Handle, profile_id: u32, instances: Out<Handle>, count: Out<u32>) {
        let gpu = gpu(device)?;
        let state = gpu.device();
        state.profile(profile_id)?;
        let of_profile = state.instances().filter(|(_, p, _)| p.id == profile_id);
        let ids: Vec<usize> = of_profile.map(|(id, ..)| id).collect();
        ids.iter().for_each(|id| remembered::note(&gpu, *id));
        let handles: Vec<Handle> = ids.iter().map(|id| of_gpu_instance(gpu.index, *id)).collect();
        count.set(handles.len() as u32)?;
        if handles.is_empty() { Ok(()) } else { Ok(instances.fill(handles.len(), handles)?) }
    }

    fn nvmlDeviceGetGpuInstanceById(device: Handle, id: u32, instance: Out<Handle>) {
        let gpu = gpu(device)?;
        let state = gpu.device();
        if state.mig_enabled == 0 {
            return Err(NvmlError::NOT_SUPPORTED);
        }
        state.instance(id as usize).map_err(|_: MigRefusal| NvmlError::NOT_FOUND)?;
        remembered::note(&gpu, id as usize);
        Ok(instance.set(of_gpu_instance(gpu.index, id as usize))?)
    }

    /// As this process remembers it.
    fn nvmlGpuInstanceGetInfo(instance: Handle, info: Out<InstanceInfo>) {
        let place = gpu_instance(instance)?;
        let remembered::FirstSeen { profile, start } = remembered::of(&place)?;
        let placement = Placement { start, size: profile.size };
        let (device, id) = (of_gpu(place.gpu.index), place.instance as u32);
        Ok(info.set(InstanceInfo { device, id, profile_id: profile.id, placement })?)
    }
}
