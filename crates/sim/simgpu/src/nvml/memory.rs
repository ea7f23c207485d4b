//! The memory figures of GPUs and instances.

use super::handle::{Handle, Target, target};
use super::settings::{Setting, is_on};
use super::{NvmlError, nvml_api, version_word};
use crate::GRANULE_BYTES;
use crate::ffi::Out;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemoryV2 {
    version: u32,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// The installed memory, the allocated part, and the driver's reserve.
fn memory(device: Handle) -> super::NvmlResult<(Memory, u64)> {
    let target = target(device)?;
    if matches!(target, Target::Gpu(gpu) if gpu.device().mig_enabled != 0) && is_on(Setting::Unprivileged) {
        return Err(NvmlError::NO_PERMISSION);
    }
    let (total, reserved) = match target {
        Target::Gpu(gpu) => (gpu.model.memory_bytes(), gpu.device().reserved_bytes()),
        Target::Mig(place) => {
            (u64::from(place.gpu.device().capacity_granules[target.domains().start]) * GRANULE_BYTES, 0)
        }
    };
    let used = target.used_granules() * GRANULE_BYTES;
    Ok((Memory { total, free: total.saturating_sub(used + reserved), used }, reserved))
}

nvml_api! {
    /// The first version counts what the driver keeps for itself as used.
    fn nvmlDeviceGetMemoryInfo(device: Handle, info: Out<Memory>) {
        let (memory, reserved) = memory(device)?;
        Ok(info.set(Memory { used: memory.used + reserved, ..memory })?)
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, info: Out<MemoryV2>) {
        let version = version_word::<MemoryV2>(2);
        if info.get()?.version != version {
            return Err(NvmlError::ARGUMENT_VERSION_MISMATCH);
        }
        let (Memory { total, free, used }, reserved) = memory(device)?;
        if let Target::Gpu(gpu) = target(device)?
            && let Some((limit, held)) = gpu.swept().own_limit(gpu.index)
        {
            // Inside of the partition it is all there is.
            let (used, free) = (held, limit.saturating_sub(held).min(free));
            return Ok(info.set(MemoryV2 { version, total: limit, reserved: 0, free, used })?);
        }
        Ok(info.set(MemoryV2 { version, total, reserved, free, used })?)
    }

    /// Simulated: a window as large as the memory, with one granule in use (`nvmlBAR1Memory_t` is total, free, used).
    fn nvmlDeviceGetBAR1MemoryInfo(device: Handle, info: Out<Memory>) {
        let total = memory(device)?.0.total.next_power_of_two();
        Ok(info.set(Memory { total, free: total - GRANULE_BYTES, used: GRANULE_BYTES })?)
    }
}
