//! The processes that use a GPU: the slice's own processes, with their pids in their own pid namespace and what is
//! charged to each.
//!
//! The list comes from the ledger. The driver's has the processes of other slices, and pids of the host.

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

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
pub(crate) struct Detail {
    process: ProcessV2,
    protected: c_ulonglong,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DetailList {
    version: c_uint,
    kind: c_uint,
    count: c_uint,
    rows: *mut Detail,
}

impl DetailList {
    /// `NVML_PROCESS_MODE_COMPUTE` and `NVML_PROCESS_MODE_ALL`. The others ask for kinds that a slice does not have.
    const KINDS_THAT_COMPUTE: [c_uint; 2] = [0, 3];
}

/// A row that a hook makes for a process of the slice.
pub(super) trait ProcessRow {
    fn new(pid: u32, used_bytes: u64) -> Self;
}

impl ProcessRow for Process {
    fn new(pid: u32, used_bytes: u64) -> Self {
        Self { pid, used: used_bytes }
    }
}

impl ProcessRow for ProcessV2 {
    fn new(pid: u32, used_bytes: u64) -> Self {
        // All ones: not in a MIG instance, or it need not be known.
        Self { pid, used: used_bytes, gpu_instance: c_uint::MAX, compute_instance: c_uint::MAX }
    }
}

impl ProcessRow for Detail {
    fn new(pid: u32, used_bytes: u64) -> Self {
        // The ledger does not know how much is protected; nvidia-ml-py raises an exception at NVML's value for "unknown".
        Self { process: ProcessV2::new(pid, used_bytes), protected: 0 }
    }
}

type List<R> = unsafe extern "C" fn(Device, *mut c_uint, *mut R) -> Status;

/// The driver's own error for the call, or success. It is asked only to count.
unsafe fn checked_by_driver<R>(real: List<R>, device: Device, count: *mut c_uint) -> Status {
    let mut none = 0;
    let asked = if count.is_null() { count } else { &raw mut none };
    // SAFETY: the call contract for `device`. With a count of 0 the driver writes no row, only the count, a live local; without a
    // count it refuses.
    match unsafe { real(device, asked, core::ptr::null_mut()) } {
        SUCCESS | INSUFFICIENT_SIZE if count.is_null() => INVALID_ARGUMENT,
        INSUFFICIENT_SIZE => SUCCESS,
        status => status,
    }
}

/// Processes that compute.
pub(super) unsafe fn compute<R: ProcessRow>(
    real: List<R>,
    device: Device,
    count: *mut c_uint,
    list: *mut R,
) -> Status {
    let Some(_inside) = guard::enter() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(device, count, list) };
    };
    // SAFETY: the call contract.
    let status = unsafe { checked_by_driver(real, device, count) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: `checked_by_driver` found `count` not null. The call contract: it may be read and written, and `list` is null or
    // has space for `*count` rows.
    unsafe {
        let capacity = if list.is_null() { 0 } else { *count };
        *count = write(device, list, capacity);
        if *count <= capacity { SUCCESS } else { INSUFFICIENT_SIZE }
    }
}

/// Writes at most `capacity` of the slice's processes on a GPU. Returns how many there are.
///
/// # Safety
/// `rows` is valid for writes of `capacity` rows.
unsafe fn write<R: ProcessRow>(device: Device, rows: *mut R, capacity: c_uint) -> c_uint {
    let mut found = 0;
    if let Some((ledger, gpu)) = devices::in_slice(device) {
        ledger.reap();
        for (pid, granules) in ledger.holders(gpu) {
            if found < capacity {
                // SAFETY: `found` is less than `capacity`, for which `rows` is valid by this function's condition.
                unsafe { rows.add(found as usize).write(R::new(pid, u64::from(granules) * GRANULE_BYTES)) };
            }
            found += 1;
        }
    }
    found
}

/// Processes of the kind that the list says, which is one structure.
pub(super) unsafe fn details(
    real: unsafe extern "C" fn(Device, *mut DetailList) -> Status,
    device: Device,
    list: *mut DetailList,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract: `list` is null or valid to read and write, and no other thread uses it.
    let Some(list) = (unsafe { list.as_mut() }).filter(|_| inside.is_some()) else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(device, list) };
    };
    // As in `checked_by_driver`.
    let mut counted = DetailList { count: 0, rows: core::ptr::null_mut(), ..*list };
    // SAFETY: the call contract for `device`; with a count of 0 the driver writes no row, only to `counted`, a live local.
    let status = unsafe { real(device, &raw mut counted) };
    if status != SUCCESS && status != INSUFFICIENT_SIZE {
        return status;
    }
    let capacity = if list.rows.is_null() { 0 } else { list.count };
    let has_some = DetailList::KINDS_THAT_COMPUTE.contains(&list.kind);
    // SAFETY: the call contract: `rows` is null, with a capacity of 0, or has space for `count` rows.
    list.count = if has_some { unsafe { write(device, list.rows, capacity) } } else { 0 };
    if list.count <= capacity { SUCCESS } else { INSUFFICIENT_SIZE }
}

/// Kinds of processes that a slice does not have: those that draw, and those of other slices behind MPS.
pub(super) unsafe fn none<R>(real: List<R>, device: Device, count: *mut c_uint, list: *mut R) -> Status {
    let Some(_inside) = guard::enter() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(device, count, list) };
    };
    // SAFETY: the call contract.
    let status = unsafe { checked_by_driver(real, device, count) };
    if status == SUCCESS {
        // SAFETY: `checked_by_driver` found `count` not null, and the call contract lets it be written.
        unsafe { *count = 0 };
    }
    status
}

/// A row that the driver has written for a process.
pub(super) trait DriverRow {
    fn pid(&self) -> u32;
}

/// Removes from the driver's rows those of processes that are not the slice's. `each` edits the others; it gets the bytes that
/// are charged to the process. Returns how many are left.
///
/// # Safety
/// `rows` points to `count` rows that are written and that no other code uses.
pub(super) unsafe fn keep_own<R: DriverRow>(
    device: Device,
    rows: *mut R,
    count: c_uint,
    each: impl Fn(&mut R, u64),
) -> c_uint {
    let slice = devices::in_slice(device);
    if let Some((ledger, _)) = slice {
        ledger.reap();
    }
    let mut kept = 0;
    for at in 0..count as usize {
        // SAFETY: `at` is less than `count`, so by this function's condition the row is written, and no other code uses
        // it.
        let row = unsafe { &mut *rows.add(at) };
        let pid = row.pid();
        let holder = slice.and_then(|(ledger, gpu)| ledger.holders(gpu).find(|(holder, _)| *holder == pid));
        let Some((_, granules)) = holder else { continue };
        each(row, u64::from(granules) * GRANULE_BYTES);
        // SAFETY: `at` and `kept`, which is at most `at`, are less than `count`; `row` is not used any more, and `copy` allows
        // both to be the same row.
        unsafe { core::ptr::copy(rows.add(at), rows.add(kept), 1) };
        kept += 1;
    }
    kept as c_uint
}
