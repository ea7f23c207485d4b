//! Who uses a GPU: the slice's own processes, by the pids they know themselves by, with what is charged to each.
//!
//! The list comes from the ledger, not from the driver's: that has the processes of other slices, and pids of the host.

use core::ffi::{c_uint, c_ulonglong};

use cantle_ledger::GRANULE_BYTES;

use super::{Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, SUCCESS, devices, guard};
use crate::function::Status;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
pub(crate) struct Process {
    pid: c_uint,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`, which version 3 of the function takes too.
#[repr(C)]
pub(crate) struct ProcessV2 {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// What all versions of the list's rows have.
pub(super) trait Row {
    fn new(pid: u32, used_bytes: u64) -> Self;
}

impl Row for Process {
    fn new(pid: u32, used_bytes: u64) -> Self {
        Self { pid, used: used_bytes }
    }
}

impl Row for ProcessV2 {
    fn new(pid: u32, used_bytes: u64) -> Self {
        // All ones: not in a MIG instance, or it need not be known.
        Self { pid, used: used_bytes, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX }
    }
}

type List<R> = unsafe extern "C" fn(Device, *mut c_uint, *mut R) -> Status;

/// The driver's judgement of the call: its own error, or success. It is asked only to count.
unsafe fn judged<R>(real: List<R>, device: Device, count: *mut c_uint) -> Status {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let mut none = 0;
    // SAFETY: room for no row, so no row is written.
    let status = unsafe { real(device, &raw mut none, core::ptr::null_mut()) };
    if status == INSUFFICIENT_SIZE { SUCCESS } else { status }
}

/// Processes that compute.
pub(super) unsafe fn compute<R: Row>(
    real: List<R>,
    device: Device,
    count: *mut c_uint,
    list: *mut R,
) -> Status {
    let Some(_inside) = guard::enter() else {
        // SAFETY: the caller's arguments.
        return unsafe { real(device, count, list) };
    };
    // SAFETY: the caller's arguments.
    let status = unsafe { judged(real, device, count) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: not null.
    let room = if list.is_null() { 0 } else { unsafe { *count } };
    let mut found = 0;
    if let Some((ledger, gpu)) = devices::in_slice(device) {
        ledger.reap();
        for (pid, granules) in ledger.holders(gpu) {
            if found < room {
                // SAFETY: the caller has room for `room` rows.
                unsafe { list.add(found as usize).write(R::new(pid, u64::from(granules) * GRANULE_BYTES)) };
            }
            found += 1;
        }
    }
    // SAFETY: not null.
    unsafe { *count = found };
    if found <= room { SUCCESS } else { INSUFFICIENT_SIZE }
}

/// Kinds of processes that a slice does not have: those that draw, and those of other slices behind MPS.
pub(super) unsafe fn none<R>(real: List<R>, device: Device, count: *mut c_uint, list: *mut R) -> Status {
    let Some(_inside) = guard::enter() else {
        // SAFETY: the caller's arguments.
        return unsafe { real(device, count, list) };
    };
    // SAFETY: the caller's arguments.
    let status = unsafe { judged(real, device, count) };
    if status == SUCCESS {
        // SAFETY: not null.
        unsafe { *count = 0 };
    }
    status
}
