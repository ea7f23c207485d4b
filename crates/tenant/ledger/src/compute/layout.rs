//! The layout of the two files.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use crate::Uuid;
use crate::layout::Region;

pub(super) const GRANT_MAGIC: u64 = u64::from_le_bytes(*b"cantleGR");
pub(super) const LAUNCHES_MAGIC: u64 = u64::from_le_bytes(*b"cantleLA");
/// Of both files.
pub(crate) const VERSION: u32 = 1;
/// Processes of one slice that may launch at a time; further ones are not gated.
pub(super) const MAX_PROCESSES: usize = 128;
/// Threads of one process that may launch at a time; further ones are not gated.
pub const MAX_THREADS: usize = 64;

// SAFETY: integers, bytes and atomics, for which any bytes are valid. A file is written before it gets its name; after that its
// owner, the arbiter's side, changes only the atomics, and no other process may write it.
unsafe impl Region for GrantRegion {}

// SAFETY: nothing but atomic integers, for which any bytes are valid.
unsafe impl Region for LaunchesRegion {}

/// The file `grant`.
#[repr(C)]
pub(super) struct GrantRegion {
    pub(super) magic: u64,
    pub(super) version: u32,
    /// `ComputeMode` as its user numbers it.
    pub(super) mode: u32,
    pub(super) uuid: Uuid,
    pub(super) request_milli: u32,
    /// 0 for none.
    pub(super) limit_milli: u32,
    /// Time of the arbiter's last heartbeat.
    pub(super) heartbeat_ns: AtomicU64,
    /// Changes with every opening and closing; odd while the gate is open. Threads wait for it (futex).
    pub(super) word: AtomicU32,
    /// 1 while the slice's work cannot be weighted.
    pub(super) unweightable: AtomicU32,
    pub(super) window_ns: AtomicU64,
    /// GPU time that the slice has been charged.
    pub(super) granted_ns: AtomicU64,
    /// Time that its threads have waited at the closed gate, in sum.
    pub(super) gate_wait_ns: AtomicU64,
    /// Time that slices of this GPU were charged in the last second, all together and this one, in microseconds.
    pub(super) recent_all_us: AtomicU32,
    pub(super) recent_own_us: AtomicU32,
}

/// The file `launches`.
#[repr(C)]
pub(super) struct LaunchesRegion {
    pub(super) magic: AtomicU64,
    pub(super) version: AtomicU32,
    /// Blocks below this number have been used at some time.
    pub(super) blocks_touched: AtomicU32,
    /// Counts the windows taken by all threads: its taker compares the work in flight without another one in between.
    pub(super) windows: AtomicU64,
    pub(super) blocks: [ProcessBlock; MAX_PROCESSES],
}

/// One process.
#[repr(C, align(64))]
pub(super) struct ProcessBlock {
    /// Pid as the process knows itself; 0 is a free block.
    pub(super) owner: AtomicU32,
    /// Slots below this number have been used.
    pub(super) threads_touched: AtomicU32,
    /// The longest price that was measured.
    pub(super) longest_ns: AtomicU64,
    pub(super) slots: [ThreadSlot; MAX_THREADS],
}

/// One thread, in a cache line of its own. Only that thread writes it.
#[repr(C, align(64))]
pub struct ThreadSlot {
    /// Prices of all launches, plus `credit_ns`.
    pub credited_ns: AtomicU64,
    /// The GPU time that it may still launch without asking.
    pub credit_ns: AtomicI64,
    /// Prices of the launches that have ended, in nanoseconds.
    pub confirmed_ns: AtomicU64,
    /// When something was confirmed last.
    pub progress_ns: AtomicU64,
    /// When it was last seen waiting at the closed gate; 0 while it does not wait.
    pub waiting_ns: AtomicU64,
    /// 1 while it waits for the end of what it launched.
    pub attends: AtomicU64,
    /// Time that it has waited at the closed gate.
    pub gate_wait_ns: AtomicU64,
    /// When it took its last window.
    pub window_ns: AtomicU64,
}

impl ThreadSlot {
    /// Prices of all launches so far.
    #[must_use]
    pub fn submitted_ns(&self) -> u64 {
        use core::sync::atomic::Ordering::Relaxed;
        let credit_ns = self.credit_ns.load(Relaxed).max(0) as u64;
        self.credited_ns.load(Relaxed).wrapping_sub(credit_ns)
    }
}
