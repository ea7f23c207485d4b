//! Events. They are reached at once, and all times are 0, unless this process has a [`timeline`](super::timeline).

use super::effects::{Effect, Stamp};
use super::execution::{Object, create, destroy};
use super::session::session;
use super::stream::{per_thread, place, settle_pools, stream};
use super::timeline::timeline;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;
use crate::time::Op;

const DISABLE_TIMING: u32 = 2;

/// The flags of an event.
fn event(handle: u64) -> CuResult<u32> {
    match session()?.lock().objects.get(handle)? {
        Object::Event { flags } => Ok(flags),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

/// The flags of an event that was not recorded into a capture: a program cannot learn when an event of a capture is
/// reached.
fn real_event(handle: u64) -> CuResult<u32> {
    let flags = event(handle)?;
    let is_captured = session()?.lock().graphs.captures.is_captured_event(handle);
    if is_captured { Err(CuError::CAPTURED_EVENT) } else { Ok(flags) }
}

fn record(handle: u64, on: u64) -> CuResult {
    event(handle)?;
    let mut inner = session()?.lock();
    stream(&inner, on)?;
    if inner.capture_record(handle, on)? {
        return Ok(());
    }
    drop(inner);
    let Some(timeline) = timeline() else { return Ok(()) };
    timeline.submit(place(on)?, Op::Mark, Some(Effect::Event(handle))).map(|_| ())
}

/// When an event was reached: `None` if it was never recorded, `Err(NOT_READY)` if not yet.
fn reached_ns(handle: u64) -> CuResult<Option<u64>> {
    let Some(timeline) = timeline() else { return Ok(None) };
    let mut lines = timeline.lock();
    if let Some(Stamp::Pending { key, .. }) = lines.stamps.get(&handle).copied() {
        timeline.refresh(&mut lines, key);
    }
    match lines.stamps.get(&handle) {
        None => Ok(None),
        Some(Stamp::At(at_ns)) => Ok(Some(*at_ns)),
        Some(Stamp::Pending { .. }) => Err(CuError::NOT_READY),
    }
}

fn synchronize(handle: u64) -> CuResult {
    real_event(handle)?;
    session()?.lock().forbid_unsafe()?;
    if let Some(timeline) = timeline() {
        let stamp = timeline.lock().stamps.get(&handle).copied();
        if let Some(Stamp::Pending { key, seq, .. }) = stamp {
            timeline.wait(key, seq);
        }
    }
    settle_pools()
}

/// Work that is queued in a stream from now on waits for an event.
pub(super) fn wait_in(on: u64, handle: u64) -> CuResult {
    event(handle)?;
    let mut inner = session()?.lock();
    stream(&inner, on)?;
    if inner.capture_wait(on, handle)? {
        return Ok(());
    }
    drop(inner);
    let Some(timeline) = timeline() else { return Ok(()) };
    let stamp = timeline.lock().stamps.get(&handle).copied();
    let Some(Stamp::Pending { key, channel, seq }) = stamp else { return Ok(()) };
    let place = place(on)?;
    if place.key == key {
        return Ok(());
    }
    let engine = timeline.lock().lines.get(&key).map(|line| line.place.engine);
    match engine {
        Some(engine) if engine == place.engine => {
            timeline.submit(place, Op::Wait { channel, seq }, None).map(|_| ())
        }
        // Engines do not know of each other's channels.
        Some(_) => timeline.submit(place, Op::Hold, Some(Effect::Elsewhere { key, seq })).map(|_| ()),
        None => Ok(()),
    }
}

fn elapsed(start: u64, end: u64) -> CuResult<f32> {
    let flags = real_event(start)? | real_event(end)?;
    if timeline().is_none() {
        return Ok(0.0);
    }
    let times = (reached_ns(start)?, reached_ns(end)?);
    let ((Some(start_ns), Some(end_ns)), 0) = (times, flags & DISABLE_TIMING) else {
        return Err(CuError::INVALID_HANDLE);
    };
    Ok((end_ns as f64 - start_ns as f64) as f32 / 1e6)
}

driver_api! {
    fn cuEventCreate(out: Out<u64>, flags: u32) { create(out, |_| Object::Event { flags }) }
    fn cuEventDestroy_v2(handle: u64) {
        destroy(handle)?;
        if let Some(timeline) = timeline() {
            timeline.lock().stamps.remove(&handle);
        }
        Ok(())
    }
    fn cuEventRecord(handle: u64, on: u64) { record(handle, on) }
    fn cuEventRecord_ptsz(handle: u64, on: u64) { record(handle, per_thread(on)) }
    fn cuEventRecordWithFlags(handle: u64, on: u64, _flags: u32) { record(handle, on) }
    fn cuEventRecordWithFlags_ptsz(handle: u64, on: u64, _flags: u32) { record(handle, per_thread(on)) }
    fn cuEventQuery(handle: u64) {
        real_event(handle)?;
        session()?.lock().forbid_unsafe()?;
        reached_ns(handle).map(|_| ())
    }
    fn cuEventSynchronize(handle: u64) { synchronize(handle) }
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        Ok(milliseconds.set(elapsed(start, end)?)?)
    }
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        Ok(milliseconds.set(elapsed(start, end)?)?)
    }
}
