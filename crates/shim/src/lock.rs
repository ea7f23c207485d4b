//! A mutex for memory that is private to the process: one word, valid when zero, so a child of `fork` finds it free.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;
/// What is done under these locks takes some ten nanoseconds; asleep and awake again, some thousand.
const SPINS: u32 = 100;

/// A value and its lock. All-zero bytes are an unlocked one if they are a valid `T`.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives out one reference at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    #[cfg(test)]
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard { lock: self }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.compare_exchange_weak(FREE, TAKEN, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.state.swap(AWAITED, Acquire) != FREE {
            futex(&self.state, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, AWAITED);
        }
    }
}

fn futex(word: &AtomicU32, operation: libc::c_int, value: u32) {
    // The program looks at errno after our hooks as after the driver's functions.
    // SAFETY: `word` lives through the call; no timeout.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, ptr::null::<libc::timespec>());
        *libc::__errno_location() = errno;
    }
}

/// The value while it is locked.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is ours, and so is the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Release) == AWAITED {
            futex(&self.lock.state, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut count = COUNT.lock();
                        *count += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 40_000);
    }
}
