//! Memory limits of control groups, from driver 615 on. The structures have no version field.

use std::path::Path;

use super::handle::{Gpu, Handle, gpu};
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::{In, Out, Text};
use crate::state::groups::own_group;
use crate::state::{LimitRefusal, UNLIMITED};

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct NewLimits {
    name_space: *const std::ffi::c_char,
    soft_limit: u64,
    hard_limit: u64,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KnownLimits {
    name_space: *const std::ffi::c_char,
    soft_limit: u64,
    hard_limit: u64,
    current_used: u64,
}

impl From<LimitRefusal> for NvmlError {
    fn from(refusal: LimitRefusal) -> Self {
        match refusal {
            LimitRefusal::NoGroup => Self::OPERATING_SYSTEM,
            LimitRefusal::Full => Self::INSUFFICIENT_RESOURCES,
        }
    }
}

/// The GPU, if its driver and this machine's kernel have such limits. (Simulated: without a kernel that reports the group of a process there
/// are none; the real driver has a second backend for those.)
fn limited(device: Handle) -> NvmlResult<Gpu> {
    let gpu = gpu(device)?;
    if gpu.device().mig_enabled != 0 || !gpu.sim.lock().has_limits() || own_group().is_none() {
        return Err(NvmlError::NOT_SUPPORTED);
    }
    Ok(gpu)
}

fn is_root() -> bool {
    // SAFETY: `geteuid` takes no arguments and has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn set(device: Handle, limits: NewLimits) -> NvmlResult {
    let gpu = limited(device)?;
    if !is_root() {
        return Err(NvmlError::NO_PERMISSION);
    }
    let NewLimits { name_space, soft_limit, hard_limit } = limits;
    let name = Text(name_space);
    let group = Path::new(name.get()?);
    let is_cleared = (soft_limit, hard_limit) == (0, UNLIMITED);
    if soft_limit > hard_limit || !is_cleared && hard_limit > gpu.model.memory_bytes() {
        return Err(NvmlError::INVALID_ARGUMENT);
    }
    Ok(gpu.swept().set_limit(gpu.index, group, (soft_limit, hard_limit))?)
}

fn get(device: Handle, limits: Out<KnownLimits>) -> NvmlResult {
    let gpu = limited(device)?;
    let asked = limits.get()?;
    let name = Text(asked.name_space);
    let group = Path::new(name.get()?);
    let state = gpu.swept();
    let limit = state.limit_of(gpu.index, group)?;
    let (soft_limit, hard_limit) = limit.map_or((0, UNLIMITED), |limit| limit.bytes());
    let current_used = state.used_in(gpu.index, group)?;
    Ok(limits.set(KnownLimits { soft_limit, hard_limit, current_used, ..asked })?)
}

nvml_api! {
    fn nvmlDeviceSetMemoryLimits_v1(device: Handle, limits: In<NewLimits>) { set(device, limits.get()?) }

    fn nvmlDeviceGetMemoryLimits_v1(device: Handle, limits: Out<KnownLimits>) { get(device, limits) }
}
