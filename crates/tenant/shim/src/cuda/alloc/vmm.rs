//! Virtual memory management: physical memory by handle, mapped anywhere.
//!
//! Physical memory exists as long as its handle, a mapping of it or a descriptor that it was exported as does, so it is charged from its
//! creation until the last of them ends ([`export`]). An imported handle is memory of the process that created it, and is charged there.

use core::ffi::{c_int, c_void};

use super::export;
use super::location::{Location, LocationKind};
use super::release;
use super::slice_gpu::SliceGpu;
use crate::cuda::{Address, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CUmemGenericAllocationHandle`.
pub(crate) type Handle = u64;

/// No granularity of the driver's is finer: it refuses other sizes, however large they are.
const PAGE_BYTES: usize = 4096;

/// The beginning of `CUmemAllocationProp`.
#[repr(C)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
}

pub(crate) unsafe fn create(
    real: unsafe extern "C" fn(*mut Handle, usize, *const Properties, u64) -> Status,
    handle: *mut Handle,
    bytes: usize,
    properties: *const Properties,
    flags: u64,
) -> Status {
    // SAFETY: the call contract: `properties` is null or valid for the driver to read, and so for us.
    let location = unsafe { properties.as_ref() }.map(|properties| properties.location);
    let device = match location.map(Location::place) {
        Some(LocationKind::Gpu(device)) => device,
        // Without properties the driver says what is missing.
        // SAFETY: the call contract; the arguments are passed unchanged.
        None | Some(LocationKind::Host) => return unsafe { real(handle, bytes, properties, flags) },
        Some(LocationKind::Nowhere) => return INVALID_VALUE,
        Some(LocationKind::Unknown) => return NOT_SUPPORTED,
    };
    let gpu = match SliceGpu::of(device) {
        Ok(_) if !bytes.is_multiple_of(PAGE_BYTES) => return INVALID_VALUE,
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    export::settle();
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
                release::charged(&gone);
            }
            status
        }
        _ => {
            if let Ok(release) = crate::cuda::real::cuMemRelease.get() {
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

/// The reference is taken off before the driver is asked: afterwards it may give another thread's memory the same handle.
pub(crate) unsafe fn release(real: unsafe extern "C" fn(Handle) -> Status, handle: Handle) -> Status {
    let process = process();
    let taken = process.map(|process| take_reference(process, handle));
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(handle) };
    match (process, taken) {
        (Some(process), Some(Taken::Last(gone))) if status == SUCCESS => export::release(process, &gone),
        (Some(process), Some(taken)) if status != SUCCESS => put_back(process, handle, taken),
        _ => {}
    }
    status
}

pub(crate) unsafe fn retain(
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
pub(crate) unsafe fn import(
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

pub(crate) unsafe fn map(
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
    {
        // Memory of another process is not in the table; its mapping is, so that those behind it are found.
        let _is_known = add_reference(process, handle);
        // If there is no room, the mapping is unknown when it ends, so the memory stays charged: too much is safe, too little is not.
        if let Ok(Some(gone)) = process.mappings.insert(Entry::new(address, handle, 0, bytes as u64)) {
            // A mapping that was here before has ended, or another thread is about to find that out.
            drop_reference(process, gone.context & !ENDING);
        }
    }
    status
}

/// Set in the handle of a mapping that the driver is ending. No handle has this bit.
const ENDING: u64 = 1 << 63;

/// Unmaps a range, which may span several mappings. They are marked before the driver is asked: afterwards another thread may map something
/// at their addresses.
pub(crate) unsafe fn unmap(
    real: unsafe extern "C" fn(Address, usize) -> Status,
    address: Address,
    bytes: usize,
) -> Status {
    let end = address.saturating_add(bytes as u64);
    if let Some(process) = process() {
        each_mapping(process, address, end, |mapping| {
            process.mappings.update(mapping.key, |mapping| mapping.context |= ENDING);
        });
    }
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, bytes) };
    if let Some(process) = process() {
        each_mapping(process, address, end, |mapping| {
            if status != SUCCESS {
                process.mappings.update(mapping.key, |mapping| mapping.context &= !ENDING);
            } else if let Some(gone) =
                process.mappings.remove_if(mapping.key, |mapping| mapping.context & ENDING != 0)
            {
                drop_reference(process, gone.context & !ENDING);
            }
        });
    }
    status
}

/// Calls `each` with the mappings from `address` to `end`. The driver unmaps whole mappings only, so each begins where the one before ends.
fn each_mapping(process: &Process, address: Address, end: Address, each: impl Fn(Entry)) {
    let mut at = address;
    while at < end
        && let Some(mapping) = process.mappings.get(at).filter(|mapping| mapping.bytes() > 0)
    {
        each(mapping);
        at = at.saturating_add(mapping.bytes());
    }
}

/// Counts one more handle or mapping of a handle's memory; false if the handle is not in the table.
fn add_reference(process: &Process, handle: Handle) -> bool {
    process.handles.update(handle, |entry| entry.context = entry.context.saturating_add(1))
}

/// A handle or a mapping that has been taken off the table.
enum Taken {
    /// The table does not have it.
    Unknown,
    /// Others keep the memory.
    One,
    /// With this one the memory is freed.
    Last(Entry),
}

/// Counts one handle or mapping less. Memory that the last one has left is still charged.
fn take_reference(process: &Process, handle: Handle) -> Taken {
    let mut is_known = false;
    let last = process.handles.remove_if(handle, |entry| {
        is_known = true;
        entry.context -= u64::from(export::count_of(entry) > 0);
        export::count_of(entry) == 0
    });
    match last {
        Some(gone) => Taken::Last(gone),
        None if is_known => Taken::One,
        None => Taken::Unknown,
    }
}

/// The driver has refused what was taken off.
fn put_back(process: &Process, handle: Handle, taken: Taken) {
    match taken {
        Taken::Unknown => {}
        Taken::One => {
            let _is_known = add_reference(process, handle);
        }
        Taken::Last(mut gone) => {
            gone.context += 1;
            // If there is no room, it is unknown when it is freed, so it stays charged.
            let _full = process.handles.join(gone, |entry| entry.context = entry.context.saturating_add(1));
        }
    }
}

/// Counts one mapping less that the driver has ended; with the last one the memory is freed.
fn drop_reference(process: &Process, handle: Handle) {
    if let Taken::Last(gone) = take_reference(process, handle) {
        export::release(process, &gone);
    }
}
