//! The hooks of the launch functions.

#![expect(clippy::too_many_arguments, reason = "the functions of the driver have them")]

use core::ffi::{c_uint, c_void};
use core::sync::atomic::Ordering::Relaxed;

use super::price::key;
use super::{fast, fences, passes, synchronized, thread, through};
use crate::capture_mode::RelaxedMode;
use crate::function::Status;
use crate::process::process;

/// `CUfunction`, `CUgraphExec`, `CUstream`.
pub(super) type Handle = *mut c_void;
type Kernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut Handle,
    *mut Handle,
) -> Status;
type Cooperative = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut Handle,
) -> Status;
type Extended = unsafe extern "C" fn(*const Configuration, Handle, *mut Handle, *mut Handle) -> Status;

/// The beginning of `CUlaunchConfig`.
#[repr(C)]
pub(super) struct Configuration {
    pub(super) grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    pub(super) stream: Handle,
}

/// A stream by a handle that means the same in every function: the functions named `_ptsz` call the thread's own default stream 0.
fn stream_of<const PER_THREAD: bool>(stream: Handle) -> usize {
    const OF_THREAD: usize = 2;
    if PER_THREAD && stream.is_null() { OF_THREAD } else { stream as usize }
}

#[rustfmt::skip]
pub(super) unsafe fn kernel<const PER_THREAD: bool>(
    real: Kernel, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
    shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle,
) -> Status {
    if !PER_THREAD {
        fast::KERNEL.is_at(real as *mut c_void);
    }
    let (key, on) = (key(function as usize, [gx, gy, gz]), stream_of::<PER_THREAD>(stream));
    if passes(key, on) {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) };
    }
    through(key, on, move || {
        // SAFETY: the call contract; the arguments are passed unchanged.
        unsafe { real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra) }
    })
}

#[rustfmt::skip]
pub(super) unsafe fn cooperative<const PER_THREAD: bool>(
    real: Cooperative, function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint,
    shared: c_uint, stream: Handle, parameters: *mut Handle,
) -> Status {
    let (key, on) = (key(function as usize, [gx, gy, gz]), stream_of::<PER_THREAD>(stream));
    if passes(key, on) {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters) };
    }
    through(key, on, move || {
        // SAFETY: the call contract; the arguments are passed unchanged.
        unsafe { real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters) }
    })
}

pub(super) unsafe fn extended<const PER_THREAD: bool>(
    real: Extended,
    configuration: *const Configuration,
    function: Handle,
    parameters: *mut Handle,
    extra: *mut Handle,
) -> Status {
    // SAFETY: the call contract: null, or valid for the driver to read.
    let Some(given) = (unsafe { configuration.as_ref() }) else {
        // SAFETY: the call contract; the driver refuses it.
        return unsafe { real(configuration, function, parameters, extra) };
    };
    if !PER_THREAD {
        fast::EXTENDED.is_at(real as *mut c_void);
    }
    let (key, on) = (key(function as usize, given.grid), stream_of::<PER_THREAD>(given.stream));
    if passes(key, on) {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(configuration, function, parameters, extra) };
    }
    through(key, on, move || {
        // SAFETY: the call contract; the arguments are passed unchanged.
        unsafe { real(configuration, function, parameters, extra) }
    })
}

/// A graph is launched as a whole. `launch` is what remains to be done about its memory, and the launch.
pub(crate) fn graph(
    executable: Handle,
    stream: Handle,
    per_thread: bool,
    launch: &dyn Fn() -> Status,
) -> Status {
    let stream = if per_thread { stream_of::<true>(stream) } else { stream_of::<false>(stream) };
    let key = executable as u64 | 1;
    if passes(key, stream) { launch() } else { through(key, stream, launch) }
}

/// Everything in the context has ended once `wait` has returned.
pub(crate) fn synchronized_context(wait: impl FnOnce() -> Status) -> Status {
    attended(wait, |_| true)
}

/// Everything in the stream has.
pub(crate) fn synchronized_stream(stream: Handle, per_thread: bool, wait: impl FnOnce() -> Status) -> Status {
    let stream = if per_thread { stream_of::<true>(stream) } else { stream_of::<false>(stream) };
    attended(wait, |thread| thread.used_only(stream))
}

/// An event has been reached: fences and the default streams show which other work has ended.
pub(crate) fn synchronized_event(wait: impl FnOnce() -> Status) -> Status {
    attended(wait, |thread| {
        let _relaxed = RelaxedMode::enter();
        (0..=2).any(|stream| thread.used_only(stream) && fences::is_default_stream_idle(stream))
    })
}

/// Says to the arbiter that this thread waits for the end of its work, and then what has ended.
fn attended(wait: impl FnOnce() -> Status, all: impl FnOnce(&thread::Thread) -> bool) -> Status {
    let known = process().and_then(|process| {
        let page = process.existing_gate_page()?;
        let thread = process.gate.threads.find(thread::pointer())?;
        let slot = thread.slot()?;
        (slot.submitted_ns() != slot.confirmed_ns.load(Relaxed)).then_some((process, page, thread, slot))
    });
    let Some((process, page, thread, slot)) = known else { return wait() };
    slot.attends.store(1, Relaxed);
    let status = wait();
    synchronized(process, page, thread, status == crate::cuda::SUCCESS && all(thread));
    status
}
