//! Reads the time, and sleeps.

use core::sync::atomic::AtomicU32;

/// `CLOCK_MONOTONIC`, in nanoseconds. Only slow paths ask.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // By number: the C library's symbol is newer than what the filter may need.
    // SAFETY: the kernel writes one `timespec`, to a live local.
    unsafe { libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Waits until `word` differs from `seen` and a wake-up arrives, for `limit_ns` at most. The word is another process's, and
/// read-only here.
pub(super) fn wait_for_change(word: &AtomicU32, seen: u32, limit_ns: u64) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: limit_ns.min(999_999_999) as libc::c_long };
    // SAFETY: errno's address belongs to this thread. The kernel only reads `word`, which is borrowed for the call, and `limit`,
    // a live local.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit);
        *libc::__errno_location() = errno;
    }
}
