//! Addresses that the driver returns by name (`cuGetProcAddress`). [`crate::hooks`] lists the other ways to a hook.
//!
//! The driver is asked first, because it knows all names, versions and stream kinds. If it found a function that a hook
//! replaces, the program gets the hook. The status and everything else stay as the driver returned them.

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
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `address`.
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
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `address`.
    unsafe {
        let status = real(name, address, version, flags, found);
        substitute(status, address);
        status
    }
}

/// # Safety
/// If `status` is success, `address` is null or the driver has written to it.
unsafe fn substitute(status: Status, address: *mut *mut c_void) {
    if status != SUCCESS || address.is_null() {
        return;
    }
    // SAFETY: `status` is success and `address` is not null, so by this function's condition it may be read and replaced.
    unsafe {
        if !(*address).is_null()
            && let Some(hook) = stand_in(*address)
        {
            *address = hook;
        }
    }
}

fn stand_in(real: *mut c_void) -> Option<*mut c_void> {
    let gate = if cfg!(feature = "gate") { hooks::standing_in_for(real, hooks::GATE) } else { None };
    gate.or_else(|| hooks::standing_in_for(real, hooks::CUDA))
}
