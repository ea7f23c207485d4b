//! MIG over NVML. Handles of instances are looked up by id each time: an instance that was destroyed meanwhile is then an error
//! and not another instance.

use std::ffi::c_uint;
use std::mem::{size_of, zeroed};

use cantle_mig::{Engines, Profile, Table};
use cantle_model::GpuUuid;
use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstanceProfileInfo_t, nvmlDevice_t,
    nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t,
};

use super::{NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, Session, text, until_nul};
use crate::{Activation, DriverError, GpuInstance, Mig, Result};

/// `NVML_DEVICE_ARCH_HOPPER`: from this one on MIG mode changes without a reset.
const HOPPER: c_uint = 9;
/// `NVML_DEVICE_ARCH_UNKNOWN`
const ARCHITECTURE_UNKNOWN: c_uint = u32::MAX;
const MIG_ON: c_uint = 1;
const NVML_ERROR_RESET_REQUIRED: u32 = 16;
/// Engines of a GPU instance are shared by its compute instances; there is no other kind.
const ENGINES_SHARED: c_uint = 0;
/// Upper bound for a list of profiles, for any answer of a driver.
const PROFILES_MAX: c_uint = 128;

/// NVML's profile numbers are counted up until it says that there are no more; those in between may not be offered.
fn offered<T>(answer: Result<T>) -> Option<Result<Option<T>>> {
    match answer {
        Ok(profile) => Some(Ok(Some(profile))),
        Err(DriverError::Nvml { code: NVML_ERROR_INVALID_ARGUMENT, .. }) => None,
        Err(DriverError::Nvml { code: NVML_ERROR_NOT_SUPPORTED, .. }) => Some(Ok(None)),
        Err(error) => Some(Err(error)),
    }
}

/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1`, the one profile with media engines that drivers without names have.
const WITH_MEDIA: c_uint = 7;

/// The name that newer drivers would give: memory in whole GB of what the GPU is sold with, by eighths.
fn profile_name(number: c_uint, info: &nvmlGpuInstanceProfileInfo_v2_t, gpu_bytes: u64) -> String {
    let eighths = ((info.memorySizeMB << 20) * 8).div_ceil(gpu_bytes.max(1));
    let gb = (eighths * gpu_bytes.div_ceil(1 << 30) + 4) / 8;
    let suffix = if number == WITH_MEDIA { "+me" } else { "" };
    format!("{}g.{gb}gb{suffix}", info.sliceCount)
}

impl Session {
    fn profile(&self, gpu: &GpuUuid, number: c_uint) -> Result<nvmlGpuInstanceProfileInfo_v2_t> {
        // SAFETY: a structure of integers and characters, for which zero bytes are valid.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
        info.version = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as c_uint | 2 << 24;
        let handle = self.device(gpu)?;
        // The versions of the structure share their address and their first field.
        let out = &raw mut info;
        match nvml!(self, Some(gpu), nvmlDeviceGetGpuInstanceProfileInfoV(handle, number, out)) {
            Err(error) if error.is_too_old() => self.nameless_profile(gpu, handle, number),
            answer => answer.map(|()| info),
        }
    }

    /// Driver 470 tells all but a profile's name.
    fn nameless_profile(
        &self,
        gpu: &GpuUuid,
        handle: nvmlDevice_t,
        number: c_uint,
    ) -> Result<nvmlGpuInstanceProfileInfo_v2_t> {
        // SAFETY: a structure of integers, for which zero bytes are valid.
        let mut old: nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
        nvml!(self, Some(gpu), nvmlDeviceGetGpuInstanceProfileInfo(handle, number, &raw mut old))?;
        // SAFETY: a structure of integers and characters, for which zero bytes are valid.
        let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
        (info.id, info.sliceCount, info.instanceCount) = (old.id, old.sliceCount, old.instanceCount);
        info.memorySizeMB = old.memorySizeMB;
        (info.decoderCount, info.encoderCount) = (old.decoderCount, old.encoderCount);
        (info.jpegCount, info.ofaCount) = (old.jpegCount, old.ofaCount);
        Ok(info)
    }

    /// Memory of the profile with the most, which is that of (nearly) all of the GPU.
    pub(super) fn largest_profile_bytes(&self, handle: nvmlDevice_t, gpu: &GpuUuid) -> Result<u64> {
        let mut largest = 0;
        for number in 0..PROFILES_MAX {
            // SAFETY: a structure of integers, for which zero bytes are valid.
            let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
            let asked =
                nvml!(self, Some(gpu), nvmlDeviceGetGpuInstanceProfileInfo(handle, number, &raw mut info));
            match offered(asked) {
                None => break,
                Some(answer) => largest = answer?.map_or(largest, |()| largest.max(info.memorySizeMB)),
            }
        }
        Ok(largest << 20)
    }

    fn placements(&self, gpu: &GpuUuid, profile: c_uint) -> Result<Vec<nvmlGpuInstancePlacement_t>> {
        let handle = self.device(gpu)?;
        let mut count: c_uint = 0;
        let none = std::ptr::null_mut();
        nvml!(
            self,
            Some(gpu),
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, profile, none, &raw mut count)
        )?;
        let mut placements = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        let buffer = placements.as_mut_ptr();
        nvml!(
            self,
            Some(gpu),
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, profile, buffer, &raw mut count)
        )?;
        placements.truncate(count as usize);
        Ok(placements)
    }

    fn read_table(&self, gpu: &GpuUuid) -> Result<Table> {
        let (mut profiles, mut units) = (Vec::new(), 0);
        for number in 0..PROFILES_MAX {
            let Some(info) = offered(self.profile(gpu, number)) else { break };
            let Some(info) = info? else { continue };
            let placements = self.placements(gpu, info.id)?;
            let Some(size) = placements.first().map(|first| first.size) else { continue };
            let end = placements.iter().map(|one| one.start + one.size).max().unwrap_or(0);
            units = units.max(end);
            let mut name = until_nul(&info.name);
            if name.is_empty() {
                name = profile_name(number, &info, self.devices[gpu].gpu.memory_bytes);
            }
            profiles.push(Profile {
                name: name.strip_prefix("MIG ").unwrap_or(&name).to_owned(),
                id: info.id,
                compute_slices: info.sliceCount,
                size,
                starts: placements.iter().map(|one| one.start).collect(),
                max_instances: info.instanceCount,
                memory_bytes: info.memorySizeMB << 20,
                engines: Engines([info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount]),
            });
        }
        Ok(Table { units, profiles, fixed: false })
    }

    fn instances_of(&self, gpu: &GpuUuid, profile: &Profile) -> Result<Vec<nvmlGpuInstance_t>> {
        let handle = self.device(gpu)?;
        let mut found = vec![std::ptr::null_mut(); profile.max_instances as usize];
        let (mut count, buffer): (c_uint, _) = (0, found.as_mut_ptr());
        nvml!(self, Some(gpu), nvmlDeviceGetGpuInstances(handle, profile.id, buffer, &raw mut count))?;
        found.truncate(count as usize);
        Ok(found)
    }

    fn instance(&self, gpu: &GpuUuid, id: u32) -> Result<nvmlGpuInstance_t> {
        let (handle, mut instance) = (self.device(gpu)?, std::ptr::null_mut());
        nvml!(self, Some(gpu), nvmlDeviceGetGpuInstanceById(handle, id, &raw mut instance))?;
        Ok(instance)
    }

    /// Profiles of compute instances that a GPU instance can be cut into. They may differ between GPU instances of one profile: which one
    /// of two profiles with a slice is valid (`1g.37gb`, `1g.37gb rev1`) is known once the GPU instance exists.
    fn compute_profiles(
        &self,
        gpu: &GpuUuid,
        instance: nvmlGpuInstance_t,
    ) -> Result<Vec<nvmlComputeInstanceProfileInfo_t>> {
        let one = |number| {
            // SAFETY: a structure of integers, for which zero bytes are valid.
            let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
            let out = &raw mut info;
            nvml!(
                self,
                Some(gpu),
                nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, ENGINES_SHARED, out)
            )?;
            Ok(info)
        };
        let all: Result<Vec<_>> = (0..PROFILES_MAX).map_while(|number| offered(one(number))).collect();
        Ok(all?.into_iter().flatten().collect())
    }

    fn compute_instances(
        &self,
        gpu: &GpuUuid,
        instance: nvmlGpuInstance_t,
    ) -> Result<Vec<nvmlComputeInstance_t>> {
        let mut all = Vec::new();
        for profile in self.compute_profiles(gpu, instance)? {
            let mut found = vec![std::ptr::null_mut(); profile.instanceCount as usize];
            let (mut count, buffer): (c_uint, _) = (0, found.as_mut_ptr());
            let id = profile.id;
            nvml!(self, Some(gpu), nvmlGpuInstanceGetComputeInstances(instance, id, buffer, &raw mut count))?;
            found.truncate(count as usize);
            all.extend(found);
        }
        Ok(all)
    }

    /// Number and device's name of a compute instance. The instance reports them itself: a search through all MIG devices
    /// takes seconds on a busy machine.
    fn compute_info(&self, gpu: &GpuUuid, compute: nvmlComputeInstance_t) -> Result<(u32, String)> {
        // SAFETY: a structure of raw pointers and integers, for which zero bytes are valid.
        let mut info: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
        nvml!(self, Some(gpu), nvmlComputeInstanceGetInfo_v2(compute, &raw mut info))?;
        let device: nvmlDevice_t = info.device;
        let name = text(|buf, len| nvml!(self, Some(gpu), nvmlDeviceGetUUID(device, buf, len)))?;
        Ok((info.id, name))
    }

    /// The GPU instance and the compute instance whose device has this name.
    pub(crate) fn instance_named(&self, gpu: &GpuUuid, name: &str) -> Result<(u32, u32)> {
        let all = self.gpu_instances(gpu)?;
        let found = all.iter().find(|instance| instance.devices.iter().any(|device| device == name));
        let found = found.ok_or_else(|| DriverError::NoSuchInstance(name.to_owned()))?;
        let handle = self.instance(gpu, found.id)?;
        for compute in self.compute_instances(gpu, handle)? {
            let (id, device) = self.compute_info(gpu, compute)?;
            if device == name {
                return Ok((found.id, id));
            }
        }
        Err(DriverError::NoSuchInstance(name.to_owned()))
    }

    fn info(&self, gpu: &GpuUuid, instance: nvmlGpuInstance_t) -> Result<nvmlGpuInstanceInfo_t> {
        // SAFETY: a structure of a raw pointer and integers, for which zero bytes are valid.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        nvml!(self, Some(gpu), nvmlGpuInstanceGetInfo(instance, &raw mut info))?;
        Ok(info)
    }

    /// An instance that was listed under `profile`. NVML's information about it may be that of an earlier instance with its id.
    fn describe(&self, gpu: &GpuUuid, instance: nvmlGpuInstance_t, profile: &Profile) -> Result<GpuInstance> {
        let info = self.info(gpu, instance)?;
        let nvmlGpuInstancePlacement_t { start, size } = info.placement;
        if info.profileId != profile.id || size != profile.size {
            return Err(DriverError::Contradiction { gpu: gpu.clone(), instance: info.id });
        }
        let compute = self.compute_instances(gpu, instance)?;
        let name = |compute| Ok(self.compute_info(gpu, compute)?.1);
        let devices = compute.into_iter().map(name).collect::<Result<_>>()?;
        Ok(GpuInstance { id: info.id, profile_id: profile.id, start, size, devices })
    }

    /// The profiles, if they have been read.
    pub(crate) fn known_table(&self, gpu: &GpuUuid) -> Option<Table> {
        self.devices.get(gpu)?.table.get().cloned()
    }

    /// Keeps profiles that another process has read.
    pub(crate) fn keep_table(&self, gpu: &GpuUuid, table: Table) -> Table {
        self.devices.get(gpu).map_or(table.clone(), |device| device.table.get_or_init(|| table).clone())
    }
}

impl Mig for Session {
    fn mig_table(&self, gpu: &GpuUuid) -> Result<Option<Table>> {
        if !self.mig_mode(self.device(gpu)?, gpu)? {
            return Ok(None);
        }
        // The profiles of a GPU do not change while its driver is loaded, and reading them takes about sixty calls.
        let cached = &self.devices[gpu].table;
        if let Some(table) = cached.get() {
            return Ok(Some(table.clone()));
        }
        let table = self.read_table(gpu)?;
        Ok(Some(cached.get_or_init(|| table).clone()))
    }

    fn gpu_instances(&self, gpu: &GpuUuid) -> Result<Vec<GpuInstance>> {
        let Some(table) = self.mig_table(gpu)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for profile in &table.profiles {
            for instance in self.instances_of(gpu, profile)? {
                match self.describe(gpu, instance, profile) {
                    Ok(instance) => found.push(instance),
                    // Destroyed between the two calls.
                    Err(error) if error.is_gone() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        found.sort_by_key(|instance| instance.start);
        Ok(found)
    }

    fn mig_devices(&self, gpu: &GpuUuid) -> Result<Vec<(u32, String)>> {
        let handle = self.device(gpu)?;
        if !self.mig_mode(handle, gpu)? {
            return Ok(Vec::new());
        }
        let mut most: c_uint = 0;
        nvml!(self, Some(gpu), nvmlDeviceGetMaxMigDeviceCount(handle, &raw mut most))?;
        let name = |number| {
            let mut device: nvmlDevice_t = std::ptr::null_mut();
            nvml!(self, Some(gpu), nvmlDeviceGetMigDeviceHandleByIndex(handle, number, &raw mut device))?;
            text(|buf, len| nvml!(self, Some(gpu), nvmlDeviceGetUUID(device, buf, len)))
        };
        let named = (0..most).map(|number| Ok((number, name(number)?)));
        named.filter(|named| !named.as_ref().is_err_and(DriverError::is_gone)).collect()
    }

    fn create_gpu_instance(&self, gpu: &GpuUuid, profile: u32, start: u32, size: u32) -> Result<u32> {
        let (handle, mut instance) = (self.device(gpu)?, std::ptr::null_mut());
        let placement = nvmlGpuInstancePlacement_t { start, size };
        let (at, out) = (&raw const placement, &raw mut instance);
        nvml!(self, Some(gpu), nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, at, out))?;
        Ok(self.info(gpu, instance)?.id)
    }

    fn create_compute_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<String> {
        let handle = self.instance(gpu, instance)?;
        let profiles = self.compute_profiles(gpu, handle)?;
        // The one that takes the whole GPU instance: the most slices, and of two with as many the one with more multiprocessors
        // (the full one of a double-memory 1g is a profile of its own).
        let whole = profiles.iter().max_by_key(|profile| (profile.sliceCount, profile.multiprocessorCount));
        let profile = whole.map_or(0, |profile| profile.id);
        let mut compute = std::ptr::null_mut();
        nvml!(self, Some(gpu), nvmlGpuInstanceCreateComputeInstance(handle, profile, &raw mut compute))?;
        Ok(self.compute_info(gpu, compute)?.1)
    }

    fn destroy_compute_instances(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        let handle = self.instance(gpu, instance)?;
        for compute in self.compute_instances(gpu, handle)? {
            nvml!(self, Some(gpu), nvmlComputeInstanceDestroy(compute))?;
        }
        Ok(())
    }

    fn destroy_gpu_instance(&self, gpu: &GpuUuid, instance: u32) -> Result<()> {
        let handle = self.instance(gpu, instance)?;
        nvml!(self, Some(gpu), nvmlGpuInstanceDestroy(handle))
    }

    fn switches_mig(&self, gpu: &GpuUuid) -> Result<bool> {
        let mut architecture: c_uint = 0;
        nvml!(self, Some(gpu), nvmlDeviceGetArchitecture(self.device(gpu)?, &raw mut architecture))?;
        Ok((HOPPER..ARCHITECTURE_UNKNOWN).contains(&architecture))
    }

    fn set_mig_mode(&self, gpu: &GpuUuid, on: bool) -> Result<Activation> {
        let handle = self.device(gpu)?;
        let (mut current, mut pending): (c_uint, c_uint) = (0, 0);
        nvml!(self, Some(gpu), nvmlDeviceGetMigMode(handle, &raw mut current, &raw mut pending))?;
        if (current == MIG_ON) == on {
            return Ok(Activation::Done);
        }
        if !self.switches_mig(gpu)? {
            return Ok(Activation::ResetRequired);
        }
        let mode = if on { MIG_ON } else { 0 };
        let mut activation = 0;
        nvml!(self, Some(gpu), nvmlDeviceSetMigMode(handle, mode, &raw mut activation))?;
        if activation == 0 && self.mig_mode(handle, gpu)? == on {
            return Ok(Activation::Done);
        }
        // A pending change takes effect when the driver is next loaded, long after the request.
        let mut back = 0;
        nvml!(self, Some(gpu), nvmlDeviceSetMigMode(handle, current, &raw mut back))?;
        Ok(if activation == NVML_ERROR_RESET_REQUIRED {
            Activation::ResetRequired
        } else {
            Activation::InUse
        })
    }
}
