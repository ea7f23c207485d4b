//! The memory that one process holds on one GPU, and the rule by which an allocation is charged.
//!
//! The driver gives out physical memory in granules of 2 MiB. A large allocation takes its size rounded up to granules. Small linear
//! ones share granules, which the driver's addresses show ([`crate::cuda`], `slab.rs`). Small arrays, which have no address, count as
//! multiples of 512 bytes, and their sum is rounded up. Memory that migrates comes in chunks of 128 MiB. Each context takes what
//! the agent measured for this GPU. So most small allocations change nothing in the accounting region.

use cantle_ledger::{Account, Over, granules_holding};

/// Larger allocations get granules of their own.
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
const SMALL_STEP_BYTES: u64 = 512;

/// Allocations that share granules: the sum of their sizes, each a multiple of 512 bytes, and the granules that are charged for it.
#[derive(Debug, Default)]
struct Shared {
    bytes: u64,
    granules: u32,
}

impl Shared {
    /// Reserves what `bytes` more take; `takes` gives the granules of a sum.
    #[inline]
    fn reserve(
        &mut self,
        account: &mut Account<'_>,
        bytes: u64,
        takes: impl Fn(u64) -> u32,
    ) -> Result<(), Over> {
        let sum = self.bytes.saturating_add(small_size(bytes));
        let granules = takes(sum);
        if granules > self.granules {
            account.reserve(granules - self.granules)?;
            self.granules = granules;
        }
        self.bytes = sum;
        Ok(())
    }

    /// Gives back what `bytes` took.
    #[inline]
    fn release(&mut self, account: &mut Account<'_>, bytes: u64, takes: impl Fn(u64) -> u32) {
        self.bytes = self.bytes.saturating_sub(small_size(bytes));
        let granules = takes(self.bytes);
        if granules < self.granules {
            account.release(self.granules - granules);
            self.granules = granules;
        }
    }
}

/// The memory of this process on one GPU, except for allocations of whole granules, which are in the tables. All-zero is
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    /// Small arrays.
    small: Shared,
    managed: Shared,
    /// A chunk of managed memory stays.
    has_managed: bool,
    /// Contexts that are charged.
    contexts: u32,
    /// Granules charged for the memory of launched graphs.
    pub(crate) graph_granules: u32,
    /// Counts launches that have ended, as far as their memory is concerned.
    pub(crate) graph_launches: u32,
    /// Idle graph memory that launches inside the driver rely on.
    pub(crate) graph_claimed_bytes: u64,
    /// Contexts that the program created itself and that still exist.
    pub(crate) own_contexts: u32,
    /// The memory that current allocations from pools rely on.
    pub(crate) pool_calls: PoolCalls,
    /// The GPU's current pool, 0 if it is not known, and the [`Process::pool_changes`](crate::process::Process::pool_changes) that it was read at.
    pub(crate) current_pool: (u64, u32),
}

/// The sum of memory that calls inside the driver rely on: no lock is held meanwhile.
#[derive(Debug, Default)]
pub(crate) struct PoolCalls {
    /// Granules that were reserved for growth.
    pub(crate) ahead: u32,
    /// Those of them that no pool has grown by yet.
    pub(crate) unused: u32,
    /// Calls since a pool was last asked for its size.
    pub(crate) unasked: u32,
    /// The idle memory that these calls were promised.
    pub(crate) unasked_bytes: u64,
    /// Idle memory of pools that is promised to them.
    pub(crate) claimed_bytes: u64,
    /// The sum of all that was promised to calls that have ended, modulo 2^64.
    pub(crate) ended_bytes: u64,
    /// Counts what makes an earlier answer of a pool old: other answers, and the end of calls that may have made one grow.
    pub(crate) answers: u32,
}

/// A process has its managed memory on the GPU in chunks of this size, which all of its allocations share, and keeps the first one. Measured on
/// an H100 under driver 580.159.04 (`docs/results/`).
const MANAGED_CHUNK_BYTES: u64 = 128 << 20;

const fn small_size(bytes: u64) -> u64 {
    bytes.div_ceil(SMALL_STEP_BYTES).wrapping_mul(SMALL_STEP_BYTES)
}

const fn managed_granules(bytes: u64) -> u32 {
    granules_holding(bytes.div_ceil(MANAGED_CHUNK_BYTES).saturating_mul(MANAGED_CHUNK_BYTES))
}

impl Holdings {
    /// Reserves what an allocation of `bytes` takes.
    #[inline]
    pub(crate) fn reserve(&mut self, account: &mut Account<'_>, bytes: u64) -> Result<(), Over> {
        if bytes > SMALL_BYTES {
            return account.reserve(granules_holding(bytes));
        }
        self.small.reserve(account, bytes, granules_holding)
    }

    /// Gives back what an allocation of `bytes` took.
    #[inline]
    pub(crate) fn release(&mut self, account: &mut Account<'_>, bytes: u64) {
        if bytes > SMALL_BYTES {
            return account.release(granules_holding(bytes));
        }
        self.small.release(account, bytes, granules_holding);
    }

    /// Reserves what `bytes` more of managed memory take.
    pub(crate) fn reserve_managed(&mut self, account: &mut Account<'_>, bytes: u64) -> Result<(), Over> {
        self.managed.reserve(account, bytes, managed_granules)
    }

    /// The memory that was reserved as managed has been allocated: from now on, the process has a chunk.
    pub(crate) const fn keep_managed(&mut self) {
        self.has_managed = true;
    }

    /// Gives back what `bytes` of managed memory took.
    pub(crate) fn release_managed(&mut self, account: &mut Account<'_>, bytes: u64) {
        let least = u64::from(self.has_managed);
        self.managed.release(account, bytes, |sum| managed_granules(sum.max(least)));
    }

    /// Turns a reservation of `from` bytes into one of `to`. The charge never falls below the smaller of the two meanwhile.
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

    /// Reserves memory until that of `contexts` contexts is charged, each of `granules`.
    #[inline]
    pub(crate) fn reserve_contexts(
        &mut self,
        account: &mut Account<'_>,
        contexts: u32,
        granules: u32,
    ) -> Result<(), Over> {
        if contexts > self.contexts {
            account.reserve(granules.saturating_mul(contexts - self.contexts))?;
            self.contexts = contexts;
        }
        Ok(())
    }

    /// Whether a context is charged.
    pub(crate) const fn has_context(&self) -> bool {
        self.contexts > 0
    }

    /// Gives the memory of contexts back, but for `left` of them.
    pub(crate) fn release_contexts(&mut self, account: &mut Account<'_>, left: u32, granules: u32) {
        account.release(granules.saturating_mul(self.contexts.saturating_sub(left)));
        self.contexts = self.contexts.min(left);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt as _;
    use std::vec::Vec;

    use cantle_ledger::host::{self, GpuLimit};
    use cantle_ledger::{Attachment, GRANULE_BYTES};

    use super::*;

    fn attach(limit: u64) -> (tempfile::TempDir, Attachment) {
        let dir = tempfile::tempdir().unwrap();
        let gpu = GpuLimit { uuid: [1; 16], limit_bytes: limit * GRANULE_BYTES, context_bytes: 0 };
        host::create(dir.path(), "lease", &[gpu]).unwrap();
        let attachment = Attachment::new(&CString::new(dir.path().as_os_str().as_bytes()).unwrap()).unwrap();
        (dir, attachment)
    }

    /// The same rule, written independently: large ones each in granules, small ones together.
    fn granules(live: &[u64]) -> u32 {
        let (large, small): (Vec<u64>, Vec<u64>) = live.iter().partition(|&&bytes| bytes > SMALL_BYTES);
        let small = small.iter().map(|bytes| bytes.div_ceil(512) * 512).sum::<u64>().div_ceil(GRANULE_BYTES);
        (large.iter().map(|bytes| bytes.div_ceil(GRANULE_BYTES)).sum::<u64>() + small) as u32
    }

    #[test]
    fn charges_by_the_rule_whatever_comes_and_goes() {
        let (_dir, attachment) = attach(60);
        let (mut holdings, mut account) = (Holdings::default(), attachment.account(0).unwrap());
        let (mut live, mut state) = (Vec::new(), 1_u64);
        let mut below = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % end
        };
        let mut refused = 0;
        for _ in 0..20_000 {
            let bytes = if below(4) == 0 { below(20 << 20) } else { below(SMALL_BYTES + 2) };
            match below(3) {
                0 if !live.is_empty() => {
                    let gone = live.swap_remove(below(live.len() as u64) as usize);
                    holdings.release(&mut account, gone);
                }
                1 if !live.is_empty() => {
                    let at = below(live.len() as u64) as usize;
                    if holdings.resize(&mut account, live[at], bytes).is_ok() {
                        live[at] = bytes;
                    }
                }
                _ => match holdings.reserve(&mut account, bytes) {
                    Ok(()) => live.push(bytes),
                    Err(_) => refused += 1,
                },
            }
            assert_eq!(account.held(), granules(&live));
        }
        assert!(refused > 100, "the limit was never in the way");
    }

    #[test]
    fn managed_memory_comes_in_chunks_and_the_first_one_stays() {
        const CHUNK: u32 = 64;
        let (_dir, attachment) = attach(3 * u64::from(CHUNK) + 1);
        let (mut holdings, mut account) = (Holdings::default(), attachment.account(0).unwrap());
        holdings.reserve_managed(&mut account, 1).unwrap();
        assert_eq!(account.held(), CHUNK);
        holdings.release_managed(&mut account, 1);
        assert_eq!(account.held(), 0, "the driver refused it");
        holdings.reserve_managed(&mut account, 1).unwrap();
        holdings.keep_managed();
        holdings.reserve_managed(&mut account, MANAGED_CHUNK_BYTES).unwrap();
        assert_eq!(account.held(), 2 * CHUNK);
        assert!(holdings.reserve_managed(&mut account, 2 * MANAGED_CHUNK_BYTES).is_err());
        holdings.release_managed(&mut account, MANAGED_CHUNK_BYTES);
        holdings.release_managed(&mut account, 1);
        assert_eq!(account.held(), CHUNK);
    }

    #[test]
    fn each_context_is_charged_once() {
        let (_dir, attachment) = attach(10);
        let (mut holdings, mut account) = (Holdings::default(), attachment.account(0).unwrap());
        assert!(holdings.reserve_contexts(&mut account, 1, 11).is_err());
        holdings.reserve_contexts(&mut account, 1, 4).unwrap();
        holdings.reserve_contexts(&mut account, 1, 4).unwrap();
        assert_eq!(account.held(), 4);
        holdings.reserve_contexts(&mut account, 2, 4).unwrap();
        assert!(holdings.reserve_contexts(&mut account, 3, 4).is_err());
        assert_eq!(account.held(), 8);
        holdings.release_contexts(&mut account, 1, 4);
        holdings.release_contexts(&mut account, 1, 4);
        assert_eq!(account.held(), 4);
        holdings.release_contexts(&mut account, 0, 4);
        assert!(account.held() == 0 && !holdings.has_context());
    }
}
