//! Reports the slice as the memory of the GPU.

use core::ffi::c_uint;

use cantle_ledger::GRANULE_BYTES;

use super::{Device, SUCCESS};
use crate::cuda::alloc::export;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::device;
use crate::cuda::pool::reserved;
use crate::function::Status;

/// The two widths of sizes in the API; what does not fit is the largest that does.
pub(super) trait Size: Copy {
    fn read(self) -> u64;
    fn from_bytes(bytes: u64) -> Self;
}

impl Size for usize {
    fn read(self) -> u64 {
        self as u64
    }

    fn from_bytes(bytes: u64) -> Self {
        bytes as Self
    }
}

impl Size for c_uint {
    fn read(self) -> u64 {
        u64::from(self)
    }

    fn from_bytes(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

/// Lowers a figure of the driver's to what the slice allows. The program may have passed a null pointer.
///
/// # Safety
/// `figure` is null, or the driver has written to it.
unsafe fn lower<S: Size>(figure: *mut S, at_most: u64) {
    if !figure.is_null() {
        // SAFETY: not null, so by this function's condition it may be read and replaced.
        unsafe { *figure = S::from_bytes((*figure).read().min(at_most)) };
    }
}

pub(super) unsafe fn memory_info<S: Size>(
    real: unsafe extern "C" fn(*mut S, *mut S) -> Status,
    free: *mut S,
    total: *mut S,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(free, total) };
    if status != SUCCESS {
        return status;
    }
    let Some((_, device)) = device::current() else { return status };
    export::settle();
    reserved::settle_all();
    let (used, limit) = SliceGpu::of(device).map_or((0, 0), |gpu| {
        // The figures include the program's context. If the limit does not admit that, nothing is free anyway.
        if let Some(mut balance) = gpu.lock() {
            let _refused = balance.charge_context(0);
        }
        gpu.used_and_limit()
    });
    // SAFETY: the out-parameter contract, after success; the driver accepts null for a figure that is not wanted.
    unsafe {
        lower(free, u64::from(limit.saturating_sub(used)) * GRANULE_BYTES);
        lower(total, u64::from(limit) * GRANULE_BYTES);
    }
    status
}

pub(super) unsafe fn total_memory<S: Size>(
    real: unsafe extern "C" fn(*mut S, Device) -> Status,
    bytes: *mut S,
    device: Device,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(bytes, device) };
    if status == SUCCESS {
        // Asked before any context exists, so it takes no slot.
        let limit = device::limit_granules(device);
        // SAFETY: the out-parameter contract, after success.
        unsafe { lower(bytes, u64::from(limit) * GRANULE_BYTES) };
    }
    status
}
