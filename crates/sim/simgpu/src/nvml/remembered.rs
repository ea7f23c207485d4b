//! The profiles of GPU instances that a process remembers: see `remembered_instances` in the table of settings.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::handle::{Gpu, MigTarget};
use super::settings::{Setting, is_on};
use super::{NvmlError, NvmlResult};
use crate::mig::GpuInstanceProfile;

/// Profile and first memory slice, as first seen.
#[derive(Clone, Copy)]
pub(super) struct FirstSeen {
    pub(super) profile: &'static GpuInstanceProfile,
    pub(super) start: u32,
}

/// By GPU and GPU instance id.
static SEEN: Mutex<BTreeMap<(usize, usize), FirstSeen>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<(usize, usize), FirstSeen>> {
    SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn real(gpu: &Gpu, id: usize) -> NvmlResult<FirstSeen> {
    let device = gpu.device();
    let (profile, found) = device.instance(id).map_err(NvmlError::from)?;
    Ok(FirstSeen { profile, start: found.start })
}

/// An instance is listed, or looked up by id; one that is known stays what it was.
pub(super) fn note(gpu: &Gpu, id: usize) {
    if let Ok(seen) = real(gpu, id) {
        all().entry((gpu.index, id)).or_insert(seen);
    }
}

/// This process has made it, or destroyed it.
pub(super) fn forget(gpu: &Gpu, id: usize) {
    all().remove(&(gpu.index, id));
}

/// NVML is shut down.
pub(super) fn forget_all() {
    all().clear();
}

/// The profile that this process remembers of an existing instance.
pub(super) fn of(place: &MigTarget) -> NvmlResult<FirstSeen> {
    let now = real(&place.gpu, place.instance)?;
    if !is_on(Setting::RememberedInstances) {
        return Ok(now);
    }
    Ok(*all().entry((place.gpu.index, place.instance)).or_insert(now))
}
