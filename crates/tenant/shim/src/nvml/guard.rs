//! Detects calls from inside NVML. NVML calls some of its own functions by name, and so finds our hooks. Such a call must
//! behave as NVML's own function does.
//!
//! This crate has no thread-locals, so the threads that are inside NVML are listed; NVML calls take microseconds and are rare.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Threads inside NVML at a time that can be listed. For further ones NVML's calls of itself get the slice's answers too.
const THREADS: usize = 64;

static INSIDE: [AtomicU64; THREADS] = [const { AtomicU64::new(0) }; THREADS];

/// The calling thread is inside NVML until this is dropped.
pub(super) struct Inside(Option<&'static AtomicU64>);

/// Enters NVML; `None` if the calling thread is inside already.
pub(super) fn enter() -> Option<Inside> {
    // SAFETY: `pthread_self` takes no arguments and has no preconditions. Its value is not 0 and unique among running threads.
    let thread = unsafe { libc::pthread_self() };
    if INSIDE.iter().any(|cell| cell.load(Relaxed) == thread) {
        return None;
    }
    let free = |cell: &&AtomicU64| cell.compare_exchange(0, thread, AcqRel, Acquire).is_ok();
    Some(Inside(INSIDE.iter().find(free)))
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(cell) = self.0 {
            cell.store(0, Release);
        }
    }
}
