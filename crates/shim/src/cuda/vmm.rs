//! Virtual memory management: physical memory by handle, mapped anywhere.
//!
//! Physical memory is there as long as its handle or a mapping of it is, so it is charged from creation until the last of them
//! is gone. An imported handle is memory of the process that created it, and charged there.

use core::ffi::{c_int, c_void};

use super::charge::{self, Place};
use super::{Address, OUT_OF_MEMORY, SUCCESS};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CUmemGenericAllocationHandle`.
pub(super) type Handle = u64;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Location {
    pub(super) kind: c_int,
    pub(super) id: c_int,
}

impl Location {
    /// `CU_MEM_LOCATION_TYPE_DEVICE`; the others are host memory.
    pub(super) const DEVICE: c_int = 1;
}

/// The beginning of `CUmemAllocationProp`.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
}

pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, usize, *const Properties, u64) -> Status,
    handle: *mut Handle,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> Status {
    // SAFETY: the caller's arguments.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let Some(location) = location.filter(|location| location.kind == Location::DEVICE) else {
        // SAFETY: the caller's arguments. Host memory, or nothing that the driver will accept.
        return unsafe { real(handle, bytes, properties, flags) };
    };
    let reservation = match Place::of(location.id).and_then(|place| place.reserve(physical(bytes as u64))) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    // SAFETY: the caller's arguments.
    let status = unsafe { real(handle, bytes, properties, flags) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: written by the driver.
    let key = unsafe { *handle };
    let kept = process()
        .map(|process| process.handles.insert(Entry::new(key, 1, reservation.gpu(), physical(bytes as u64))));
    match kept {
        Some(Ok(gone)) => {
            reservation.keep();
            if let Some(gone) = gone {
                charge::release(gone.gpu(), gone.bytes());
            }
            status
        }
        _ => {
            if let Ok(release) = super::real::cuMemRelease.get() {
                // SAFETY: just created, and nobody has seen it.
                unsafe { release(key) };
            }
            OUT_OF_MEMORY
        }
    }
}

/// Physical memory comes in granules, however little is asked for: never out of a slab.
const fn physical(bytes: u64) -> u64 {
    if bytes == 0 {
        0
    } else {
        bytes.div_ceil(cantle_ledger::GRANULE_BYTES).saturating_mul(cantle_ledger::GRANULE_BYTES)
    }
}

pub(super) unsafe fn release(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the caller's argument.
    let status = unsafe { real(handle) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        let_go(process, handle);
    }
    status
}

pub(super) unsafe fn retain(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void) -> Status,
    handle: *mut Handle,
    address: *mut c_void,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(handle, address) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        // SAFETY: written by the driver.
        hold(process, unsafe { *handle });
    }
    status
}

/// A handle that is known already is of this process's own memory, and keeps it.
pub(super) unsafe fn import(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void, c_int) -> Status,
    handle: *mut Handle,
    shared: *mut c_void,
    kind: c_int,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(handle, shared, kind) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        // SAFETY: written by the driver.
        hold(process, unsafe { *handle });
    }
    status
}

pub(super) unsafe fn map(
    real: unsafe extern "C" fn(Address, usize, usize, Handle, u64) -> Status,
    address: Address,
    bytes: usize,
    offset: usize,
    handle: Handle,
    flags: u64,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(address, bytes, offset, handle, flags) };
    if status == SUCCESS
        && let Some(process) = process()
        && hold(process, handle)
        && process.mappings.insert(Entry::new(address, handle, 0, bytes as u64)).is_err()
    {
        // Unknown when it is unmapped, so the memory stays charged: too much is safe, too little is not.
    }
    status
}

/// Unmaps a range, which may span several mappings.
pub(super) unsafe fn unmap(
    real: unsafe extern "C" fn(Address, usize) -> Status,
    address: Address,
    bytes: usize,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(address, bytes) };
    if status != SUCCESS {
        return status;
    }
    let Some(process) = process() else { return status };
    let end = address.saturating_add(bytes as u64);
    process.mappings.sweep(
        |mapping| address <= mapping.key && mapping.key < end,
        |mapping| let_go(process, mapping.context),
    );
    status
}

/// One more reason for a handle's memory to stay; false if the handle is not ours.
fn hold(process: &Process, handle: Handle) -> bool {
    process.handles.update(handle, |entry| entry.context = entry.context.saturating_add(1))
}

/// One reason less; with the last the memory is gone.
fn let_go(process: &Process, handle: Handle) {
    let gone = process.handles.remove_if(handle, |entry| {
        entry.context = entry.context.saturating_sub(1);
        entry.context == 0
    });
    if let Some(gone) = gone {
        charge::release(gone.gpu(), gone.bytes());
    }
}
