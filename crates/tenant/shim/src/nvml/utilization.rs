//! Utilization by process: the driver's samples of the slice's own processes. The figures are relative to the whole GPU,
//! also where the slice has a share of its compute time.

use core::ffi::{c_uint, c_ulonglong};

use super::processes::{DriverRow, keep_own};
use super::{Device, SUCCESS, guard};
use crate::function::Status;

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
pub(crate) struct Sample {
    pid: c_uint,
    time_us: c_ulonglong,
    engines: [c_uint; 4],
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct Info {
    time_us: c_ulonglong,
    pid: c_uint,
    engines: [c_uint; 6],
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
pub(crate) struct Infos {
    version: c_uint,
    count: c_uint,
    since_us: c_ulonglong,
    rows: *mut Info,
}

impl DriverRow for Sample {
    fn pid(&self) -> u32 {
        self.pid
    }
}

impl DriverRow for Info {
    fn pid(&self) -> u32 {
        self.pid
    }
}

pub(super) unsafe fn samples(
    real: unsafe extern "C" fn(Device, *mut Sample, *mut c_uint, c_ulonglong) -> Status,
    device: Device,
    rows: *mut Sample,
    count: *mut c_uint,
    since_us: c_ulonglong,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device, rows, count, since_us) };
    if status == SUCCESS && inside.is_some() && !rows.is_null() {
        // SAFETY: after success with a buffer, the driver has written `*count` rows (out-parameter contract), which no other
        // thread uses (call contract).
        unsafe { *count = keep_own(device, rows, *count, |_, _| {}) };
    }
    status
}

pub(super) unsafe fn infos(
    real: unsafe extern "C" fn(Device, *mut Infos) -> Status,
    device: Device,
    infos: *mut Infos,
) -> Status {
    let inside = guard::enter();
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(device, infos) };
    if status == SUCCESS && inside.is_some() {
        // SAFETY: after success `infos` is written and, if it has a buffer, that has `count` rows (out-parameter contract);
        // no other thread uses either (call contract).
        unsafe {
            let infos = &mut *infos;
            if !infos.rows.is_null() {
                infos.count = keep_own(device, infos.rows, infos.count, |_, _| {});
            }
        }
    }
    status
}
