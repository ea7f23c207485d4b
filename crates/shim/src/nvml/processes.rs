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
    /// `NVML_PROCESS_MODE_COMPUTE` and `NVML_PROCESS_MODE_ALL`. The others ask for what a slice does not have.
    const KINDS_THAT_COMPUTE: [c_uint; 2] = [0, 3];
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

impl Row for Detail {
    fn new(pid: u32, used_bytes: u64) -> Self {
        // How much is protected the ledger does not know; of NVML's value for that, nvidia-ml-py makes an exception.
        Self { process: ProcessV2::new(pid, used_bytes), protected: 0 }
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
    // SAFETY: not null; the caller has room for so many rows.
    unsafe {
        let room = if list.is_null() { 0 } else { *count };
        *count = write(device, list, room);
        if *count <= room { SUCCESS } else { INSUFFICIENT_SIZE }
    }
}

/// Writes the slice's processes on a GPU as far as there is room. Returns how many there are.
unsafe fn write<R: Row>(device: Device, rows: *mut R, room: c_uint) -> c_uint {
    let mut found = 0;
    if let Some((ledger, gpu)) = devices::in_slice(device) {
        ledger.reap();
        for (pid, granules) in ledger.holders(gpu) {
            if found < room {
                // SAFETY: the caller has room for `room` rows.
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
    // SAFETY: the caller's pointer.
    let Some(list) = (unsafe { list.as_mut() }).filter(|_| inside.is_some()) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(device, list) };
    };
    // The driver's judgement of the call, as in `judged`.
    let mut counted = DetailList { count: 0, rows: core::ptr::null_mut(), ..*list };
    // SAFETY: room for no row, so no row is written.
    let status = unsafe { real(device, &raw mut counted) };
    if status != SUCCESS && status != INSUFFICIENT_SIZE {
        return status;
    }
    let room = if list.rows.is_null() { 0 } else { list.count };
    let has_some = DetailList::KINDS_THAT_COMPUTE.contains(&list.kind);
    // SAFETY: the caller has room for so many rows.
    list.count = if has_some { unsafe { write(device, list.rows, room) } } else { 0 };
    if list.count <= room { SUCCESS } else { INSUFFICIENT_SIZE }
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

/// A row in which the driver tells of a process.
pub(super) trait Told {
    fn pid(&self) -> u32;
}

/// Takes out of the driver's rows those of processes that are not the slice's. `each` edits the others, told the bytes that are
/// charged to the process. Returns how many are left.
pub(super) unsafe fn keep_own<R: Told>(
    device: Device,
    rows: *mut R,
    count: c_uint,
    each: impl Fn(&mut R, u64),
) -> c_uint {
    let slice = devices::in_slice(device);
    let mut kept = 0;
    for at in 0..count as usize {
        // SAFETY: the driver has written `count` rows.
        let row = unsafe { &mut *rows.add(at) };
        let pid = row.pid();
        let holder = slice.and_then(|(ledger, gpu)| ledger.holders(gpu).find(|(holder, _)| *holder == pid));
        let Some((_, granules)) = holder else { continue };
        each(row, u64::from(granules) * GRANULE_BYTES);
        // SAFETY: as above; `kept` is at most `at`.
        unsafe { core::ptr::copy(rows.add(at), rows.add(kept), 1) };
        kept += 1;
    }
    kept as c_uint
}
