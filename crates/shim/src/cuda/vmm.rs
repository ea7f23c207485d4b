//! Virtual memory management: physical memory by handle, mapped anywhere.
//!
//! Physical memory exists as long as its handle or a mapping of it does, so it is charged from its creation until the last of
//! them ends. An imported handle is memory of the process that created it, and is charged there.

use core::ffi::{c_int, c_void};

use super::charge::{self, SliceGpu};
use super::location::{Location, Place};
use super::{Address, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CUmemGenericAllocationHandle`.
pub(super) type Handle = u64;

/// No granularity of the driver's is finer: it refuses other sizes, however large they are.
const PAGE_BYTES: usize = 4096;

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
    // SAFETY: the call contract: `properties` is null or valid for the driver to read, and so for us.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = match location.map(Location::place) {
        Some(Place::Gpu(device)) => device,
        // Without properties the driver says what is missing.
        // SAFETY: the call contract; the arguments are passed unchanged.
        None | Some(Place::Host) => return unsafe { real(handle, bytes, properties, flags) },
        Some(Place::Nowhere) => return INVALID_VALUE,
        Some(Place::Unknown) => return NOT_SUPPORTED,
    };
    let gpu = match SliceGpu::of(device) {
        Ok(_) if !bytes.is_multiple_of(PAGE_BYTES) => return INVALID_VALUE,
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    let reservation = match gpu.reserve(physical(bytes as u64)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(handle, bytes, properties, flags) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the out-parameter contract, after success.
    let key = unsafe { *handle };
    let kept = process()
        .map(|process| process.handles.insert(Entry::new(key, 1, reservation.gpu(), physical(bytes as u64))));
    match kept {
        Some(Ok(gone)) => {
            reservation.keep();
            if let Some(gone) = gone {
                charge::release(&gone);
            }
            status
        }
        _ => {
            if let Ok(release) = super::real::cuMemRelease.get() {
                // SAFETY: the driver has just created `key`, and the program gets an error, so it never uses it.
                unsafe { release(key) };
            }
            OUT_OF_MEMORY
        }
    }
}

/// Physical memory comes in whole granules, however little is requested; small requests share none here.
const fn physical(bytes: u64) -> u64 {
    if bytes == 0 {
        0
    } else {
        bytes.div_ceil(cantle_ledger::GRANULE_BYTES).saturating_mul(cantle_ledger::GRANULE_BYTES)
    }
}

pub(super) unsafe fn release(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(handle) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        drop_reference(process, handle);
    }
    status
}

pub(super) unsafe fn retain(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void) -> Status,
    handle: *mut Handle,
    address: *mut c_void,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(handle, address) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        // SAFETY: the out-parameter contract, after success.
        add_reference(process, unsafe { *handle });
    }
    status
}

/// A handle that is in the table already is of this process's own memory, and counts as one more reference to it.
pub(super) unsafe fn import(
    real: unsafe extern "C" fn(*mut Handle, *mut c_void, c_int) -> Status,
    handle: *mut Handle,
    shared: *mut c_void,
    kind: c_int,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(handle, shared, kind) };
    if status == SUCCESS
        && let Some(process) = process()
    {
        // SAFETY: the out-parameter contract, after success.
        add_reference(process, unsafe { *handle });
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
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, bytes, offset, handle, flags) };
    if status == SUCCESS
        && let Some(process) = process()
        && add_reference(process, handle)
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
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, bytes) };
    if status != SUCCESS {
        return status;
    }
    let Some(process) = process() else { return status };
    let end = address.saturating_add(bytes as u64);
    process.mappings.sweep(
        |mapping| address <= mapping.key && mapping.key < end,
        |mapping| drop_reference(process, mapping.context),
    );
    status
}

/// Counts one more handle or mapping of a handle's memory; false if the handle is not in the table.
fn add_reference(process: &Process, handle: Handle) -> bool {
    process.handles.update(handle, |entry| entry.context = entry.context.saturating_add(1))
}

/// Counts one handle or mapping less; with the last one the memory is freed.
fn drop_reference(process: &Process, handle: Handle) {
    let gone = process.handles.remove_if(handle, |entry| {
        entry.context = entry.context.saturating_sub(1);
        entry.context == 0
    });
    if let Some(gone) = gone {
        charge::release(&gone);
    }
}
