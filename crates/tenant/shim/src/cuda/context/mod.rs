//! Contexts: the memory that they cost, and the memory that is freed with them.
//!
//! Each context takes memory that no allocation shows. It is reserved when a context is made, or at the first hooked call that
//! finds one (NVIDIA's runtime makes primary ones through a private table), and given back with it. Everything allocated in a context
//! is freed with it.

pub(crate) mod checkpoint;
pub(crate) mod share;
pub(crate) mod visible;

use core::cell::Cell;
use core::ffi::{c_int, c_uint, c_void};

use super::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::cuda::alloc::release;
use crate::cuda::alloc::slice_gpu;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::pool::reserved;
use crate::function::Status;
use crate::gate;
use crate::process::{Process, process};
use crate::table::{Entry, Table};

pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Context, c_uint, Device) -> Status,
    context: *mut Context,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `context`.
    unsafe { created(context, device, || real(context, flags, device)) }
}

pub(super) unsafe fn create_v3(
    real: unsafe extern "C" fn(*mut Context, *mut c_void, c_int, c_uint, Device) -> Status,
    context: *mut Context,
    affinity: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `context`.
    unsafe { created(context, device, || real(context, affinity, count, flags, device)) }
}

pub(super) unsafe fn create_v4(
    real: unsafe extern "C" fn(*mut Context, *mut c_void, c_uint, Device) -> Status,
    context: *mut Context,
    parameters: *mut c_void,
    flags: c_uint,
    device: Device,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `context`.
    unsafe { created(context, device, || real(context, parameters, flags, device)) }
}

/// # Safety
/// If `real` returns success, the driver has written a context to `context`.
unsafe fn created(context: *mut Context, device: Device, real: impl FnOnce() -> Status) -> Status {
    // Asked with no lock held.
    let others = u32::from(is_primary_active(device));
    let gpu = match in_slice(device, |own| own + 1 + others) {
        Ok(Some(gpu)) => gpu,
        Ok(None) => return real(),
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        uncharge_ended(gpu, device);
        return status;
    }
    // SAFETY: by this function's condition, after success.
    let key = unsafe { *context } as u64;
    if gpu.process().contexts.insert(Entry::new(key, device as u64, gpu.index, 0)).is_ok()
        && let Some(mut balance) = gpu.lock()
    {
        balance.holdings.own_contexts = balance.holdings.own_contexts.saturating_add(1);
    }
    status
}

pub(super) unsafe fn retain_primary(
    real: unsafe extern "C" fn(*mut Context, Device) -> Status,
    context: *mut Context,
    device: Device,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    in_primary(device, || unsafe { real(context, device) })
}

/// A green context: a part of the multiprocessors of the primary context, which is made with it.
pub(super) unsafe fn create_green(
    real: unsafe extern "C" fn(*mut *mut c_void, *mut c_void, Device, c_uint) -> Status,
    context: *mut *mut c_void,
    resources: *mut c_void,
    device: Device,
    flags: c_uint,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    in_primary(device, || unsafe { real(context, resources, device, flags) })
}

/// Charges the primary context of a device for `real`, which makes it if there is none.
fn in_primary(device: Device, real: impl FnOnce() -> Status) -> Status {
    let gpu = match in_slice(device, |own| own + 1) {
        Ok(Some(gpu)) => gpu,
        Ok(None) => return real(),
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        uncharge_ended(gpu, device);
    }
    status
}

/// A context becomes current.
pub(super) unsafe fn enter(real: unsafe extern "C" fn(Context) -> Status, context: Context) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(context) };
    slice_gpu::notice_context();
    status
}

/// Host memory, which is no part of a slice; but a program that only pins memory has a context too.
pub(super) unsafe fn pin<S>(
    real: unsafe extern "C" fn(*mut *mut c_void, S) -> Status,
    address: *mut *mut c_void,
    bytes: S,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, bytes) };
    slice_gpu::notice_context();
    status
}

/// As [`pin`].
pub(super) unsafe fn pin_with_flags(
    real: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> Status,
    address: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, bytes, flags) };
    slice_gpu::notice_context();
    status
}

/// Charges for one more context on a device: `contexts` says how many that makes, given how many the program has made itself. `None`: the device is not of the slice; it may have a context, but will get no memory.
///
/// A process that found all slots of its slice taken gets none either: its context would be counted nowhere.
fn in_slice(device: Device, contexts: impl FnOnce(u32) -> u32) -> Result<Option<SliceGpu>, Status> {
    let Ok(gpu) = SliceGpu::of(device) else {
        let is_uncounted =
            process().is_some_and(|process| process.ledger().is_some() && process.attachment().is_none());
        return if is_uncounted { Err(OUT_OF_MEMORY) } else { Ok(None) };
    };
    let Some(mut balance) = gpu.lock() else { return Ok(None) };
    let contexts = contexts(balance.holdings.own_contexts);
    balance.reserve_contexts(contexts).map_err(|over| balance.refuse(over, 0))?;
    Ok(Some(gpu))
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Context) -> Status, context: Context) -> Status {
    let own = process().and_then(|process| process.contexts.get(context as u64));
    let Some((process, own)) = process().zip(own) else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(context) };
    };
    gate::context_ends();
    let real = || {
        // Taken off before the driver is asked: afterwards another thread's context may have the address.
        process.contexts.remove(own.key);
        // SAFETY: the call contract; the arguments are passed unchanged.
        unsafe { real(context) }
    };
    let status = ending(process, |entry| entry.context == own.key, real, |status| status == SUCCESS);
    if status != SUCCESS {
        // If there is no room, its memory stays charged until the process ends.
        let _full = process.contexts.insert(own);
    } else if let Some(gpu) = SliceGpu::charged(own.gpu()) {
        if let Some(mut balance) = gpu.lock() {
            balance.holdings.own_contexts = balance.holdings.own_contexts.saturating_sub(1);
        }
        uncharge_ended(gpu, own.context as Device);
    }
    status
}

/// Release or reset of a primary context. A release ends it only if it was the last.
pub(super) unsafe fn end_primary(real: unsafe extern "C" fn(Device) -> Status, device: Device) -> Status {
    let Ok(gpu) = SliceGpu::of(device) else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(device) };
    };
    gate::context_ends();
    let process = gpu.process();
    // Nearly all entries are of one context, so it is looked up once.
    let last = Cell::new((0, false));
    let is_own = |context: u64| {
        if last.get().0 != context {
            last.set((context, process.contexts.get(context).is_some()));
        }
        last.get().1
    };
    let in_primary = |entry: &Entry| entry.gpu() == gpu.index && !is_own(entry.context);
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = ending(process, in_primary, || unsafe { real(device) }, |_| !is_primary_active(device));
    uncharge_ended(gpu, device);
    if status == SUCCESS && !is_primary_active(device) {
        reserved::forget(gpu.index);
    }
    reserved::settle_all();
    status
}

/// Set in the context of an entry that will be freed if the driver ends the context; no address of a process has this bit.
const DOOMED: u64 = 1 << 63;

/// Gives back what an entry is charged with.
type Release = fn(&Entry);

/// Asks the driver to end a context, then gives back what was allocated in it if it has `ended`.
///
/// Those entries are marked beforehand, so that memory allocated meanwhile in a new context at the same address stays charged.
fn ending(
    process: &Process,
    belongs: impl Fn(&Entry) -> bool,
    real: impl FnOnce() -> Status,
    ended: impl FnOnce(Status) -> bool,
) -> Status {
    let tables: [(&Table, Release); 2] =
        [(&process.memory, release::linear), (&process.arrays, release::charged)];
    for (table, _) in tables {
        table.edit_contexts(|entry| if belongs(entry) { entry.context | DOOMED } else { entry.context });
    }
    let status = real();
    let ended = ended(status);
    for (table, release) in tables {
        if ended {
            let doomed = |entry: &Entry| entry.context & DOOMED != 0 && belongs(&unmarked(entry));
            table.sweep(doomed, |entry| release(&entry));
        } else {
            table.edit_contexts(|entry| {
                if belongs(&unmarked(entry)) { entry.context & !DOOMED } else { entry.context }
            });
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
        // SAFETY: `flags` and `active` are live locals of the types that the function writes.
        Ok(state) => unsafe { state(device, &raw mut flags, &raw mut active) != SUCCESS || active != 0 },
        Err(_) => true,
    }
}

/// Gives back the memory of those contexts of this process on the GPU that have ended.
fn uncharge_ended(gpu: SliceGpu, device: Device) {
    let primary = u32::from(is_primary_active(device));
    let Some(mut balance) = gpu.lock() else { return };
    let left = balance.holdings.own_contexts.saturating_add(primary);
    balance.release_contexts(left);
}
