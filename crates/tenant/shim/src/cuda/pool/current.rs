//! The pool of a stream-ordered allocation that names none: the current pool of its stream's device.
//!
//! Programs make such allocations often, and rarely change the current pool. So the pool is queried once, and again after
//! each call that may have changed it. These calls are counted, before and after the change. If an allocation finds another
//! count when it returns, it may have come from another pool than the one it was charged to; then all pools are read again.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, Release};

use super::{Pool, Stream, know, learn};
use crate::cuda::alloc::location::Location;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::device;
use crate::cuda::{Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

pub(crate) unsafe fn set(
    real: unsafe extern "C" fn(Device, Pool) -> Status,
    device: Device,
    pool: Pool,
) -> Status {
    let learn = || {
        // If there is no room, its first allocation tries again.
        let _full = know(pool, device);
    };
    // SAFETY: the call contract; the arguments are passed unchanged.
    changing(|| unsafe { real(device, pool) }, learn)
}

pub(crate) unsafe fn set_at(
    real: unsafe extern "C" fn(*const Location, c_int, Pool) -> Status,
    location: *const Location,
    kind: c_int,
    pool: Pool,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged. `location` is read after the driver has read it and returned success.
    changing(|| unsafe { real(location, kind, pool) }, || learn(pool, unsafe { *location }, kind))
}

fn changing(real: impl FnOnce() -> Status, learn: impl FnOnce()) -> Status {
    let changes = process().map(|process| &process.pool_changes);
    let count = || changes.map(|changes| changes.fetch_add(1, Release));
    count();
    let status = real();
    if status == SUCCESS {
        learn();
    }
    count();
    status
}

/// The entry of the pool from which an allocation on `stream` comes, read at `changes` of the current pools. `None` if the driver refuses
/// the allocation; an error is the answer where it is not known.
pub(crate) fn of(process: &Process, stream: Stream, changes: u32) -> Result<Option<Entry>, Status> {
    let only = only_device(process).and_then(|device| Some((device, SliceGpu::of(device).ok()?)));
    let (device, gpu) = match only.filter(|(_, gpu)| gpu.lock().is_some_and(|b| b.holdings.has_context())) {
        Some(known) => known,
        None => match device_of(stream)? {
            Some(device) => (device, SliceGpu::of(device)?),
            None => return Ok(None),
        },
    };
    let known = gpu.lock().map(|balance| balance.holdings.current_pool);
    if let Some((pool, _)) = known.filter(|(pool, at)| *pool != 0 && *at == changes)
        && let Some(entry) = know(pool as Pool, device)
    {
        return Ok(Some(entry));
    }
    let mut pool = core::ptr::null_mut();
    // SAFETY: `pool` is a live local of the type that the function writes.
    let found = unsafe { driver::cuDeviceGetMemPool.get()?(&raw mut pool, device) };
    if found != SUCCESS {
        // Without a pool there is no such memory; the driver's status says why.
        return Err(found);
    }
    let entry = know(pool, device).ok_or(OUT_OF_MEMORY)?;
    if let Some(mut balance) = gpu.lock() {
        balance.holdings.current_pool = (pool as u64, changes);
    }
    Ok(Some(entry))
}

/// The device, if this process sees only one: then every stream is on it.
fn only_device(process: &Process) -> Option<Device> {
    let mut count = process.device_count.load(Relaxed);
    if count == 0 {
        let mut counted = 0;
        // SAFETY: `counted` is a live local of the type that the function writes.
        let asked = unsafe { driver::cuDeviceGetCount.get().ok()?(&raw mut counted) };
        count = if asked == SUCCESS { counted as u32 } else { 0 };
        process.device_count.store(count, Relaxed);
    }
    (count == 1).then_some(0)
}

/// The device of a stream that the program passed to the current call: that of its context, which need not be current. None for a
/// default stream without a context, which the driver refuses. An error is the answer where the driver does not tell.
fn device_of(stream: Stream) -> Result<Option<Device>, Status> {
    let current = device::current();
    // The default streams are the current context's.
    if stream as usize <= 2 {
        return Ok(current.map(|(_, device)| device));
    }
    let mut context = core::ptr::null_mut();
    // SAFETY: the call contract for `stream`; `context` is a live local of the type that the function writes.
    let told = unsafe { driver::cuStreamGetCtx.get()?(stream, &raw mut context) };
    if told != SUCCESS {
        // A stream of a green context (CUDA 12.4) has no context to tell; what it has is a device (12.8).
        let mut device = 0;
        // SAFETY: the call contract for `stream`; `device` is a live local of the type that the function writes.
        let asked = driver::cuStreamGetDevice.get().map(|get| unsafe { get(stream, &raw mut device) });
        return if asked == Ok(SUCCESS) { Ok(Some(device)) } else { Err(told) };
    }
    if let Some((_, device)) = current.filter(|(current, _)| *current == context) {
        return Ok(Some(device));
    }
    // SAFETY: `context` is that of a stream in use, so it exists until the stream is destroyed, which the call contract excludes.
    // It is popped again, so the thread's stack of contexts is as before; the pop writes to a live local.
    unsafe {
        let pushed = driver::cuCtxPushCurrent_v2.get()?(context);
        if pushed != SUCCESS {
            return Err(pushed);
        }
        let pushed = device::current();
        driver::cuCtxPopCurrent_v2.get()?(&raw mut context);
        pushed.map(|(_, device)| Some(device)).ok_or(OUT_OF_MEMORY)
    }
}
