//! What one process holds on one GPU, and the rule by which an allocation is charged.
//!
//! The driver gives out physical memory in granules of 2 MiB. A large allocation takes its size rounded up to granules; small
//! ones share: each counts as a multiple of 512 bytes and their sum is rounded up. A context takes what the agent measured for
//! this GPU, once per process. Most small allocations therefore change nothing in shared memory.

use cantle_ledger::{Account, Over, granules_holding};

/// Larger allocations get granules of their own.
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
const SMALL_STEP_BYTES: u64 = 512;

/// What this process holds on one GPU, without whole-granule allocations: those are in the tables. All-zero is nothing.
#[derive(Debug, Default)]
pub(crate) struct Book {
    small_bytes: u64,
    small_granules: u32,
    context_granules: u32,
    /// Granules charged for the memory of launched graphs.
    pub(crate) graph_granules: u32,
    /// Contexts that the program created itself and that still exist.
    pub(crate) own_contexts: u32,
}

const fn small_size(bytes: u64) -> u64 {
    bytes.div_ceil(SMALL_STEP_BYTES).wrapping_mul(SMALL_STEP_BYTES)
}

impl Book {
    /// Reserves what an allocation of `bytes` takes.
    #[inline]
    pub(crate) fn reserve(&mut self, account: &mut Account<'_>, bytes: u64) -> Result<(), Over> {
        if bytes > SMALL_BYTES {
            return account.reserve(granules_holding(bytes));
        }
        let sum = self.small_bytes.wrapping_add(small_size(bytes));
        let granules = granules_holding(sum);
        if granules > self.small_granules {
            account.reserve(granules - self.small_granules)?;
            self.small_granules = granules;
        }
        self.small_bytes = sum;
        Ok(())
    }

    /// Gives back what an allocation of `bytes` took.
    #[inline]
    pub(crate) fn release(&mut self, account: &mut Account<'_>, bytes: u64) {
        if bytes > SMALL_BYTES {
            return account.release(granules_holding(bytes));
        }
        self.small_bytes = self.small_bytes.saturating_sub(small_size(bytes));
        let granules = granules_holding(self.small_bytes);
        if granules < self.small_granules {
            account.release(self.small_granules - granules);
            self.small_granules = granules;
        }
    }

    /// Makes a reservation of `from` bytes one of `to`. The sum never falls below either on the way.
    pub(crate) fn resize(&mut self, account: &mut Account<'_>, from: u64, to: u64) -> Result<(), Over> {
        if from <= SMALL_BYTES || to <= SMALL_BYTES {
            self.reserve(account, to)?;
            self.release(account, from);
            return Ok(());
        }
        let (from, to) = (granules_holding(from), granules_holding(to));
        account.release(from.saturating_sub(to));
        account.reserve(to.saturating_sub(from))
    }

    /// Reserves the context's memory if this process does not hold it yet.
    #[inline]
    pub(crate) fn reserve_context(&mut self, account: &mut Account<'_>, granules: u32) -> Result<(), Over> {
        if self.context_granules == 0 && granules > 0 {
            account.reserve(granules)?;
            self.context_granules = granules;
        }
        Ok(())
    }

    /// Gives the context's memory back.
    pub(crate) fn release_context(&mut self, account: &mut Account<'_>) {
        account.release(core::mem::take(&mut self.context_granules));
    }
}
