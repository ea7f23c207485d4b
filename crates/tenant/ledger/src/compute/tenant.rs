//! The tenant's side: a process's block, and the state of its gate.

use core::ffi::CStr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, Ordering};

use super::layout::{
    GRANT_MAGIC, GrantRegion, LAUNCHES_MAGIC, LaunchesRegion, MAX_PROCESSES, MAX_THREADS, ProcessBlock,
    ThreadSlot, VERSION,
};
use crate::attach::{Path, lock, unlock};
use crate::file_names;
use crate::map::{Fd, Mapping, OpenError};

/// An arbiter without a heartbeat for this long no longer delays launches: every gate counts as open.
pub const GATE_STALE_NS: u64 = 6_000_000;

/// A window that was taken is assumed to be launched for this long.
const FRESH_WINDOW_NS: u64 = 500_000;

/// A slice's pages as one of its processes uses them.
pub struct GatePage {
    grant: Mapping<GrantRegion>,
    launches: Mapping<LaunchesRegion>,
    block: usize,
}

impl GatePage {
    /// Maps both files in `dir` and takes a block for this process. It holds a lock on it that lasts as long as the mapping, and ends
    /// with the process; a child of `fork` inherits neither.
    ///
    /// # Errors
    /// [`OpenError`] if a file is missing or unknown, or there is no block left.
    pub fn open(dir: &CStr) -> Result<Self, OpenError> {
        let grant = Mapping::<GrantRegion>::new(
            &Fd::open(Path::join(dir, file_names::GRANT)?.as_c_str(), libc::O_RDONLY)?,
            false,
        )?;
        if grant.magic != GRANT_MAGIC || grant.version != VERSION {
            return Err(OpenError::Unknown);
        }
        let fd = Fd::open(Path::join(dir, file_names::LAUNCHES)?.as_c_str(), libc::O_RDWR)?;
        let launches = Mapping::<LaunchesRegion>::new(&fd, true)?;
        let known =
            launches.magic.load(Relaxed) == LAUNCHES_MAGIC && launches.version.load(Relaxed) == VERSION;
        if !known || !launches.keep_from_children() {
            return Err(OpenError::Unknown);
        }
        // SAFETY: `getpid` takes no arguments and has no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        for (number, block) in launches.blocks.iter().enumerate() {
            if block.owner.load(Acquire) == 0 && lock(&fd, number as u32) {
                if block.owner.compare_exchange(0, pid, AcqRel, Acquire).is_err() {
                    unlock(&fd, number as u32);
                    continue;
                }
                launches.blocks_touched.fetch_max(number as u32 + 1, AcqRel);
                // The lock is the open file's, which the mapping keeps open; where it does not, as on overlayfs, the descriptor has to.
                if !held_by_mapping(dir, fd, number as u32)? {
                    return Err(OpenError::Unknown);
                }
                return Ok(Self { grant, launches, block: number });
            }
        }
        Err(OpenError::Full)
    }

    fn block(&self) -> Option<&ProcessBlock> {
        self.launches.blocks.get(self.block)
    }

    /// The slot of this process's thread `number`.
    #[must_use]
    #[inline]
    pub fn slot(&self, number: usize) -> Option<&ThreadSlot> {
        self.block()?.slots.get(number)
    }

    /// Makes slot `number` count.
    pub fn touch(&self, number: usize) {
        if let Some(block) = self.block() {
            block.threads_touched.fetch_max(number as u32 + 1, Release);
        }
    }

    /// The gate's word: odd while it is open.
    #[must_use]
    #[inline]
    pub fn word(&self) -> u32 {
        self.grant.word.load(Acquire)
    }

    /// The address of the word, to wait for a change of it. Read-only.
    #[must_use]
    pub fn word_cell(&self) -> &AtomicU32 {
        &self.grant.word
    }

    /// Is an arbiter at work?
    #[must_use]
    pub fn is_arbitrated(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.grant.heartbeat_ns.load(Acquire)) <= GATE_STALE_NS
    }

    /// Work that may be submitted at a time.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.grant.window_ns.load(Relaxed).clamp(100_000, 10_000_000)
    }

    /// Publishes the longest price measured.
    pub fn note_price(&self, price_ns: u64) {
        if let Some(block) = self.block() {
            block.longest_ns.fetch_max(price_ns, Relaxed);
        }
    }

    /// The count of windows, to be given to [`Self::take_window`].
    #[must_use]
    pub fn windows(&self) -> u64 {
        self.launches.windows.load(Acquire)
    }

    /// True if no other thread of the slice has taken a window since `seen`: this thread has one then.
    #[must_use]
    pub fn take_window(&self, seen: u64) -> bool {
        self.launches.windows.compare_exchange(seen, seen.wrapping_add(1), AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The launches in flight of all threads of the slice, by price, and the time when one last ended.
    #[must_use]
    pub fn in_flight(&self, now_ns: u64) -> (u64, u64) {
        let mut sum_ns = 0_u64;
        let mut progress_ns = 0_u64;
        let touched = (self.launches.blocks_touched.load(Acquire) as usize).min(MAX_PROCESSES);
        for block in self.launches.blocks.iter().take(touched) {
            if block.owner.load(Relaxed) == 0 {
                continue;
            }
            let threads = (block.threads_touched.load(Acquire) as usize).min(MAX_THREADS);
            for slot in block.slots.iter().take(threads) {
                let mut out_ns = slot.submitted_ns().saturating_sub(slot.confirmed_ns.load(Relaxed));
                if now_ns.saturating_sub(slot.window_ns.load(Relaxed)) < FRESH_WINDOW_NS {
                    out_ns = out_ns.saturating_add(slot.credit_ns.load(Relaxed).max(0) as u64);
                }
                sum_ns = sum_ns.saturating_add(out_ns);
                if out_ns > 0 {
                    progress_ns = progress_ns.max(slot.progress_ns.load(Relaxed));
                }
            }
        }
        (sum_ns, progress_ns)
    }
}

/// Closes `fd` if the lock on `number` survives that. If not, a fresh descriptor takes it and stays open.
fn held_by_mapping(dir: &CStr, fd: Fd, number: u32) -> Result<bool, OpenError> {
    drop(fd);
    let again = Fd::open(Path::join(dir, file_names::LAUNCHES)?.as_c_str(), libc::O_RDWR)?;
    if crate::attach::is_any_locked(&again, number..number + 1) {
        return Ok(true);
    }
    let locked = lock(&again, number);
    core::mem::forget(again);
    Ok(locked)
}
