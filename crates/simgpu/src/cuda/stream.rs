//! Streams. Their work completes at once, unless this process has a [`timeline`](super::timeline).

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use super::effects::{Effect, HostFunction, write};
use super::execution::{Object, create, destroy};
use super::session::{Inner, current, session};
use super::timeline::{LEGACY, LineKey, Place, timeline};
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;
use crate::time::{EngineId, Op};

const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`; null is one of the two.
const LEGACY_HANDLE: u64 = 1;
const PER_THREAD_HANDLE: u64 = 2;

/// The stream that null means in functions for per-thread default streams.
pub(super) fn per_thread(stream: u64) -> u64 {
    if stream == 0 { PER_THREAD_HANDLE } else { stream }
}

pub(super) fn stream(inner: &Inner, handle: u64) -> CuResult<Object> {
    let (context, _) = inner.current_device()?;
    if handle <= PER_THREAD_HANDLE {
        return Ok(Object::Stream { flags: 0, priority: 0, context });
    }
    match inner.objects.get(handle)? {
        object @ Object::Stream { .. } => Ok(object),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

fn check(handle: u64) -> CuResult {
    stream(&session()?.lock(), handle).map(|_| ())
}

/// Whether what is queued becomes part of a graph.
pub(super) fn is_captured(handle: u64) -> CuResult<bool> {
    Ok(session()?.lock().capture_of(handle).is_some())
}

/// Where the work of a stream goes.
pub(super) fn place(handle: u64) -> CuResult<Place> {
    let session = session()?;
    let inner = session.lock();
    let Object::Stream { flags, context, .. } = stream(&inner, handle)? else {
        return Err(CuError::INVALID_HANDLE);
    };
    let device = &session.devices[inner.contexts.device_of(context)?];
    let stream = match handle {
        0 | LEGACY_HANDLE => LEGACY,
        PER_THREAD_HANDLE => of_this_thread(),
        other => other,
    };
    let engine = EngineId { device: device.index, domain: device.domain };
    Ok(Place { key: LineKey { context, stream }, engine, is_blocking: flags & NON_BLOCKING == 0 })
}

/// A number for the default stream of this thread: below all handles.
fn of_this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(PER_THREAD_HANDLE);
    thread_local! {
        static MINE: Cell<u64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    MINE.get()
}

/// Whatever synchronises lets the device's pools shrink.
pub(super) fn settle_pools() -> CuResult {
    let mut inner = session()?.lock();
    let (_, device) = inner.current_device()?;
    inner.synchronize(device)
}

/// Waits for all work of the current context.
pub(super) fn synchronize_context() -> CuResult {
    session()?;
    if let Some(timeline) = timeline() {
        let context = current();
        timeline.drain(|place| place.key.context == context);
    }
    settle_pools()
}

fn synchronize(handle: u64) -> CuResult {
    check(handle)?;
    if let Some(timeline) = timeline() {
        let LineKey { context, stream } = place(handle)?.key;
        // The legacy stream's work is done when that of all blocking streams is.
        timeline.drain(|place| {
            place.key.context == context
                && (place.key.stream == stream || stream == LEGACY && place.is_blocking)
        });
    }
    settle_pools()
}

fn query(handle: u64) -> CuResult {
    check(handle)?;
    match timeline() {
        Some(timeline) if !timeline.is_done(place(handle)?.key) => Err(CuError::NOT_READY),
        _ => Ok(()),
    }
}

fn launch_host(handle: u64, function: Option<HostFunction>, data: *mut c_void) -> CuResult {
    check(handle)?;
    let function = function.ok_or(CuError::INVALID_VALUE)?;
    match timeline() {
        Some(timeline) => {
            let call = Effect::Host { function, data: data as usize };
            timeline.submit(place(handle)?, Op::Hold, Some(call)).map(|_| ())
        }
        // Everything queued before it has already completed.
        None => {
            function(data);
            Ok(())
        }
    }
}

fn write_value(handle: u64, address: u64, value: u64, bytes: u32) -> CuResult {
    let inner = session()?.lock();
    stream(&inner, handle)?;
    if address == 0 || !address.is_multiple_of(u64::from(bytes)) {
        return Err(CuError::INVALID_VALUE);
    }
    // There is no memory behind device addresses.
    let is_memory = inner.host.size_of(address).is_some();
    drop(inner);
    match (timeline(), is_memory) {
        (Some(timeline), true) => {
            let effect = Effect::Write { address, value, bytes };
            timeline.submit(place(handle)?, Op::Mark, Some(effect)).map(|_| ())
        }
        (Some(timeline), false) => timeline.submit(place(handle)?, Op::Mark, None).map(|_| ()),
        (None, true) => {
            write(address, value, bytes);
            Ok(())
        }
        (None, false) => Ok(()),
    }
}

fn end(handle: u64) -> CuResult {
    let key = timeline().map(|_| place(handle)).transpose()?.map(|place| place.key);
    destroy(handle)?;
    if let (Some(timeline), Some(key)) = (timeline(), key) {
        timeline.close(key);
    }
    Ok(())
}

driver_api! {
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        create(out, |context| Object::Stream { flags, priority: 0, context })
    }
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, |context| Object::Stream { flags, priority, context })
    }
    fn cuStreamDestroy_v2(handle: u64) { end(handle) }
    fn cuStreamSynchronize(handle: u64) { synchronize(handle) }
    fn cuStreamSynchronize_ptsz(handle: u64) { synchronize(per_thread(handle)) }
    fn cuStreamQuery(handle: u64) { query(handle) }
    fn cuStreamQuery_ptsz(handle: u64) { query(per_thread(handle)) }
    fn cuStreamWaitEvent(handle: u64, event: u64, _flags: u32) { super::event::wait_in(handle, event) }
    fn cuStreamWaitEvent_ptsz(handle: u64, event: u64, _flags: u32) { super::event::wait_in(per_thread(handle), event) }
    fn cuStreamGetFlags(handle: u64, out: Out<u32>) {
        let Object::Stream { flags, .. } = stream(&session()?.lock(), handle)? else { return Err(CuError::INVALID_HANDLE) };
        Ok(out.set(flags)?)
    }
    fn cuStreamGetPriority(handle: u64, out: Out<i32>) {
        let Object::Stream { priority, .. } = stream(&session()?.lock(), handle)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        Ok(out.set(priority)?)
    }
    fn cuStreamGetCtx(handle: u64, out: Out<usize>) {
        let Object::Stream { context, .. } = stream(&session()?.lock(), handle)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        Ok(out.set(super::context::handle(context))?)
    }
    fn cuLaunchHostFunc(handle: u64, function: Option<HostFunction>, data: *mut c_void) {
        launch_host(handle, function, data)
    }
    fn cuLaunchHostFunc_ptsz(handle: u64, function: Option<HostFunction>, data: *mut c_void) {
        launch_host(per_thread(handle), function, data)
    }
    fn cuStreamWriteValue32_v2(handle: u64, address: u64, value: u32, _flags: u32) {
        write_value(handle, address, u64::from(value), 4)
    }
    fn cuStreamWriteValue32_v2_ptsz(handle: u64, address: u64, value: u32, _flags: u32) {
        write_value(per_thread(handle), address, u64::from(value), 4)
    }
    fn cuStreamWriteValue64_v2(handle: u64, address: u64, value: u64, _flags: u32) {
        write_value(handle, address, value, 8)
    }
    fn cuStreamWriteValue64_v2_ptsz(handle: u64, address: u64, value: u64, _flags: u32) {
        write_value(per_thread(handle), address, value, 8)
    }
}
