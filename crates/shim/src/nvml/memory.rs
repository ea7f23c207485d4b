//! Memory figures: the slice's limit and what all of its processes use of it.

use core::ffi::{c_char, c_uint, c_ulonglong};

use cantle_ledger::{GRANULE_BYTES, Uuid};

use super::{Device, SUCCESS, driver, guard};
use crate::function::Status;
use crate::process::process;

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct Info {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`. `reserved` is what the driver keeps for itself, of the whole GPU: it stays as it is.
#[repr(C)]
pub(crate) struct InfoV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

pub(super) unsafe fn info(
    real: unsafe extern "C" fn(Device, *mut Info) -> Status,
    device: Device,
    info: *mut Info,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the caller's arguments.
    let status = unsafe { real(device, info) };
    if status == SUCCESS && inside.is_some() {
        let slice = slice_of(device);
        // SAFETY: the driver accepted the pointer.
        unsafe {
            (*info).total = slice.total;
            (*info).free = slice.free;
            (*info).used = slice.used
        };
    }
    status
}

pub(super) unsafe fn info_v2(
    real: unsafe extern "C" fn(Device, *mut InfoV2) -> Status,
    device: Device,
    info: *mut InfoV2,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the caller's arguments.
    let status = unsafe { real(device, info) };
    if status == SUCCESS && inside.is_some() {
        let slice = slice_of(device);
        // SAFETY: the driver accepted the pointer.
        unsafe {
            (*info).total = slice.total;
            (*info).free = slice.free;
            (*info).used = slice.used
        };
    }
    status
}

#[derive(Default)]
struct Figures {
    total: u64,
    free: u64,
    used: u64,
}

/// The slice on a GPU, in bytes. A GPU outside the slice has none, and nothing is told about the others on it.
fn slice_of(device: Device) -> Figures {
    let figures = || {
        let ledger = process()?.ledger()?;
        let gpu = ledger.gpu_index(&uuid(device)?)?;
        let limit = ledger.gpus().get(gpu)?.limit_granules();
        let used = ledger.used(gpu);
        Some(Figures {
            total: u64::from(limit) * GRANULE_BYTES,
            free: u64::from(limit.saturating_sub(used)) * GRANULE_BYTES,
            used: u64::from(used) * GRANULE_BYTES,
        })
    };
    figures().unwrap_or_default()
}

/// UUID of a device. NVML prints it: `GPU-` or `MIG-`, then 32 hexadecimal digits with dashes among them.
fn uuid(device: Device) -> Option<Uuid> {
    let mut text = [0_u8; 96];
    let get = driver::nvmlDeviceGetUUID.get().ok()?;
    // SAFETY: writes at most the length it is told.
    if unsafe { get(device, text.as_mut_ptr().cast::<c_char>(), text.len() as c_uint) } != SUCCESS {
        return None;
    }
    parse(text.strip_prefix(b"GPU-").or_else(|| text.strip_prefix(b"MIG-"))?)
}

fn parse(digits: &[u8]) -> Option<Uuid> {
    let mut nibbles =
        digits.iter().filter(|&&digit| digit != b'-').map(|&digit| char::from(digit).to_digit(16));
    let mut uuid = Uuid::default();
    for byte in &mut uuid {
        *byte = (nibbles.next()?? << 4 | nibbles.next()??) as u8;
    }
    Some(uuid)
}
