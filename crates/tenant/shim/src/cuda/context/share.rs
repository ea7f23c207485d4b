//! GPU memory that a process shares with others: drivers before 610 cannot suspend such a process, and the program that
//! suspends it has to know that.

use core::ffi::{c_int, c_uint, c_void};

use cantle_ledger::Uses;

use crate::cuda::alloc::vmm::Handle;
use crate::cuda::{Address, SUCCESS};
use crate::function::Status;
use crate::process::process;

/// `CUipcMemHandle` and `CUipcEventHandle`, which are passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct IpcHandle([u64; 8]);

/// This process shares something from now on.
pub(crate) fn note() {
    // A process without a slot in the ledger holds nothing.
    if let Some(attachment) = process().and_then(|process| process.existing_attachment()) {
        attachment.note_use(Uses::Shared);
    }
}

fn noted(status: Status) -> Status {
    if status == SUCCESS {
        note();
    }
    status
}

pub(crate) unsafe fn get_memory(
    real: unsafe extern "C" fn(*mut c_void, Address) -> Status,
    handle: *mut c_void,
    address: Address,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { real(handle, address) })
}

pub(crate) unsafe fn open_memory(
    real: unsafe extern "C" fn(*mut Address, IpcHandle, c_uint) -> Status,
    address: *mut Address,
    handle: IpcHandle,
    flags: c_uint,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { real(address, handle, flags) })
}

pub(crate) unsafe fn get_event(
    real: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    handle: *mut c_void,
    event: *mut c_void,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { real(handle, event) })
}

pub(crate) unsafe fn open_event(
    real: unsafe extern "C" fn(*mut *mut c_void, IpcHandle) -> Status,
    event: *mut *mut c_void,
    handle: IpcHandle,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { real(event, handle) })
}

pub(crate) unsafe fn import(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void, c_int) -> Status,
    handle: *mut Handle,
    shared: *mut c_void,
    kind: c_int,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { crate::cuda::alloc::vmm::import(real, handle, shared, kind) })
}

pub(crate) unsafe fn export(
    real: unsafe extern "C" fn(*mut c_void, Handle, c_int, u64) -> Status,
    shared: *mut c_void,
    handle: Handle,
    kind: c_int,
    flags: u64,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    noted(unsafe { crate::cuda::alloc::export::export(real, shared, handle, kind, flags) })
}
