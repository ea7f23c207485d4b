//! The slot of a process: how a process takes and uses it, and how others detect whether its owner is still alive.
//!
//! **Alive.** The owner of slot *n* holds an open-file-description lock on byte *n* of `usage`. Such a lock belongs to the open
//! file, and the process's mapping of `usage` keeps the file open after its descriptor is closed. So the lock lasts as long
//! as the process's memory, independent of the program's descriptors, and it works across pid namespaces. Children do
//! not inherit it: the mapping stays out of them (`MADV_DONTFORK`), and the descriptor is closed.
//!
//! **Dead.** When a process ends, the kernel frees its memory first, then its files, and its GPU memory only with the driver's
//! files. So a slot whose lock is free is not settled while its process is still exiting: its memory would be given out
//! twice. A process that runs without its lock has replaced its memory by `exec`, and its GPU memory with it: its slot
//! counts as dead.
//!
//! Some filesystems (overlayfs) map another file than the one that was opened; there the lock would end with the descriptor.
//! Attaching notices that: the descriptor then stays open, and the slot counts as dead only once its process is.

use core::ffi::{CStr, c_int};
use core::ops::Range;
use core::sync::atomic::Ordering;

use crate::GRANULE_BYTES;
use crate::file_names;
use crate::layout::{
    ANY_GPU, GpuEntry, GpuTotal, LimitsRegion, MAX_GPUS, MAX_SLOTS, Refusal, RegionGpu, Slot, UsageRegion,
    Uuid, freed, owner_pid, taken,
};
use crate::map::{self, Fd, Mapping, OpenError};
use crate::proc_stat::{self, Life};
use crate::protocol::{self, Cell, Over};

const PATH_BYTES: usize = 256;

/// How often a process looks whether its task has been resumed.
const CLOSED_PAUSE_NS: libc::c_long = 2_000_000;

/// A use of memory that keeps the task of a process from being suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Uses {
    /// Managed memory.
    Managed = 1,
    /// Memory or events that it shares with another process.
    Shared = 2,
}

/// A slice's two files, mapped.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) limits: Mapping<LimitsRegion>,
    pub(crate) usage: Mapping<UsageRegion>,
    usage_path: Path,
}

#[derive(Debug)]
pub(crate) struct Path([u8; PATH_BYTES]);

impl Path {
    pub(crate) fn join(dir: &CStr, name: &CStr) -> Result<Self, OpenError> {
        let mut path = [0; PATH_BYTES];
        let bytes = dir.to_bytes().iter().chain(b"/").chain(name.to_bytes_with_nul());
        let mut free = path.iter_mut();
        for byte in bytes {
            *free.next().ok_or(OpenError::PathTooLong)? = *byte;
        }
        Ok(Self(path))
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }
}

impl Ledger {
    /// Maps `<dir>/limits` read-only and `<dir>/usage`. Takes no slot.
    ///
    /// # Errors
    /// [`OpenError`] if a file is missing, truncated, or not cantle's.
    pub fn open(dir: &CStr) -> Result<Self, OpenError> {
        let usage_path = Path::join(dir, file_names::USAGE)?;
        let fd = Fd::open(usage_path.as_c_str(), libc::O_RDWR)?;
        Self::map(dir, usage_path, &fd)
    }

    fn map(dir: &CStr, usage_path: Path, usage: &Fd) -> Result<Self, OpenError> {
        let limits = map::limits(Path::join(dir, file_names::LIMITS)?.as_c_str())?;
        Ok(Self { limits, usage: map::usage(usage)?, usage_path })
    }

    /// The slice's GPUs, in the order of their indices.
    #[must_use]
    pub fn gpus(&self) -> &[GpuEntry] {
        self.limits.gpus()
    }

    /// The GPU that the task had when it started, if it has moved since.
    #[must_use]
    pub fn former_gpu(&self) -> Option<Uuid> {
        self.limits.former_gpu()
    }

    /// Index of a GPU in the slice. If the slice has limits for any GPU ([`ANY_GPU`]), the GPU takes one at the first
    /// query, for all processes.
    #[must_use]
    pub fn gpu_index(&self, uuid: &Uuid) -> Option<usize> {
        let taken = |(gpu, total): (&GpuEntry, &GpuTotal)| gpu.uuid() == ANY_GPU && total.take(uuid);
        let named = self.gpus().iter().position(|gpu| gpu.uuid() == *uuid);
        named.or_else(|| self.gpus().iter().zip(&self.usage.totals).position(taken))
    }

    /// Granules in use on a GPU by all processes of the slice: hidden ones too, and those of dead processes until they are
    /// settled.
    #[must_use]
    #[inline]
    pub fn used(&self, gpu: usize) -> u32 {
        let hidden = self.gpus().get(gpu).map_or(0, GpuEntry::hidden_granules);
        let counted = self.usage.totals.get(gpu).map_or(0, |total| protocol::used(Cell::load(&total.word)));
        counted.saturating_add(hidden)
    }

    /// The processes that hold something on a GPU: each one's pid in its own pid namespace, and its granules. Dead processes are
    /// included until they are settled.
    pub fn holders(&self, gpu: usize) -> impl Iterator<Item = (u32, u32)> {
        (0..self.usage.touched()).filter_map(move |number| {
            let pid = owner_pid(self.usage.slot(number)?.owner.load(Ordering::Acquire));
            let granules = protocol::charged(&RegionGpu::new(&self.usage, gpu)?, number);
            (pid != 0 && granules > 0).then_some((pid, granules))
        })
    }

    /// Frees what dead processes hold; returns the number of granules. Any process may call it at any time.
    pub fn reap(&self) -> u32 {
        let Ok(fd) = Fd::open(self.usage_path.as_c_str(), libc::O_RDWR) else { return 0 };
        (0..self.usage.touched()).map(|slot| self.reap_slot(&fd, slot)).fold(0, u32::saturating_add)
    }

    fn reap_slot(&self, fd: &Fd, number: u32) -> u32 {
        let Some(slot) = self.usage.slot(number) else { return 0 };
        let owner = slot.owner.load(Ordering::Acquire);
        if owner_pid(owner) == 0 || is_locked(fd, number) || !is_dead_once_unlocked(slot, owner) {
            return 0;
        }
        self.settle(slot, number, owner)
    }

    /// Returns what a dead slot holds on every GPU, then frees it.
    fn settle(&self, slot: &Slot, number: u32, owner: u64) -> u32 {
        let still_dead = || slot.owner.load(Ordering::Acquire) == owner;
        let mut returned = 0_u32;
        for gpu in 0..MAX_GPUS {
            if let Some(cells) = RegionGpu::new(&self.usage, gpu) {
                returned = returned.saturating_add(protocol::settle(&cells, number, still_dead));
            }
        }
        // Fails if another settler was faster.
        slot.owner.swap_if(owner, freed(owner));
        returned
    }
}

/// A process's own slot.
#[derive(Debug)]
pub struct Attachment {
    ledger: Ledger,
    slot: u32,
    pid: u32,
}

impl Attachment {
    /// Returns what dead processes left, then takes a slot of the slice for this process.
    ///
    /// The mapping is not inherited by children: a child of `fork` must attach for itself and must not touch its parent's.
    ///
    /// # Errors
    /// [`OpenError`]; the slice cannot be accounted for then, and nothing should be allocated.
    pub fn new(dir: &CStr) -> Result<Self, OpenError> {
        let usage_path = Path::join(dir, file_names::USAGE)?;
        let mut fd = Fd::open(usage_path.as_c_str(), libc::O_RDWR)?;
        let ledger = Ledger::map(dir, usage_path, &fd)?;
        if !ledger.usage.keep_from_children() {
            return Err(OpenError::Io(map::errno()));
        }
        ledger.reap();
        // SAFETY: `getpid` takes no arguments and has no preconditions.
        let pid = unsafe { libc::getpid() } as u32;
        let start_ticks = proc_stat::start_ticks(pid).unwrap_or(0);
        for number in 0..MAX_SLOTS as u32 {
            let Some(slot) = ledger.usage.slot(number) else { break };
            if owner_pid(slot.owner.load(Ordering::Acquire)) != 0 || !lock(&fd, number) {
                continue;
            }
            if !take(&ledger.usage, slot, number, pid, start_ticks) {
                unlock(&fd, number);
                continue;
            }
            if outlives_descriptor(&mut fd, &ledger, number)? {
                slot.lock_is_durable.store(1, Ordering::Release);
            } else {
                core::mem::forget(fd);
            }
            return Ok(Self { ledger, slot: number, pid });
        }
        Err(OpenError::Full)
    }

    /// Notes for the agent what this process uses; the note stays as long as the process.
    pub fn note_use(&self, uses: Uses) {
        if let Some(slot) = self.ledger.usage.slot(self.slot) {
            slot.uses.fetch_or(uses as u32, Ordering::AcqRel);
        }
    }

    /// Whether another process has a slot. It may be dead.
    #[must_use]
    pub fn has_others(&self) -> bool {
        let owned = |number| {
            self.ledger
                .usage
                .slot(number)
                .is_some_and(|slot| owner_pid(slot.owner.load(Ordering::Acquire)) != 0)
        };
        (0..self.ledger.usage.touched()).any(|number| number != self.slot && owned(number))
    }

    /// The slice.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// This process's account on one GPU of the slice. Make one per GPU and keep it: two at a time would miscount.
    #[must_use]
    pub fn account(&self, gpu: usize) -> Option<Account<'_>> {
        let entry = self.ledger.gpus().get(gpu)?;
        Some(Account { attachment: self, cells: RegionGpu::new(&self.ledger.usage, gpu)?, entry })
    }
}

/// One process's account on one GPU.
pub struct Account<'a> {
    attachment: &'a Attachment,
    cells: RegionGpu<'a>,
    entry: &'a GpuEntry,
}

impl Account<'_> {
    /// Reserves granules, before anything is allocated. If the limit does not admit them, returns what dead processes left and
    /// tries again.
    ///
    /// # Errors
    /// [`Over`]: nothing was reserved. Call [`Account::refused`] if the program's allocation fails because of it.
    #[inline]
    pub fn reserve(&mut self, granules: u32) -> Result<(), Over> {
        self.try_reserve(granules).or_else(|_| {
            self.wait_while_closed();
            self.attachment.ledger.reap();
            self.try_reserve(granules).map_err(|over| {
                let hidden = self.entry.hidden_granules();
                Over { used: over.used.saturating_add(hidden), limit: self.entry.limit_granules(), ..over }
            })
        })
    }

    #[inline]
    fn try_reserve(&mut self, granules: u32) -> Result<(), Over> {
        let hidden = self.entry.hidden_granules();
        let limit = match self.is_closed() {
            true => 0,
            false => self.entry.limit_granules().saturating_sub(hidden),
        };
        let used = protocol::reserve(&self.cells, self.attachment.slot, granules, limit)?;
        self.cells.total.note_use(used.saturating_add(hidden));
        Ok(())
    }

    #[inline]
    fn is_closed(&self) -> bool {
        self.attachment.ledger.limits.is_closed()
    }

    /// Waits as long as the task is suspended: it gets its memory later, and no error. A slice whose task has ended has a limit of 0.
    #[cold]
    fn wait_while_closed(&self) {
        while self.is_closed() && self.entry.limit_granules() > 0 {
            let pause = libc::timespec { tv_sec: 0, tv_nsec: CLOSED_PAUSE_NS };
            // SAFETY: `pause` is a live local, and null asks for no rest. An interrupted sleep is as good as a whole one.
            unsafe {
                libc::syscall(libc::SYS_nanosleep, &raw const pause, core::ptr::null_mut::<libc::timespec>())
            };
        }
    }

    /// Gives granules back, after they were freed.
    #[inline]
    pub fn release(&mut self, granules: u32) {
        protocol::release(&self.cells, self.attachment.slot, granules);
    }

    /// Charges this process with exactly `granules`, even beyond the limit: for memory that is in use already.
    pub fn set_held(&mut self, granules: u32) {
        let used = protocol::set_held(&self.cells, self.attachment.slot, granules);
        self.cells.total.note_use(used.saturating_add(self.entry.hidden_granules()));
    }

    /// Granules that this process holds.
    #[must_use]
    pub fn held(&self) -> u32 {
        protocol::held(&self.cells, self.attachment.slot)
    }

    /// Leaves a note for the agent that `asked_bytes` were refused.
    pub fn refused(&self, over: Over, asked_bytes: u64) {
        self.attachment.ledger.usage.record_refusal(&Refusal {
            number: 0,
            pid: self.attachment.pid,
            gpu: self.cells.gpu as u32,
            asked_bytes,
            used_bytes: u64::from(over.used) * GRANULE_BYTES,
            limit_bytes: u64::from(over.limit) * GRANULE_BYTES,
        });
    }
}

fn lock_command(fd: &Fd, command: c_int, kind: c_int, slots: Range<u32>) -> Option<c_int> {
    // SAFETY: `flock` consists of integers, for which zero is a valid value.
    let mut request: libc::flock = unsafe { core::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    request.l_start = libc::off_t::from(slots.start);
    request.l_len = libc::off_t::from(slots.end - slots.start);
    fd.lock(command, &mut request).then_some(c_int::from(request.l_type))
}

const fn one(slot: u32) -> Range<u32> {
    slot..slot + 1
}

pub(crate) fn lock(fd: &Fd, slot: u32) -> bool {
    lock_command(fd, libc::F_OFD_SETLK, libc::F_WRLCK, one(slot)).is_some()
}

pub(crate) fn unlock(fd: &Fd, slot: u32) {
    lock_command(fd, libc::F_OFD_SETLK, libc::F_UNLCK, one(slot));
}

/// Makes a slot whose lock we hold ours; false if it is not free. Until the lock is known to be durable, the pid counts too.
fn take(usage: &UsageRegion, slot: &Slot, number: u32, pid: u32, start_ticks: u64) -> bool {
    let owner = slot.owner.load(Ordering::Acquire);
    if owner_pid(owner) != 0 {
        return false;
    }
    slot.start_ticks.store(start_ticks, Ordering::Release);
    slot.lock_is_durable.store(0, Ordering::Release);
    slot.uses.store(0, Ordering::Release);
    usage.slots_touched.fetch_max(number.wrapping_add(1), Ordering::AcqRel);
    slot.owner.swap_if(owner, taken(owner, pid))
}

/// True if another open file holds the slot's lock, or if the kernel gives no answer: a dead slot that is kept does less harm
/// than a live one that is freed.
fn is_locked(fd: &Fd, slot: u32) -> bool {
    is_any_locked(fd, one(slot))
}

/// As [`is_locked`], for any of several slots.
pub(crate) fn is_any_locked(fd: &Fd, slots: Range<u32>) -> bool {
    lock_command(fd, libc::F_OFD_GETLK, libc::F_WRLCK, slots) != Some(libc::F_UNLCK)
}

fn is_dead_once_unlocked(slot: &Slot, owner: u64) -> bool {
    match proc_stat::life(owner_pid(owner), slot.start_ticks.load(Ordering::Acquire)) {
        Life::Gone => true,
        Life::Exiting => false,
        Life::Living => slot.lock_is_durable.load(Ordering::Acquire) == 1,
    }
}

/// Replaces `fd` by a fresh descriptor. True if the slot's lock survived that, held by the mapping; if not, locks it again.
fn outlives_descriptor(fd: &mut Fd, ledger: &Ledger, slot: u32) -> Result<bool, OpenError> {
    *fd = Fd::open(ledger.usage_path.as_c_str(), libc::O_RDWR)?;
    if is_locked(fd, slot) {
        return Ok(true);
    }
    // Waits at most for another process to notice that the slot is taken.
    match lock_command(fd, libc::F_OFD_SETLKW, libc::F_WRLCK, one(slot)) {
        Some(_) => Ok(false),
        None => Err(OpenError::Io(map::errno())),
    }
}
