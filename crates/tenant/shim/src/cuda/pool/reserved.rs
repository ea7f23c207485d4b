//! The charge for the memory that pools have reserved: see [`crate::cuda::pool`].

use core::sync::atomic::Ordering::{Relaxed, Release};

use cantle_ledger::{GRANULE_BYTES, Over, granules_holding};

use super::Pool;
use super::end::destroy_if_left_and_empty;
use super::question::{Answer, Guest, ask};
use crate::capture_mode::RelaxedMode;
use crate::cuda::alloc::slice_gpu::{Balance, SliceGpu};
use crate::holdings::PoolCalls;
use crate::process::process;
use crate::table::Entry;

/// In place of the idle memory of an entry: its pool may have gone with its GPU's primary context.
pub(crate) const UNSURE: u64 = u64::MAX;
/// In place of the idle memory of an entry: the program has destroyed the pool ([`super::end`]).
pub(crate) const LEAVING: u64 = u64::MAX - 1;

/// The driver's pools grow in steps of this size.
const STEP_BYTES: u64 = 32 << 20;

/// The maximum growth of a pool for an allocation that does not fit into its memory.
pub(crate) const fn growth_granules(bytes: u64) -> u32 {
    granules_holding(bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES))
}

/// Up to this many requests, of at most this size together, are settled by one question to the pool.
const UNASKED_BYTES: u64 = STEP_BYTES;
const UNASKED_CALLS: u32 = 64;
/// Larger ones only while the slice has room for what the pool may have grown by.
const SMALL_BYTES: u64 = 64 << 10;

/// Pools pack what they give out at multiples of this.
const SLOT_BYTES: u64 = 512;

/// Whether a pool has enough idle memory for a request. The end of the idle memory may be too small to be given out.
fn fits(bytes: u64, idle_bytes: u64) -> bool {
    bytes.checked_next_multiple_of(SLOT_BYTES).is_some_and(|taken| taken <= idle_bytes)
}

/// Whether the context of an entry is idle memory.
const fn is_idle(entry: &Entry) -> bool {
    entry.context < LEAVING
}

/// The entry of a pool that is on the balance's GPU.
pub(crate) fn known_to(balance: &Balance, pool: Pool) -> Option<Entry> {
    let known = balance.process().pools.get(pool as u64);
    known.filter(|entry| entry.gpu() == balance.gpu() && entry.context != UNSURE)
}

/// The memory that one call relies on while it is inside the driver: its part of [`PoolCalls`].
pub(crate) struct CallShare {
    ahead: u32,
    claimed_bytes: u64,
    /// Its part of the memory by which the pool grows.
    of_growth_bytes: u64,
}

impl CallShare {
    fn begin(self, balance: &mut Balance) -> Self {
        let calls = &mut balance.holdings.pool_calls;
        calls.ahead = calls.ahead.saturating_add(self.ahead);
        calls.unused = calls.unused.saturating_add(self.ahead);
        calls.claimed_bytes = calls.claimed_bytes.saturating_add(self.claimed_bytes);
        self
    }

    /// The call has returned: the pool's growth is charged, and what no other call counts on is given back.
    ///
    /// The question to the pool costs a third of a call of the driver. A request that idle memory was claimed for makes the pool grow
    /// only if that memory is in pieces, so then it is asked after some calls only: all of them fit into one step, for which the slice has
    /// room. Idle memory is asked about in the same call if too little would be known for the next request.
    pub(crate) fn settle(mut self, gpu: SliceGpu, pool: Pool) -> Result<(), Over> {
        let Some(mut balance) = gpu.lock() else { return Ok(()) };
        let room = balance.room_granules();
        let calls = &mut balance.holdings.pool_calls;
        // An answer from now on knows that this memory is in use.
        calls.ended_bytes = calls.ended_bytes.wrapping_add(self.claimed_bytes);
        calls.claimed_bytes = calls.claimed_bytes.saturating_sub(self.claimed_bytes);
        let unasked_bytes = calls.unasked_bytes.saturating_add(self.claimed_bytes);
        let is_asked = self.ahead > 0
            || unasked_bytes > UNASKED_BYTES
            || calls.unasked >= UNASKED_CALLS
            || self.claimed_bytes > SMALL_BYTES && room < growth_granules(UNASKED_BYTES);
        calls.unasked = if is_asked { 0 } else { calls.unasked + 1 };
        calls.unasked_bytes = if is_asked { 0 } else { unasked_bytes };
        let mut settled = Ok(());
        if is_asked {
            let is_idle_known =
                known_to(&balance, pool).is_some_and(|known| known.context > self.claimed_bytes);
            drop(balance);
            match ask(gpu, pool, !is_idle_known) {
                Some((locked, answer)) if is_idle_known => {
                    balance = locked;
                    settled = settle_at(&mut balance, pool, answer);
                }
                Some((locked, answer)) => {
                    balance = locked;
                    let is_told;
                    (settled, is_told) = learn(&mut balance, pool, answer);
                    // Memory that this call has taken counts as used in the answer.
                    self.of_growth_bytes = if is_told { 0 } else { self.of_growth_bytes };
                }
                None => match gpu.lock() {
                    Some(locked) => balance = locked,
                    None => return Ok(()),
                },
            }
        }
        self.end(&mut balance, pool);
        settled
    }

    fn end(self, balance: &mut Balance, pool: Pool) {
        balance.process().pools.update(pool as u64, |entry| {
            if is_idle(entry) {
                entry.context = entry.context.saturating_sub(self.of_growth_bytes);
            }
        });
        let calls = &mut balance.holdings.pool_calls;
        calls.answers = calls.answers.wrapping_add(u32::from(self.ahead > 0));
        calls.ahead = calls.ahead.saturating_sub(self.ahead);
        let surplus = calls.unused.saturating_sub(calls.ahead);
        calls.unused -= surplus;
        balance.account.release(surplus);
    }
}

/// Reserves what the pool may have to grow by for `bytes`. Its idle memory counts unless another call was promised it, and is
/// trimmed if the growth is refused.
///
/// The driver is asked what is idle only where too little is known to be. The known amount is never too much, because it is
/// charged for the pool: only an allocation makes it less, and each takes its part here; what is freed is not added. Should
/// the pool have become smaller since, then what it grows by is charged already.
pub(crate) fn reserve_growth(gpu: SliceGpu, pool: Pool, bytes: u64) -> Result<CallShare, Over> {
    const NONE: Over = Over { used: 0, limit: 0, asked: 0 };
    let claimed =
        || CallShare { ahead: 0, claimed_bytes: bytes.next_multiple_of(SLOT_BYTES), of_growth_bytes: 0 };
    let mut balance = gpu.lock().ok_or(NONE)?;
    // While a pool grows for another call, nothing says which call.
    if balance.holdings.pool_calls.ahead == 0 && claim(&balance, pool, bytes) {
        return Ok(claimed().begin(&mut balance));
    }
    drop(balance);
    let mut balance = match ask(gpu, pool, true) {
        Some((mut balance, answer)) => {
            if learn(&mut balance, pool, answer).1 && claim(&balance, pool, bytes) {
                return Ok(claimed().begin(&mut balance));
            }
            balance
        }
        None => gpu.lock().ok_or(NONE)?,
    };
    let growth = growth_granules(bytes);
    if balance.account.reserve(growth).is_err() {
        drop(balance);
        trim(gpu, pool);
        balance = gpu.lock().ok_or(NONE)?;
        balance.account.reserve(growth)?;
    }
    Ok(CallShare { ahead: growth, claimed_bytes: 0, of_growth_bytes: bytes }.begin(&mut balance))
}

/// Takes the part of an allocation from what is known to be idle, if that suffices.
fn claim(balance: &Balance, pool: Pool, bytes: u64) -> bool {
    let fitting = known_to(balance, pool).filter(|known| is_idle(known) && fits(bytes, known.context));
    fitting.is_some()
        && balance.process().pools.update(pool as u64, |entry| {
            entry.context = entry.context.saturating_sub(bytes.next_multiple_of(SLOT_BYTES));
        })
}

/// Charges a pool's reserved memory, and learns how much of it is idle: whether the answer tells.
fn learn(balance: &mut Balance, pool: Pool, answer: Answer) -> (Result<(), Over>, bool) {
    let settled = settle_at(balance, pool, answer);
    let calls = &balance.holdings.pool_calls;
    // Memory of calls that are under way, or that ended since the question, may or may not count as used in the answer.
    let promised_bytes =
        calls.claimed_bytes.saturating_add(calls.ended_bytes.wrapping_sub(answer.ended_bytes));
    let idle_bytes = answer.reserved_bytes.saturating_sub(answer.used_bytes).saturating_sub(promised_bytes);
    let mut is_told = false;
    if answer.is_current {
        balance.process().pools.update(pool as u64, |entry| {
            is_told = is_idle(entry);
            entry.context = if is_told { idle_bytes } else { entry.context };
        });
    }
    (settled, is_told)
}

/// Makes the pool as small as it can be.
pub(crate) fn trim(gpu: SliceGpu, pool: Pool) {
    if let Some(_guest) = Guest::enter(gpu.process(), pool)
        && let Ok(trim) = crate::cuda::real::cuMemPoolTrimTo.get()
    {
        let _relaxed = RelaxedMode::enter();
        // SAFETY: a pool with a guest is not destroyed.
        unsafe { trim(pool, 0) };
    }
    let _over = settle(gpu, pool);
}

/// Sets the charge to the pool's reservation. Growth is what calls have reserved for it ([`PoolCalls`]). An error is growth beyond
/// that which exceeds the limit; it is charged all the same, because it has happened.
pub(crate) fn settle(gpu: SliceGpu, pool: Pool) -> Result<(), Over> {
    ask(gpu, pool, false).map_or(Ok(()), |(mut balance, answer)| settle_at(&mut balance, pool, answer))
}

/// As [`settle`], with what the driver has answered. An old answer never makes the charge less: the pool may have grown since.
fn settle_at(balance: &mut Balance, pool: Pool, answer: Answer) -> Result<(), Over> {
    let Some(known) = known_to(balance, pool) else { return Ok(()) };
    balance.holdings.pool_calls.answers = balance.holdings.pool_calls.answers.wrapping_add(1);
    let (before, reported) = (granules_holding(known.bytes()), granules_holding(answer.reserved_bytes));
    let now = if answer.is_current { reported } else { reported.max(before) };
    if before == now {
        return Ok(());
    }
    let PoolCalls { unused, .. } = &mut balance.holdings.pool_calls;
    let expected = now.saturating_sub(before).min(*unused);
    *unused -= expected;
    let settled = balance.account_for(before.saturating_add(expected), now);
    let bytes = |granules: u32| u64::from(granules) * GRANULE_BYTES;
    balance.process().pools.update(pool as u64, |entry| {
        entry.set_bytes(bytes(now));
        if !is_idle(entry) {
            return;
        }
        // It is unknown how much of an unreserved growth is idle.
        let grown = entry.context.saturating_add(bytes(expected));
        entry.context = grown.saturating_sub(bytes(before.saturating_sub(now)));
    });
    settled
}

/// The GPU's primary context has ended, and perhaps its pools with it: asking one that has gone may crash. Nothing is charged for
/// them until the program uses them again; what they still held shows in the driver's own figures.
pub(crate) fn forget(gpu: usize) {
    let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) else { return };
    process.pool_changes.fetch_add(1, Release);
    process.pools.each(|entry| {
        if let Some(mut balance) = SliceGpu::charged(gpu).and_then(SliceGpu::lock)
            && let Some(known) = known_to(&balance, entry.key as Pool)
        {
            process.pools.update(entry.key, |entry| {
                entry.set_bytes(0);
                entry.context = UNSURE;
            });
            balance.account.release(granules_holding(known.bytes()));
        }
    });
}

/// Reads all pools again, after a call that may have made them smaller.
pub(crate) fn settle_all() {
    each_pool(|gpu, pool| {
        let _over = settle(gpu, pool);
        destroy_if_left_and_empty(gpu, pool);
    });
}

/// Makes all pools as small as they can be.
pub(crate) fn trim_all() {
    each_pool(trim);
}

fn each_pool(work: impl Fn(SliceGpu, Pool)) {
    let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) else { return };
    process.pools.each(|entry| {
        if let Some(gpu) = SliceGpu::charged(entry.gpu()) {
            work(gpu, entry.key as Pool);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_whole_slots_of_what_is_idle() {
        assert!(fits(1024, 1024) && fits(1, 512) && fits(0, 0));
        assert!(!fits(1001, 1001), "the last slot is not whole");
        assert!(!fits(1, 511) && !fits(513, 1023));
        assert!(!fits(u64::MAX, u64::MAX), "rounded up it is more than there can be");
    }

    #[test]
    fn growth_is_in_whole_steps() {
        assert_eq!(growth_granules(1), 16);
        assert_eq!(growth_granules(STEP_BYTES + 1), 32);
    }
}
