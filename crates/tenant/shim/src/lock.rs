//! A mutex for memory that is private to the process: one word, valid when zero, so a child of `fork` finds it free.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const AWAITED: u32 = 2;
/// Work under these locks takes tens of nanoseconds; to sleep and to be woken takes thousands.
const SPINS: u32 = 100;

/// A value and its lock. All-zero bytes are an unlocked one if they are a valid `T`.
///
/// The thread that changes `state` from `FREE` to another value holds the lock, and has the only [`Guard`] until the guard's drop
/// writes
/// `FREE`. Acquire and release order what successive holders do to the value.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: threads reach the value through the one guard only, one after another, which is why it has to be `Send`.
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
        Guard { lock: self, value: PhantomData }
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
    // A program may read errno after our hooks, as after the driver's functions.
    // SAFETY: errno's address belongs to this thread and is valid as long as it runs. The kernel only reads `word`, which is
    // borrowed for the call, and a null timeout means none.
    unsafe {
        let errno = *libc::__errno_location();
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, ptr::null::<libc::timespec>());
        *libc::__errno_location() = errno;
    }
}

/// The value while it is locked.
pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
    /// A guard is as good as an exclusive reference, in particular when other threads see it.
    value: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock, so no other guard refers to the value; the borrow of `self` excludes `deref_mut`.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, so no other guard refers to the value; `self` is borrowed exclusively.
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
