//! Lists the GPUs of the slice, numbered from 0 in NVML's order.
//!
//! A GPU belongs to the slice if its UUID does, or that of a MIG instance on it: programs find an instance through its GPU.
//! Without a ledger there are none.

use core::ffi::{c_char, c_uint};

use cantle_ledger::{Ledger, Uuid};

use super::{Device, INVALID_ARGUMENT, NOT_FOUND, SUCCESS, driver, guard, real};
use crate::function::Status;
use crate::process::process;

fn ledger() -> Option<&'static Ledger> {
    process()?.ledger()
}

/// Index of a GPU or MIG instance in the slice, with the slice's ledger.
pub(super) fn in_slice(device: Device) -> Option<(&'static Ledger, usize)> {
    let ledger = ledger()?;
    Some((ledger, ledger.gpu_index(&uuid(device)?)?))
}

/// UUID of a device. NVML prints it: `GPU-` or `MIG-`, then 32 hexadecimal digits with dashes among them.
fn uuid(device: Device) -> Option<Uuid> {
    let mut text = [0_u8; 96];
    let get = driver::nvmlDeviceGetUUID.get().ok()?;
    // SAFETY: `device` is a handle of NVML's; it writes at most `text.len()` bytes, all of them into `text`, a live local.
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

fn is_visible(device: Device) -> bool {
    in_slice(device).is_some() || instances(device).any(|instance| in_slice(instance).is_some())
}

/// MIG instances on a GPU; none if it is not in MIG mode.
fn instances(gpu: Device) -> impl Iterator<Item = Device> {
    let mut count = 0;
    let counted = driver::nvmlDeviceGetMaxMigDeviceCount.get();
    // SAFETY: `gpu` is a handle of NVML's; `count` is a live local of the type that the function writes.
    let counted = counted.is_ok_and(|get| unsafe { get(gpu, &raw mut count) } == SUCCESS);
    (0..if counted { count } else { 0 }).filter_map(move |index| {
        let mut instance = core::ptr::null_mut();
        let get = real::nvmlDeviceGetMigDeviceHandleByIndex.get().ok()?;
        // SAFETY: `gpu` is a handle of NVML's; `instance` is a live local of the type that the function writes.
        (unsafe { get(gpu, index, &raw mut instance) } == SUCCESS).then_some(instance)
    })
}

/// The slice's GPUs, each with its number in the driver.
fn visible() -> impl Iterator<Item = (c_uint, Device)> {
    let mut count = 0;
    let counted = real::nvmlDeviceGetCount_v2.get();
    // SAFETY: `count` is a live local of the type that the function writes.
    let counted = counted.is_ok_and(|get| unsafe { get(&raw mut count) } == SUCCESS);
    (0..if counted { count } else { 0 }).filter_map(|number| {
        let mut device = core::ptr::null_mut();
        let get = real::nvmlDeviceGetHandleByIndex_v2.get().ok()?;
        // SAFETY: `device` is a live local of the type that the function writes.
        (unsafe { get(number, &raw mut device) } == SUCCESS && is_visible(device)).then_some((number, device))
    })
}

pub(super) unsafe fn count(real: unsafe extern "C" fn(*mut c_uint) -> Status, count: *mut c_uint) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(count) };
    if status == SUCCESS && inside.is_some() {
        // SAFETY: the out-parameter contract, after success.
        unsafe { *count = visible().count() as c_uint };
    }
    status
}

pub(super) unsafe fn by_index(
    real: unsafe extern "C" fn(c_uint, *mut Device) -> Status,
    index: c_uint,
    device: *mut Device,
) -> Status {
    let inside = guard::enter();
    if inside.is_none() {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(index, device) };
    }
    match visible().nth(index as usize) {
        // SAFETY: the call contract for `device`; any number may be requested.
        Some((number, _)) => unsafe { real(number, device) },
        None => {
            // The driver checks first whether it was initialized.
            let mut count = 0;
            let get = real::nvmlDeviceGetCount_v2.get();
            // SAFETY: `count` is a live local of the type that the function writes.
            let status = get.map_or_else(|status| status, |get| unsafe { get(&raw mut count) });
            if status == SUCCESS { INVALID_ARGUMENT } else { status }
        }
    }
}

/// By UUID (as text, or in a structure), serial number or PCI address.
pub(super) unsafe fn by_name<N>(
    real: unsafe extern "C" fn(*const N, *mut Device) -> Status,
    name: *const N,
    device: *mut Device,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(name, device) };
    // SAFETY: the out-parameter contract: `device` is read only after success.
    if status == SUCCESS && inside.is_some() && !is_visible(unsafe { *device }) { NOT_FOUND } else { status }
}

pub(super) unsafe fn mig_by_index(
    real: unsafe extern "C" fn(Device, c_uint, *mut Device) -> Status,
    gpu: Device,
    index: c_uint,
    device: *mut Device,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(gpu, index, device) };
    let hidden = || {
        // SAFETY: the out-parameter contract: called after success only.
        let instance = unsafe { *device };
        // A slice of the whole GPU has all its instances.
        in_slice(instance).is_none() && in_slice(gpu).is_none()
    };
    if status == SUCCESS && inside.is_some() && hidden() { NOT_FOUND } else { status }
}

pub(super) unsafe fn index(
    real: unsafe extern "C" fn(Device, *mut c_uint) -> Status,
    device: Device,
    index: *mut c_uint,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device, index) };
    if status == SUCCESS && inside.is_some() {
        // SAFETY: the out-parameter contract, after success.
        let number = unsafe { *index };
        if let Some(position) = visible().position(|(visible, _)| visible == number) {
            // SAFETY: the out-parameter contract, after success: the value may be replaced.
            unsafe { *index = position as c_uint };
        }
    }
    status
}
