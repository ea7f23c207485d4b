//! The charge for the memory that pools have reserved: see [`super::pool`].

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Relaxed, Release};

use cantle_ledger::{GRANULE_BYTES, Over, granules_holding};

use super::charge::{Balance, SliceGpu};
use super::pool::Pool;
use super::{SUCCESS, driver};
use crate::capture_mode::RelaxedMode;
use crate::holdings::PoolCalls;
use crate::process::process;
use crate::table::Entry;

/// In place of the idle memory of an entry: its pool may have gone with its GPU's primary context.
pub(super) const UNSURE: u64 = u64::MAX;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
pub(super) const RESERVED: c_int = 5;
pub(super) const USED: c_int = 7;

/// The driver's pools grow in steps of this size.
const STEP_BYTES: u64 = 32 << 20;

/// The maximum growth of a pool for an allocation that does not fit into its memory.
pub(super) const fn growth_granules(bytes: u64) -> u32 {
    granules_holding(bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES))
}

/// Up to this many requests, each of at most this size, are settled by one question to the pool.
const UNASKED_BYTES: u64 = 64 << 10;
const UNASKED_CALLS: u32 = 64;
const _: () = assert!(UNASKED_BYTES * UNASKED_CALLS as u64 <= STEP_BYTES);

/// Pools pack what they give out at multiples of this.
const SLOT_BYTES: u64 = 512;

/// Whether a pool has enough idle memory for a request. The end of the idle memory may be too small to be given out.
fn fits(bytes: u64, idle_bytes: u64) -> bool {
    bytes.checked_next_multiple_of(SLOT_BYTES).is_some_and(|taken| taken <= idle_bytes)
}

/// # Safety
/// `pool` is not destroyed during the call, and `which` is [`RESERVED`] or [`USED`].
pub(super) unsafe fn attribute(pool: Pool, which: c_int) -> Option<u64> {
    let mut bytes = 0_u64;
    let _relaxed = RelaxedMode::enter();
    // SAFETY: by this function's condition the handle is valid and the driver writes 64 bits, which `bytes` is.
    let status = unsafe { driver::cuMemPoolGetAttribute.get().ok()?(pool, which, (&raw mut bytes).cast()) };
    (status == SUCCESS).then_some(bytes)
}

/// The entry of a pool that is on the balance's GPU. While the balance is locked, such a pool is not destroyed ([`destroy`]).
pub(super) fn known_to(balance: &Balance, pool: Pool) -> Option<Entry> {
    let known = balance.process().pools.get(pool as u64);
    known.filter(|entry| entry.gpu() == balance.gpu() && entry.context != UNSURE)
}

/// The memory that one call relies on while it is inside the driver: its part of [`PoolCalls`].
pub(super) struct CallShare {
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
    /// The question to the pool costs a third of a call of the driver. A small request that idle memory was claimed for makes the pool
    /// grow only if that memory is in pieces, so then it is asked after some calls only: they can't take more than a step.
    pub(super) fn settle(self, balance: &mut Balance, pool: Pool) -> Result<(), Over> {
        let is_asked = self.ahead > 0
            || self.claimed_bytes > UNASKED_BYTES
            || balance.holdings.pool_calls.unasked >= UNASKED_CALLS;
        let settled = if is_asked { settle(balance, pool) } else { Ok(()) };
        let unasked = &mut balance.holdings.pool_calls.unasked;
        *unasked = if is_asked { 0 } else { *unasked + 1 };
        balance.process().pools.update(pool as u64, |entry| {
            if entry.context != UNSURE {
                entry.context = entry.context.saturating_sub(self.of_growth_bytes);
            }
        });
        let calls = &mut balance.holdings.pool_calls;
        calls.ahead = calls.ahead.saturating_sub(self.ahead);
        calls.claimed_bytes = calls.claimed_bytes.saturating_sub(self.claimed_bytes);
        let surplus = calls.unused.saturating_sub(calls.ahead);
        calls.unused -= surplus;
        balance.account.release(surplus);
        settled
    }
}

/// Reserves what the pool may have to grow by for `bytes`. Its idle memory counts unless another call was promised it, and is
/// trimmed if the growth is refused.
///
/// The driver is asked what is idle only where too little is known to be. The known amount is never too much, because it is
/// charged for the pool: only an allocation makes it less, and each takes its part here; what is freed is not added. Should
/// the pool have become smaller since, then what it grows by is charged already.
pub(super) fn reserve_growth(balance: &mut Balance, pool: Pool, bytes: u64) -> Result<CallShare, Over> {
    // While a pool grows for another call, nothing says which call.
    let is_known = balance.holdings.pool_calls.ahead == 0 && claim(balance, pool, bytes);
    if is_known || { ask_idle(balance, pool) && claim(balance, pool, bytes) } {
        let claimed_bytes = bytes.next_multiple_of(SLOT_BYTES);
        return Ok(CallShare { ahead: 0, claimed_bytes, of_growth_bytes: 0 }.begin(balance));
    }
    let growth = growth_granules(bytes);
    if balance.account.reserve(growth).is_err() {
        trim(balance, pool);
        balance.account.reserve(growth)?;
    }
    Ok(CallShare { ahead: growth, claimed_bytes: 0, of_growth_bytes: bytes }.begin(balance))
}

/// Takes the part of an allocation from what is known to be idle, if that suffices.
fn claim(balance: &Balance, pool: Pool, bytes: u64) -> bool {
    let fitting = known_to(balance, pool).filter(|known| fits(bytes, known.context));
    fitting.is_some()
        && balance.process().pools.update(pool as u64, |entry| {
            entry.context = entry.context.saturating_sub(bytes.next_multiple_of(SLOT_BYTES));
        })
}

/// Asks the driver for a pool's reserved and unused memory, and charges the reserved memory.
fn ask_idle(balance: &mut Balance, pool: Pool) -> bool {
    if known_to(balance, pool).is_none() {
        return false;
    }
    // SAFETY: a pool in the table is not destroyed while the balance is locked.
    let [reserved, used] = [RESERVED, USED].map(|which| unsafe { attribute(pool, which) });
    let Some((reserved, used)) = reserved.zip(used) else { return false };
    let _over = settle_at(balance, pool, reserved);
    let promised_bytes = balance.holdings.pool_calls.claimed_bytes;
    let idle_bytes = reserved.saturating_sub(used).saturating_sub(promised_bytes);
    balance.process().pools.update(pool as u64, |entry| entry.context = idle_bytes)
}

/// Makes the pool as small as it can be.
pub(super) fn trim(balance: &mut Balance, pool: Pool) {
    if known_to(balance, pool).is_some()
        && let Ok(trim) = super::real::cuMemPoolTrimTo.get()
    {
        let _relaxed = RelaxedMode::enter();
        // SAFETY: a pool in the table is not destroyed while the balance is locked.
        unsafe { trim(pool, 0) };
    }
    let _over = settle(balance, pool);
}

/// Sets the charge to the pool's reservation. Growth is what calls have reserved for it ([`PoolCalls`]). An error is growth beyond
/// that which exceeds the limit; it is charged all the same, because it has happened.
pub(super) fn settle(balance: &mut Balance, pool: Pool) -> Result<(), Over> {
    let known = known_to(balance, pool);
    // SAFETY: a pool in the table is not destroyed while the balance is locked.
    let reserved = known.and_then(|_| unsafe { attribute(pool, RESERVED) });
    reserved.map_or(Ok(()), |reserved| settle_at(balance, pool, reserved))
}

/// As [`settle`], with the reservation that the driver has just reported.
fn settle_at(balance: &mut Balance, pool: Pool, reserved_bytes: u64) -> Result<(), Over> {
    let Some(known) = known_to(balance, pool) else { return Ok(()) };
    let (before, now) = (granules_holding(known.bytes()), granules_holding(reserved_bytes));
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
        // It is unknown how much of an unreserved growth is idle.
        let grown = entry.context.saturating_add(bytes(expected));
        entry.context = grown.saturating_sub(bytes(before.saturating_sub(now)));
    });
    settled
}

/// The GPU's primary context has ended, and perhaps its pools with it: asking one that has gone may crash. Nothing is charged for
/// them until the program uses them again; what they still held shows in the driver's own figures.
pub(super) fn forget(gpu: usize) {
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
pub(super) fn settle_all() {
    each_pool(|balance, pool| {
        let _over = settle(balance, pool);
    });
}

/// Makes all pools as small as they can be.
pub(super) fn trim_all() {
    each_pool(trim);
}

fn each_pool(work: impl Fn(&mut Balance, Pool)) {
    let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) else { return };
    process.pools.each(|entry| {
        if let Some(mut balance) = SliceGpu::charged(entry.gpu()).and_then(SliceGpu::lock) {
            work(&mut balance, entry.key as Pool);
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
