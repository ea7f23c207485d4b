//! The layout of the two files, byte by byte.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::protocol::{self, Record};

/// GPUs (or MIG instances) that one slice may span.
pub const MAX_GPUS: usize = 16;
/// Processes of one slice that may hold GPU memory at a time.
pub const MAX_SLOTS: usize = 1024;
/// Refusals kept for the agent; older ones are overwritten.
pub(crate) const MAX_REFUSALS: usize = 64;

pub(crate) const LIMITS_MAGIC: u64 = u64::from_le_bytes(*b"cantleLM");
pub(crate) const USAGE_MAGIC: u64 = u64::from_le_bytes(*b"cantleUS");
/// Of both files. A shim refuses a version that it does not know.
pub(crate) const VERSION: u32 = 2;
/// Longest lease id kept in `limits`.
pub(crate) const LEASE_BYTES: usize = 64;

/// The 16 bytes of a GPU's or MIG instance's UUID, in the order in which they are printed.
pub type Uuid = [u8; 16];
/// In place of a UUID: the limit belongs to the first GPU that asks for one. For slices whose GPUs are not known in advance.
pub const ANY_GPU: Uuid = [0; 16];

/// The layout of a file that can be mapped.
///
/// # Safety
/// Any bytes must be a valid value of the type, because a file may hold anything. A field that a process writes while
/// the file is mapped must be atomic.
pub(crate) unsafe trait Region: Sync {}

// SAFETY: integers, bytes and atomics, for which any bytes are valid. `host::create` writes a file before it gets its name;
// after that its owner, the agent, changes only the atomics, and no other process may write it.
unsafe impl Region for LimitsRegion {}

// SAFETY: nothing but atomic integers, for which any bytes are valid.
unsafe impl Region for UsageRegion {}

/// The file `limits`.
#[repr(C)]
pub(crate) struct LimitsRegion {
    pub(crate) magic: u64,
    pub(crate) version: u32,
    pub(crate) gpu_count: u32,
    pub(crate) lease: [u8; LEASE_BYTES],
    pub(crate) gpus: [GpuEntry; MAX_GPUS],
}

impl LimitsRegion {
    pub(crate) const fn is_ours(&self) -> bool {
        self.magic == LIMITS_MAGIC && self.version == VERSION && self.gpu_count as usize <= MAX_GPUS
    }

    pub(crate) fn gpus(&self) -> &[GpuEntry] {
        self.gpus.get(..self.gpu_count as usize).unwrap_or(&[])
    }

    /// The GPU that a task of one GPU had when it started, if it has moved: in the last entry, which such a slice does not use otherwise.
    pub(crate) fn former_gpu(&self) -> Option<Uuid> {
        let last = self.gpus.last().filter(|_| self.gpu_count == 1)?;
        Some(last.uuid()).filter(|uuid| *uuid != ANY_GPU)
    }

    /// Is the task suspended, or about to be? Then nothing can be reserved until it is resumed. The last entry holds
    /// this mark, because no slice of a task that can be suspended uses that entry otherwise.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.gpus.last().is_some_and(|gpu| gpu.hidden_bytes.load(Ordering::Relaxed) == CLOSED)
    }
}

/// In the place of [`GpuEntry::hidden_bytes`] of the last entry: the slice is closed. A program that notes hidden
/// memory never writes there.
pub(crate) const CLOSED: u64 = u64::MAX;

/// One GPU in the file `limits`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct GpuEntry {
    /// In two halves: the agent changes it when the task moves to another GPU. A mixture of two names is none's.
    pub(crate) uuid: [AtomicU64; 2],
    pub(crate) limit_bytes: AtomicU64,
    pub(crate) context_bytes: u64,
    /// The memory in use according to the driver that `usage` does not count. It is in this file because only the agent
    /// writes it: a task that wipes its own accounting gains no memory.
    pub(crate) hidden_bytes: AtomicU64,
}

impl GpuEntry {
    /// The slice's limit on this GPU, in granules. The agent may change it at any time.
    #[must_use]
    #[inline]
    pub fn limit_granules(&self) -> u32 {
        crate::granules_within(self.limit_bytes.load(Ordering::Relaxed))
    }

    /// Memory that is in use on this GPU although no allocation asked for it: modules, stacks, libraries' workspaces. The agent
    /// keeps it up to date.
    #[must_use]
    #[inline]
    pub fn hidden_granules(&self) -> u32 {
        crate::granules_holding(self.hidden_bytes.load(Ordering::Relaxed)).min(protocol::MAX_GRANULES)
    }

    /// The memory of one process's CUDA context on this GPU, in granules.
    #[must_use]
    pub fn context_granules(&self) -> u32 {
        crate::granules_holding(self.context_bytes)
    }

    /// The GPU or MIG instance.
    #[must_use]
    #[inline]
    pub fn uuid(&self) -> Uuid {
        let [first, second] = self.uuid.each_ref().map(|half| half.load(Ordering::Relaxed).to_ne_bytes());
        let mut uuid = Uuid::default();
        uuid.iter_mut().zip(first.into_iter().chain(second)).for_each(|(byte, stored)| *byte = stored);
        uuid
    }
}

/// The file `usage`. The tenant may write any byte of it at any time, so every field is atomic.
#[repr(C)]
pub(crate) struct UsageRegion {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU32,
    /// Slots below this number have been used at some time.
    pub(crate) slots_touched: AtomicU32,
    pub(crate) refusal_count: AtomicU64,
    pub(crate) totals: [GpuTotal; MAX_GPUS],
    pub(crate) refusals: [RefusalRecord; MAX_REFUSALS],
    pub(crate) slots: [Slot; MAX_SLOTS],
}

/// The data of one GPU that all processes share, in a cache line of its own.
#[repr(C, align(64))]
pub(crate) struct GpuTotal {
    /// The granules in use and the operation that wrote them, packed ([`crate::protocol`]).
    pub(crate) word: AtomicU64,
    /// Hash of the UUID of the GPU that took this limit, if the limit is one for any GPU; 0 for none yet.
    pub(crate) taken_by: AtomicU64,
    /// The most granules that were in use at a time, hidden ones included; 0 if none were, or if no process keeps it.
    pub(crate) peak: AtomicU32,
}

impl GpuTotal {
    /// Notes that this number of granules is in use.
    #[inline]
    pub(crate) fn note_use(&self, granules: u32) {
        // Nearly always it is no new peak: then nothing is written, and this core had the cache line a moment ago.
        if self.peak.load(Ordering::Relaxed) < granules {
            self.peak.fetch_max(granules, Ordering::Relaxed);
        }
    }

    /// True if the limit is that GPU's, from now on or already.
    pub(crate) fn take(&self, uuid: &Uuid) -> bool {
        // 64 bits tell at most sixteen GPUs apart; a collision is as good as impossible.
        let whole = u128::from_be_bytes(*uuid);
        let (high, low) = ((whole >> 64) as u64, whole as u64);
        // The halves must not cancel out; Knuth's multiplier, as good as any odd number.
        let name = (high.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ low).max(1);
        match self.taken_by.compare_exchange(0, name, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(owner) => owner == name,
        }
    }
}

/// One process.
#[repr(C, align(64))]
pub(crate) struct Slot {
    /// `[generation:32 | pid:32]`; pid 0 is a free slot.
    pub(crate) owner: AtomicU64,
    /// Start time of the process, in clock ticks since boot; with the pid it identifies the process for good.
    pub(crate) start_ticks: AtomicU64,
    /// 1 if the owner's lock stays as long as its memory ([`crate::attach`]).
    pub(crate) lock_is_durable: AtomicU32,
    /// Uses of the process that cannot be suspended: bits of [`crate::Uses`]. Filters of former versions never write
    /// it.
    pub(crate) uses: AtomicU32,
    pub(crate) records: [Record<AtomicU64>; MAX_GPUS],
}

/// The pid in a slot's owner field; 0: free.
pub(crate) const fn owner_pid(owner: u64) -> u32 {
    owner as u32
}

/// The owner field of a free slot that follows `owner`: the next generation.
pub(crate) const fn freed(owner: u64) -> u64 {
    ((owner >> 32).wrapping_add(1) & 0xFFFF_FFFF) << 32
}

/// The owner field of a free slot once `pid` has taken it.
pub(crate) const fn taken(owner: u64, pid: u32) -> u64 {
    owner & !0xFFFF_FFFF | pid as u64
}

/// A refusal in the region. `stamp` is 0 while it is being written, so a torn record is never read as whole.
#[repr(C, align(64))]
pub(crate) struct RefusalRecord {
    stamp: AtomicU64,
    asked_bytes: AtomicU64,
    used_bytes: AtomicU64,
    limit_bytes: AtomicU64,
    pid: AtomicU32,
    gpu: AtomicU32,
}

/// An allocation that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// Counts the slice's refusals, from 1.
    pub number: u64,
    /// The process, by the pid it knows itself by.
    pub pid: u32,
    /// Index into the slice's GPUs.
    pub gpu: u32,
    /// The requested amount.
    pub asked_bytes: u64,
    /// In use by the whole slice at that moment.
    pub used_bytes: u64,
    /// The slice's limit at that moment.
    pub limit_bytes: u64,
}

impl UsageRegion {
    pub(crate) fn is_ours(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == USAGE_MAGIC && self.version.load(Ordering::Relaxed) == VERSION
    }

    pub(crate) fn slot(&self, slot: u32) -> Option<&Slot> {
        self.slots.get(slot as usize)
    }

    /// Number of slots that may be in use: those from here on never were.
    pub(crate) fn touched(&self) -> u32 {
        self.slots_touched.load(Ordering::Acquire).min(MAX_SLOTS as u32)
    }

    /// As if none of its slots had ever been used, but for their number.
    #[cfg(feature = "std")]
    pub(crate) fn clear_slots(&mut self) {
        let used = self.touched() as usize;
        if let Some(slots) = self.slots.get_mut(..used) {
            // SAFETY: the slots that are borrowed. Zero bytes are a valid slot, as they are a valid region.
            unsafe { core::ptr::write_bytes(slots.as_mut_ptr(), 0, slots.len()) };
        }
    }

    pub(crate) fn record_refusal(&self, refusal: &Refusal) {
        let number = self.refusal_count.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        let Some(record) = self.refusals.get(number as usize % MAX_REFUSALS) else { return };
        record.stamp.store(0, Ordering::SeqCst);
        record.asked_bytes.store(refusal.asked_bytes, Ordering::Relaxed);
        record.used_bytes.store(refusal.used_bytes, Ordering::Relaxed);
        record.limit_bytes.store(refusal.limit_bytes, Ordering::Relaxed);
        record.pid.store(refusal.pid, Ordering::Relaxed);
        record.gpu.store(refusal.gpu, Ordering::Relaxed);
        record.stamp.store(number, Ordering::Release);
    }

    /// Refusal `number`, if it is still kept and completely written.
    #[cfg(feature = "std")]
    pub(crate) fn refusal(&self, number: u64) -> Option<Refusal> {
        let record = self.refusals.get(number as usize % MAX_REFUSALS)?;
        let stamp = record.stamp.load(Ordering::Acquire);
        let refusal = Refusal {
            number,
            pid: record.pid.load(Ordering::Relaxed),
            gpu: record.gpu.load(Ordering::Relaxed),
            asked_bytes: record.asked_bytes.load(Ordering::Relaxed),
            used_bytes: record.used_bytes.load(Ordering::Relaxed),
            limit_bytes: record.limit_bytes.load(Ordering::Relaxed),
        };
        core::sync::atomic::fence(Ordering::Acquire);
        (stamp == number && record.stamp.load(Ordering::Relaxed) == number).then_some(refusal)
    }
}

/// One GPU of the region, as the protocol sees it.
pub(crate) struct RegionGpu<'a> {
    pub(crate) usage: &'a UsageRegion,
    pub(crate) total: &'a GpuTotal,
    pub(crate) gpu: usize,
}

impl<'a> RegionGpu<'a> {
    pub(crate) fn new(usage: &'a UsageRegion, gpu: usize) -> Option<Self> {
        Some(Self { usage, total: usage.totals.get(gpu)?, gpu })
    }
}

impl protocol::GpuCells for RegionGpu<'_> {
    type Cell = AtomicU64;

    #[inline]
    fn word(&self) -> &AtomicU64 {
        &self.total.word
    }

    #[inline]
    fn record(&self, slot: u32) -> Option<&Record<AtomicU64>> {
        self.usage.slots.get(slot as usize)?.records.get(self.gpu)
    }
}
