//! Questions to a pool: how much memory it has reserved, and how much of that is in use.
//!
//! No lock is held over a question: a profiler is called back at each call of the driver, also at ours, and may call a hook, or wait for a thread that
//! is in one. Two things follow.
//!
//! * *The pool must not be destroyed meanwhile.* The thread that asks is its [`Guest`]. A pool that is destroyed
//!   while it has guests is destroyed by the last of them: no thread waits for another one.
//! * *The answer may be old when it is used.* The balance counts what makes it old. Then the pool is asked again, a few times; after that the answer counts
//!   only as far as that is safe. So that this is rare, threads ask in turn, unless that takes long.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Pool;
use super::reserved::UNSURE;
use crate::capture_mode::RelaxedMode;
use crate::cuda::alloc::slice_gpu::{Balance, SliceGpu};
use crate::cuda::{SUCCESS, driver};
use crate::process::Process;
use crate::table::Entry;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const RESERVED: c_int = 5;
const USED: c_int = 7;

/// How often a pool is asked at most.
const ATTEMPTS: u32 = 4;
/// How long a thread waits for its turn: some questions of others.
const SPINS: u32 = 2000;

/// A pool's answer.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) reserved_bytes: u64,
    pub(crate) used_bytes: u64,
    /// Nothing has made it old.
    pub(crate) is_current: bool,
    /// [`PoolCalls::ended_bytes`](crate::holdings::PoolCalls::ended_bytes) when the question was asked.
    pub(crate) ended_bytes: u64,
}

/// Asks a pool, with no lock held, and locks its balance. `None` if the pool is not known, or does not answer.
pub(crate) fn ask(gpu: SliceGpu, pool: Pool, with_used: bool) -> Option<(Balance, Answer)> {
    let _turn = Turn::enter(gpu.process());
    let mut attempt = 1;
    loop {
        let (answers, ended_bytes) = {
            let calls = &gpu.lock()?.holdings.pool_calls;
            (calls.answers, calls.ended_bytes)
        };
        let (reserved_bytes, used_bytes) = {
            let guest = Guest::enter(gpu.process(), pool)?;
            let _relaxed = RelaxedMode::enter();
            (guest.attribute(RESERVED)?, if with_used { guest.attribute(USED)? } else { 0 })
        };
        let balance = gpu.lock()?;
        let is_current = balance.holdings.pool_calls.answers == answers;
        if is_current || attempt == ATTEMPTS {
            return Some((balance, Answer { reserved_bytes, used_bytes, is_current, ended_bytes }));
        }
        attempt += 1;
    }
}

/// Others wait while it lives, but not for long: another thread may have to continue first.
struct Turn<'a>(Option<&'a Process>);

impl<'a> Turn<'a> {
    fn enter(process: &'a Process) -> Self {
        for _ in 0..SPINS {
            if process.is_asking.compare_exchange_weak(false, true, Acquire, Relaxed).is_ok() {
                return Self(Some(process));
            }
            core::hint::spin_loop();
        }
        Self(None)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(process) = self.0 {
            process.is_asking.store(false, Release);
        }
    }
}

/// Set in the entry of a pool's guests: the last one destroys it.
const DOOMED: u64 = 1 << 63;

/// While it lives, the pool is not destroyed.
pub(crate) struct Guest<'a> {
    process: &'a Process,
    pool: Pool,
}

impl<'a> Guest<'a> {
    /// `None` if the pool is not known, or may have gone with its context.
    pub(crate) fn enter(process: &'a Process, pool: Pool) -> Option<Self> {
        let key = pool as u64;
        let is_known = || process.pools.get(key).is_some_and(|known| known.context != UNSURE);
        if !is_known() {
            return None;
        }
        process.pool_guests.join(Entry::new(key, 1, 0, 0), |guests| guests.context += 1).ok()?;
        let guest = Self { process, pool };
        // A thread that destroys it takes it off the table first, and then looks for guests.
        is_known().then_some(guest)
    }

    /// Asked in the relaxed mode.
    fn attribute(&self, which: c_int) -> Option<u64> {
        let mut bytes = 0_u64;
        // SAFETY: the pool has a guest, so it is not destroyed; for these attributes the driver writes 64 bits, which `bytes` is.
        let status =
            unsafe { driver::cuMemPoolGetAttribute.get().ok()?(self.pool, which, (&raw mut bytes).cast()) };
        (status == SUCCESS).then_some(bytes)
    }

    /// Bytes that are in use.
    pub(crate) fn used_bytes(&self) -> Option<u64> {
        let _relaxed = RelaxedMode::enter();
        self.attribute(USED)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        let last = self.process.pool_guests.remove_if(self.pool as u64, |guests| {
            guests.context -= 1;
            guests.context & !DOOMED == 0
        });
        if last.is_some_and(|last| last.context & DOOMED != 0)
            && let Ok(destroy) = crate::cuda::real::cuMemPoolDestroy.get()
        {
            // SAFETY: the program has destroyed it, and its call has succeeded; nothing refers to it but this guest,
            // the last one.
            unsafe { destroy(self.pool) };
        }
    }
}

/// Whether a pool that is off the table has guests: then the last one destroys it.
pub(crate) fn is_left_to_guests(process: &Process, pool: Pool) -> bool {
    process.pool_guests.update(pool as u64, |guests| guests.context |= DOOMED)
}
