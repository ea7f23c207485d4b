//! Memory figures: the slice's limit and what all of its processes use of it.

use core::ffi::{c_uint, c_ulonglong};

use cantle_ledger::GRANULE_BYTES;

use super::{Device, SUCCESS, devices, guard};
use crate::function::Status;

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct Info {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`. `reserved` is what the driver keeps for itself: slices are cut of the rest, so nothing of them is.
#[repr(C)]
pub(crate) struct InfoV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
pub(crate) struct Bar1 {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

type Get<I> = unsafe extern "C" fn(Device, *mut I) -> Status;

pub(super) unsafe fn info(real: Get<Info>, device: Device, info: *mut Info) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    unsafe {
        changed(real, device, info, |info, slice| {
            let slice = slice.within(info.total);
            (info.total, info.free, info.used) = (slice.total, slice.free(), slice.used);
        })
    }
}

pub(super) unsafe fn info_v2(real: Get<InfoV2>, device: Device, info: *mut InfoV2) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    unsafe {
        changed(real, device, info, |info, slice| {
            let slice = slice.within(info.total.saturating_sub(info.reserved));
            (info.total, info.free, info.used) = (slice.total, slice.free(), slice.used);
            info.reserved = 0;
        })
    }
}

/// The window through which the host reaches GPU memory. Mappings of other slices do not count here: the slice's own use is
/// shown.
pub(super) unsafe fn bar1(real: Get<Bar1>, device: Device, info: *mut Bar1) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    unsafe {
        changed(real, device, info, |info, slice| {
            info.total = info.total.min(slice.total);
            info.used = info.total.min(slice.used);
            info.free = info.total - info.used;
        })
    }
}

/// Asks the driver, then lets `change` replace its figures by the slice's.
unsafe fn changed<I>(
    real: Get<I>,
    device: Device,
    info: *mut I,
    change: impl FnOnce(&mut I, &Figures),
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device, info) };
    if status == SUCCESS && inside.is_some() {
        // SAFETY: the out-parameter contract, after success: all of `*info` is written, and the call contract lets no other
        // thread use it until the hook returns.
        unsafe { change(&mut *info, &slice_of(device)) };
    }
    status
}

/// A slice on one GPU, in bytes.
#[derive(Default)]
struct Figures {
    total: u64,
    used: u64,
}

impl Figures {
    /// Not more than there is: the limit in an image was written without knowing the GPU, or the slice that the image runs in.
    fn within(&self, total: u64) -> Self {
        let total = self.total.min(total);
        // More is in use for a while where the driver took it unasked; `used` and `free` add up to `total` all the same.
        Self { total, used: self.used.min(total) }
    }

    const fn free(&self) -> u64 {
        self.total.saturating_sub(self.used)
    }
}

/// The slice on a GPU. A GPU outside the slice has none, and nothing is reported about other slices on it.
fn slice_of(device: Device) -> Figures {
    let figures = devices::in_slice(device).and_then(|(ledger, gpu)| {
        // The memory of dead processes is free, and other processes may not ask for a long time.
        ledger.reap();
        Some(Figures {
            total: u64::from(ledger.gpus().get(gpu)?.limit_granules()) * GRANULE_BYTES,
            used: u64::from(ledger.used(gpu)) * GRANULE_BYTES,
        })
    });
    figures.unwrap_or_default()
}
