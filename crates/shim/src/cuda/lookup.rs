//! Addresses that the driver hands out by name.
//!
//! The driver is asked first: it knows names, versions and stream kinds better than we do. If what it found is the function that
//! a hook stands in for, the program gets the hook; its status and everything else stay as the driver gave them.

use core::ffi::{c_char, c_int, c_void};

use super::SUCCESS;
use crate::function::Status;
use crate::hooks;

pub(super) unsafe fn address(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> Status,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        let status = real(name, address, version, flags);
        substitute(status, address);
        status
    }
}

pub(super) unsafe fn address_v2(
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> Status,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        let status = real(name, address, version, flags, found);
        substitute(status, address);
        status
    }
}

unsafe fn substitute(status: Status, address: *mut *mut c_void) {
    if status != SUCCESS || address.is_null() {
        return;
    }
    // SAFETY: not null, and written by the driver.
    unsafe {
        if !(*address).is_null()
            && let Some(hook) = hooks::standing_in_for(*address, hooks::CUDA)
        {
            *address = hook;
        }
    }
}
