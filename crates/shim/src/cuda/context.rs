//! Contexts: what they cost, and what goes with them.
//!
//! A context takes memory that no allocation shows, once per process and GPU. It is reserved when a context is made, or at the
//! first hooked call that finds one (the runtime makes them through a private table), and given back when the last one on the GPU
//! is gone. Everything allocated in a context is freed with it.

use core::ffi::{c_int, c_uint, c_void};

use super::charge::{self, Opened, Place};
use super::{Context, Device, SUCCESS, driver, pool};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::{Entry, Table};

pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Context, c_uint, Device) -> Status,
    context: *mut Context,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the caller's arguments.
    created(context, device, || unsafe { real(context, flags, device) })
}

pub(super) unsafe fn create_v3(
    real: unsafe extern "C" fn(*mut Context, *mut c_void, c_int, c_uint, Device) -> Status,
    context: *mut Context,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the caller's arguments.
    created(context, device, || unsafe { real(context, affinity, count, flags, device) })
}

pub(super) unsafe fn create_v4(
    real: unsafe extern "C" fn(*mut Context, *mut c_void, c_uint, Device) -> Status,
    context: *mut Context,
    parameters: *mut c_void,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the caller's arguments.
    created(context, device, || unsafe { real(context, parameters, flags, device) })
}

fn created(context: *mut Context, device: Device, real: impl FnOnce() -> Status) -> Status {
    let place = match in_slice(device) {
        Ok(Some(place)) => place,
        Ok(None) => return real(),
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        uncharge_if_none_left(place, device);
        return status;
    }
    // SAFETY: written by the driver.
    let key = unsafe { *context } as u64;
    if place.process().contexts.insert(Entry::new(key, device as u64, place.gpu, 0)).is_ok()
        && let Some(mut opened) = place.open()
    {
        opened.book.own_contexts = opened.book.own_contexts.saturating_add(1);
    }
    status
}

pub(super) unsafe fn retain_primary(
    real: unsafe extern "C" fn(*mut Context, Device) -> Status,
    context: *mut Context,
    device: Device,
) -> Status {
    let place = match in_slice(device) {
        Ok(Some(place)) => place,
        // SAFETY: the caller's arguments.
        Ok(None) => return unsafe { real(context, device) },
        Err(status) => return status,
    };
    // SAFETY: the caller's arguments.
    let status = unsafe { real(context, device) };
    if status != SUCCESS {
        uncharge_if_none_left(place, device);
    }
    status
}

/// Charges for a context on a device. `None`: the device is not of the slice; it may have a context, but will get no memory.
fn in_slice(device: Device) -> Result<Option<Place>, Status> {
    let Ok(place) = Place::of(device) else { return Ok(None) };
    let Some(mut opened) = place.open() else { return Ok(None) };
    opened.charge_context(0)?;
    Ok(Some(place))
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Context) -> Status, context: Context) -> Status {
    let own = process().and_then(|process| process.contexts.get(context as u64));
    let Some((process, own)) = process().zip(own) else {
        // SAFETY: the caller's argument.
        return unsafe { real(context) };
    };
    // SAFETY: the caller's argument.
    let status = ending(
        process,
        |entry| entry.context == own.key,
        || unsafe { real(context) },
        |status| status == SUCCESS,
    );
    if status == SUCCESS
        && process.contexts.remove(own.key).is_some()
        && let Some(place) = Place::charged(own.gpu())
    {
        if let Some(mut opened) = place.open() {
            opened.book.own_contexts = opened.book.own_contexts.saturating_sub(1);
        }
        uncharge_if_none_left(place, own.context as Device);
    }
    status
}

/// Release or reset of a primary context. A release ends it only if it was the last.
pub(super) unsafe fn end_primary(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    let Ok(place) = Place::of(device) else {
        // SAFETY: the caller's argument.
        return unsafe { real(device) };
    };
    let process = place.process();
    let in_primary =
        |entry: &Entry| entry.gpu() == place.gpu && process.contexts.get(entry.context).is_none();
    // SAFETY: the caller's argument.
    let status = ending(process, in_primary, || unsafe { real(device) }, |_| !is_primary_active(device));
    uncharge_if_none_left(place, device);
    pool::settle_all();
    status
}

/// Set in the context of an entry that is freed if the driver does what it was asked; no address of a process has this bit.
const DOOMED: u64 = 1 << 63;

/// Asks the driver to end a context, then gives back what lay in it if it has `ended`.
///
/// What goes is marked beforehand, so that memory allocated meanwhile in a new context at the same address stays charged.
fn ending(
    process: &Process,
    goes: impl Fn(&Entry) -> bool,
    real: impl FnOnce() -> Status,
    ended: impl FnOnce(Status) -> bool,
) -> Status {
    let tables: [&Table; 2] = [&process.memory, &process.arrays];
    for table in tables {
        table.edit_contexts(|entry| if goes(entry) { entry.context | DOOMED } else { entry.context });
    }
    let status = real();
    let ended = ended(status);
    for table in tables {
        if ended {
            let doomed = |entry: &Entry| entry.context & DOOMED != 0 && goes(&unmarked(entry));
            table.sweep(doomed, |entry| charge::release(entry.gpu(), entry.bytes()));
        } else {
            table.edit_contexts(
                |entry| if goes(&unmarked(entry)) { entry.context & !DOOMED } else { entry.context },
            );
        }
    }
    status
}

const fn unmarked(entry: &Entry) -> Entry {
    let mut unmarked = *entry;
    unmarked.context &= !DOOMED;
    unmarked
}

fn is_primary_active(device: Device) -> bool {
    let (mut flags, mut active) = (0, 0);
    match driver::cuDevicePrimaryCtxGetState.get() {
        // SAFETY: writes to where it is told.
        Ok(state) => unsafe { state(device, &raw mut flags, &raw mut active) != SUCCESS || active != 0 },
        Err(_) => true,
    }
}

/// Gives the context's memory back if no context of this process is left on the GPU.
fn uncharge_if_none_left(place: Place, device: Device) {
    let Some(mut opened) = place.open() else { return };
    if opened.book.own_contexts == 0 && !is_primary_active(device) {
        let Opened { book, account, .. } = &mut opened;
        book.release_context(account);
    }
}
