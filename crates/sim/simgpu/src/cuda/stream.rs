//! Streams. Their work completes at once, unless this process has a [`timeline`](super::timeline).

use std::cell::Cell;
use std::convert::identity;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use super::effects::{Effect, HostFunction, write};
use super::execution::{Object, create, destroy};
use super::graph::{Node, TYPE_BATCH_MEM_OP, TYPE_HOST};
use super::session::{Inner, current, session};
use super::timeline::{Destination, LEGACY, LineKey, timeline};
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
        return Ok(Object::Stream { flags: 0, priority: 0, context, green: 0 });
    }
    match inner.objects.get(handle)? {
        object @ Object::Stream { .. } => Ok(object),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

fn check(handle: u64) -> CuResult {
    stream(&session()?.lock(), handle).map(|_| ())
}

pub(super) fn check_not_captured(handle: u64) -> CuResult {
    let mut inner = session()?.lock();
    stream(&inner, handle)?;
    inner.forbid_captured(handle)
}

/// Adds a node of this kind if the stream is captured; whether it is.
pub(super) fn is_captured(handle: u64, kind: u32) -> CuResult<bool> {
    let mut inner = session()?.lock();
    let Some(graph) = inner.capture_of(handle)? else { return Ok(false) };
    inner.graphs.add_captured(graph, Node::Other(kind), handle).map(|_| true)
}

/// The destination of a stream's work.
pub(super) fn place(handle: u64) -> CuResult<Destination> {
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
    let engine = EngineId { device: device.index(), domain: device.domain };
    Ok(Destination { key: LineKey { context, stream }, engine, is_blocking: flags & NON_BLOCKING == 0 })
}

/// A number for the default stream of this thread: below all handles.
fn of_this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(PER_THREAD_HANDLE);
    thread_local! {
        static MINE: Cell<u64> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    MINE.get()
}

/// Each synchronization lets the device's pools shrink.
pub(super) fn settle_pools() -> CuResult {
    let mut inner = session()?.lock();
    let (_, device) = inner.current_device()?;
    inner.synchronize(device)
}

/// Waits for all work of the current context.
pub(super) fn synchronize_context() -> CuResult {
    let context = current();
    session()?.lock().forbid_any_capture(context)?;
    if let Some(timeline) = timeline() {
        timeline.drain(|place| place.key.context == context);
    }
    settle_pools()
}

fn synchronize(handle: u64) -> CuResult {
    check_not_captured(handle)?;
    session()?.lock().forbid_unsafe()?;
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
    check_not_captured(handle)?;
    session()?.lock().forbid_unsafe()?;
    match timeline() {
        Some(timeline) if !timeline.is_done(place(handle)?.key) => Err(CuError::NOT_READY),
        _ => Ok(()),
    }
}

fn launch_host(handle: u64, function: Option<HostFunction>, data: *mut c_void) -> CuResult {
    check(handle)?;
    let function = function.ok_or(CuError::INVALID_VALUE)?;
    if is_captured(handle, TYPE_HOST)? {
        return Ok(());
    }
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

/// Whether there is host memory at the address of a word: there is none behind device addresses.
fn is_host_word(handle: u64, address: u64, bytes: u32) -> CuResult<bool> {
    let inner = session()?.lock();
    stream(&inner, handle)?;
    if address == 0 || !address.is_multiple_of(u64::from(bytes)) {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(inner.host.size_of(address).is_some())
}

fn write_value(handle: u64, address: u64, value: u64, bytes: u32, _flags: u32) -> CuResult {
    let is_memory = is_host_word(handle, address, bytes)?;
    if is_captured(handle, TYPE_BATCH_MEM_OP)? {
        return Ok(());
    }
    match timeline() {
        Some(timeline) => {
            let effect = is_memory.then_some(Effect::Write { address, value, bytes });
            timeline.submit(place(handle)?, Op::Mark, effect).map(|_| ())
        }
        None if is_memory => {
            write(address, value, bytes);
            Ok(())
        }
        None => Ok(()),
    }
}

/// Without a timeline there is nothing that could wait.
fn wait_value(handle: u64, address: u64, value: u64, bytes: u32, condition: u32) -> CuResult {
    let is_memory = is_host_word(handle, address, bytes)?;
    if is_captured(handle, TYPE_BATCH_MEM_OP)? {
        return Ok(());
    }
    match timeline() {
        Some(timeline) if is_memory => {
            let effect = Effect::Await { address, value, bytes, condition };
            timeline.submit(place(handle)?, Op::Hold, Some(effect)).map(|_| ())
        }
        _ => Ok(()),
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
        create(out, |context| Object::Stream { flags, priority: 0, context, green: 0 })
    }
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, |context| Object::Stream { flags, priority, context, green: 0 })
    }
    fn cuStreamDestroy_v2(handle: u64) { end(handle) }
    fn cuStreamSynchronize(handle: u64) { synchronize(handle) }
    fn cuStreamSynchronize_ptsz(handle: u64) { synchronize(per_thread(handle)) }
    fn cuStreamQuery(handle: u64) { query(handle) }
    fn cuStreamQuery_ptsz(handle: u64) { query(per_thread(handle)) }
    fn cuStreamWaitEvent(handle: u64, event: u64, _flags: u32) { super::event::wait_in(handle, event) }
    fn cuStreamWaitEvent_ptsz(handle: u64, event: u64, _flags: u32) { super::event::wait_in(per_thread(handle), event) }
    fn cuStreamGetFlags(handle: u64, out: Out<u32>) {
        check_not_captured(handle)?;
        let Object::Stream { flags, .. } = stream(&session()?.lock(), handle)? else { return Err(CuError::INVALID_HANDLE) };
        Ok(out.set(flags)?)
    }
    fn cuStreamGetPriority(handle: u64, out: Out<i32>) {
        let Object::Stream { priority, .. } = stream(&session()?.lock(), handle)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        Ok(out.set(priority)?)
    }
    fn cuLaunchHostFunc(handle: u64, function: Option<HostFunction>, data: *mut c_void) {
        launch_host(handle, function, data)
    }
    fn cuLaunchHostFunc_ptsz(handle: u64, function: Option<HostFunction>, data: *mut c_void) {
        launch_host(per_thread(handle), function, data)
    }
}

/// Writes to and waits for words of memory. The first versions of these functions differ in what they support only.
macro_rules! memory_words {
    ($(fn $name:ident($what:ident, $value:ty, $bytes:literal, $stream:expr);)*) => {driver_api! {$(
        fn $name(handle: u64, address: u64, value: $value, flags: u32) {
            $what($stream(handle), address, u64::from(value), $bytes, flags)
        }
    )*}};
}

memory_words! {
    fn cuStreamWriteValue32(write_value, u32, 4, identity);
    fn cuStreamWriteValue32_ptsz(write_value, u32, 4, per_thread);
    fn cuStreamWriteValue32_v2(write_value, u32, 4, identity);
    fn cuStreamWriteValue32_v2_ptsz(write_value, u32, 4, per_thread);
    fn cuStreamWriteValue64(write_value, u64, 8, identity);
    fn cuStreamWriteValue64_ptsz(write_value, u64, 8, per_thread);
    fn cuStreamWriteValue64_v2(write_value, u64, 8, identity);
    fn cuStreamWriteValue64_v2_ptsz(write_value, u64, 8, per_thread);
    fn cuStreamWaitValue32(wait_value, u32, 4, identity);
    fn cuStreamWaitValue32_ptsz(wait_value, u32, 4, per_thread);
    fn cuStreamWaitValue32_v2(wait_value, u32, 4, identity);
    fn cuStreamWaitValue32_v2_ptsz(wait_value, u32, 4, per_thread);
    fn cuStreamWaitValue64(wait_value, u64, 8, identity);
    fn cuStreamWaitValue64_ptsz(wait_value, u64, 8, per_thread);
    fn cuStreamWaitValue64_v2(wait_value, u64, 8, identity);
    fn cuStreamWaitValue64_v2_ptsz(wait_value, u64, 8, per_thread);
}
