//! The slice as the agent observes it from outside. The tenant may write, empty or shorten `usage` at any moment, and an accomplice of
//! the tenant `limits` too, so nothing here maps a file: both are copied, and every field of a copy is checked. The agent writes only
//! `limits`.

use std::borrow::ToOwned as _;
use std::boxed::Box;
use std::ffi::CString;
use std::format;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec::Vec;

use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::GRANULE_BYTES;
use crate::attach::{Uses, is_any_locked};
use crate::file_names::{LIMITS_FILE, USAGE_FILE};
use crate::host::HostError;
use crate::layout::{
    CLOSED, GpuEntry, LEASE_BYTES, LimitsRegion, MAX_GPUS, MAX_REFUSALS, MAX_SLOTS, Refusal, Region,
    RegionGpu, Slot, UsageRegion, Uuid, owner_pid,
};
use crate::map::{Fd, OpenError};
use crate::proc_stat::{self, Life};
use crate::protocol;

/// The use of one GPU by a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUse {
    /// The GPU or MIG instance.
    pub uuid: Uuid,
    /// Its limit, as enforced: whole granules.
    pub limit_bytes: u64,
    /// Reserved by the slice's living processes.
    pub counted_bytes: u64,
    /// In use in addition, as the agent has noted with [`Observer::set_hidden`].
    pub hidden_bytes: u64,
    /// The most that was in use at a time, as far as the tenant's processes noted it; 0 if they never did. The tenant may write it:
    /// it is for people, and nothing is decided by it.
    pub peak_bytes: u64,
}

impl GpuUse {
    /// All that is in use.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.counted_bytes.saturating_add(self.hidden_bytes)
    }
}

/// The memory of one process of a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessUse {
    /// The process's pid in its own pid namespace. The tenant writes it: show it, but never act on it.
    pub pid: u32,
    /// False if the process is dead and not settled yet. This comes from the kernel, not from the tenant.
    pub alive: bool,
    /// Held on each of the slice's GPUs, in their order.
    pub held_bytes: Vec<u64>,
    /// Its uses that cannot be suspended: bits of [`Uses`].
    pub uses: u32,
}

impl ProcessUse {
    /// Does the process use this, as its filter has noted? The tenant may write it: a false note is that task's own damage.
    #[must_use]
    pub const fn uses(&self, what: Uses) -> bool {
        self.uses & what as u32 != 0
    }
}

/// A slice at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SliceUse {
    /// The owner of the slice.
    pub lease: String,
    /// The slice's GPUs.
    pub gpus: Vec<GpuUse>,
    /// Its processes that have used a GPU.
    pub processes: Vec<ProcessUse>,
}

/// A slice's files as the agent (or `cantle limits`) holds them. Takes no slot.
#[derive(Debug)]
pub struct Observer {
    /// Open for writing where this process may write it: as long as it is, the tenant gets no lease on the file.
    limits: Fd,
    usage: Fd,
    dir: PathBuf,
    refusals_read: u64,
}

impl Observer {
    /// Opens the files in `dir`. Damage that the tenant did to `usage` shows only when it is read.
    ///
    /// # Errors
    /// [`HostError::Open`] if one is missing, or `limits` is not ours.
    pub fn open(dir: &Path) -> Result<Self, HostError> {
        let open = || {
            let path = c_path(&dir.join(LIMITS_FILE))?;
            // A file that was put in the place of ours is not read, and above all not written, by way of a link.
            let open = |path: &CString, access| Fd::open(path, access | libc::O_NOFOLLOW);
            let limits = open(&path, libc::O_RDWR).or_else(|_| open(&path, libc::O_RDONLY))?;
            Ok((limits, open(&c_path(&dir.join(USAGE_FILE))?, libc::O_RDONLY)?))
        };
        let (limits, usage) = open().map_err(|error| HostError::Open(dir.to_owned(), error))?;
        let observer = Self { limits, usage, dir: dir.to_owned(), refusals_read: 0 };
        observer.limits()?;
        Ok(observer)
    }

    /// True if any process holds a slot. The kernel's locks determine it, not the contents of the file.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        is_any_locked(&self.usage, 0..MAX_SLOTS as u32)
            || self.snapshot().is_ok_and(|now| now.processes.iter().any(|process| process.alive))
    }

    /// Do both files still have their names and their lengths? Then what another call of [`Self::open`] would open is what is open.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        let is_whole = |file: &Fd, bytes: usize| {
            file.properties().is_some_and(|found| found.nlink() > 0 && found.len() == bytes as u64)
        };
        is_whole(&self.limits, size_of::<LimitsRegion>()) && is_whole(&self.usage, size_of::<UsageRegion>())
    }

    /// The slice now. Figures of different GPUs and processes are not of one instant.
    ///
    /// # Errors
    /// [`HostError::Open`] if the tenant has damaged `usage`.
    pub fn snapshot(&self) -> Result<SliceUse, HostError> {
        let limits = self.limits()?;
        self.read(ReadExtent::Slots, |usage| self.slice_use(&limits, usage))
    }

    fn slice_use(&self, limits: &LimitsRegion, usage: &UsageRegion) -> SliceUse {
        let count = limits.gpus().len();
        let processes: Vec<ProcessUse> =
            (0..usage.touched()).filter_map(|number| self.process(usage, number, count)).collect();
        let gpus = limits.gpus().iter().enumerate().map(|(index, gpu)| {
            let sum =
                usage.totals.get(index).map_or(0, |total| protocol::used(total.word.load(Ordering::Relaxed)));
            let dead = processes.iter().filter(|process| !process.alive);
            let of_dead: u64 = dead.filter_map(|process| process.held_bytes.get(index)).sum();
            GpuUse {
                uuid: gpu.uuid(),
                limit_bytes: u64::from(gpu.limit_granules()) * GRANULE_BYTES,
                counted_bytes: (u64::from(sum) * GRANULE_BYTES).saturating_sub(of_dead),
                hidden_bytes: u64::from(gpu.hidden_granules()) * GRANULE_BYTES,
                peak_bytes: usage.totals.get(index).map_or(0, |total| {
                    u64::from(total.peak.load(Ordering::Relaxed).min(protocol::MAX_GRANULES)) * GRANULE_BYTES
                }),
            }
        });
        SliceUse { lease: lease(limits), gpus: gpus.collect(), processes }
    }

    fn process(&self, usage: &UsageRegion, number: u32, gpus: usize) -> Option<ProcessUse> {
        let slot = usage.slot(number)?;
        let pid = owner_pid(slot.owner.load(Ordering::Relaxed));
        let held = |gpu| {
            let cells = RegionGpu::new(usage, gpu);
            cells.map_or(0, |cells| u64::from(protocol::charged(&cells, number)) * GRANULE_BYTES)
        };
        (pid != 0).then(|| ProcessUse {
            pid,
            alive: self.is_alive(slot, number),
            held_bytes: (0..gpus).map(held).collect(),
            uses: slot.uses.load(Ordering::Relaxed),
        })
    }

    /// True if the owner holds its lock, or has lost it only because the process is exiting. Nothing that the tenant writes into
    /// the slot may make a dead process count as alive: its lease would never end.
    fn is_alive(&self, slot: &Slot, number: u32) -> bool {
        let pid = owner_pid(slot.owner.load(Ordering::Relaxed));
        is_any_locked(&self.usage, number..number + 1)
            || proc_stat::life(pid, slot.start_ticks.load(Ordering::Relaxed)) == Life::Exiting
    }

    /// Reads from a copy of `usage`; the slots are left out unless they are wanted.
    fn read<T>(&self, wanted: ReadExtent, read: impl FnOnce(&UsageRegion) -> T) -> Result<T, HostError> {
        // SAFETY: `UsageRegion: Region`, so zero bytes are a valid value.
        let zeros = || unsafe { Box::<UsageRegion>::new_zeroed().assume_init() };
        let mut copy = SPARE.take().unwrap_or_else(zeros);
        let result = self.copy(wanted, &mut copy).map(|()| read(&copy));
        copy.clear_slots();
        SPARE.set(Some(copy));
        result
    }

    fn copy(&self, wanted: ReadExtent, copy: &mut UsageRegion) -> Result<(), HostError> {
        self.fill(&self.usage, copy, 0, offset_of!(UsageRegion, slots))?;
        if !copy.is_ours() {
            return Err(self.damaged(OpenError::Unknown));
        }
        let length = copy.touched() as usize * size_of::<Slot>();
        match wanted {
            ReadExtent::Head => Ok(()),
            ReadExtent::Slots => self.fill(&self.usage, copy, offset_of!(UsageRegion, slots), length),
        }
    }

    /// A copy of `limits`.
    fn limits(&self) -> Result<Box<LimitsRegion>, HostError> {
        // SAFETY: `LimitsRegion: Region`, so zero bytes are a valid value.
        let mut copy = unsafe { Box::<LimitsRegion>::new_zeroed().assume_init() };
        self.fill(&self.limits, &mut *copy, 0, size_of::<LimitsRegion>())?;
        if copy.is_ours() { Ok(copy) } else { Err(self.damaged(OpenError::Unknown)) }
    }

    /// `copy` must have been allocated as zeros and not moved since: so its padding is initialized, too.
    fn fill<T: Region>(&self, file: &Fd, copy: &mut T, at: usize, length: usize) -> Result<(), HostError> {
        // SAFETY: the bytes of one region, borrowed exclusively as long as the slice exists. All of them are initialized, padding
        // too, because both callers allocate them as zeros and never move the region. Any bytes written are a valid `Region`.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(core::ptr::from_mut(copy).cast::<u8>(), size_of::<T>())
        };
        let part = bytes.get_mut(at..at + length).unwrap_or_default();
        if file.read_exact_at(part, at) { Ok(()) } else { Err(self.damaged(OpenError::Truncated)) }
    }

    fn damaged(&self, error: OpenError) -> HostError {
        HostError::Open(self.dir.clone(), error)
    }

    /// Refusals since the last call, oldest first. If there were more than the region keeps, the oldest are missing, which
    /// shows as a gap in the numbers. None from a region that the tenant has damaged.
    pub fn new_refusals(&mut self) -> Vec<Refusal> {
        let new = self.read(ReadExtent::Head, |usage| {
            let count = usage.refusal_count.load(Ordering::Relaxed);
            let first = self.refusals_read.max(count.saturating_sub(MAX_REFUSALS as u64));
            (count, (first..count).filter_map(|number| usage.refusal(number + 1)).collect())
        });
        let Ok((count, refusals)) = new else { return Vec::new() };
        self.refusals_read = count;
        refusals
    }

    /// Changes the limit on one GPU, for running processes too. A limit below what is in use only stops further allocations.
    ///
    /// # Errors
    /// [`HostError`] if the slice has no such GPU or `limits` cannot be written.
    pub fn set_limit(&self, uuid: &Uuid, limit_bytes: u64) -> Result<(), HostError> {
        self.set(uuid, offset_of!(GpuEntry, limit_bytes), limit_bytes)
    }

    /// Notes what the slice uses on one GPU beyond what its processes have counted. That much less is left for allocations.
    ///
    /// # Errors
    /// As [`Observer::set_limit`].
    pub fn set_hidden(&self, uuid: &Uuid, hidden_bytes: u64) -> Result<(), HostError> {
        // No amount means that the slice is closed, not even in the last entry.
        self.set(uuid, offset_of!(GpuEntry, hidden_bytes), hidden_bytes.min(CLOSED - 1))
    }

    /// Lets nothing be reserved until [`Observer::reopen`]: each call that reserves waits. For a task that is being
    /// suspended.
    ///
    /// # Errors
    /// [`HostError`] if `limits` cannot be written.
    pub fn close(&self) -> Result<(), HostError> {
        self.set_closed(CLOSED)
    }

    /// Ends what [`Observer::close`] began.
    ///
    /// # Errors
    /// [`HostError`] if `limits` cannot be written.
    pub fn reopen(&self) -> Result<(), HostError> {
        self.set_closed(0)
    }

    /// Is the slice closed?
    ///
    /// # Errors
    /// [`HostError`] if `limits` cannot be read.
    pub fn is_closed(&self) -> Result<bool, HostError> {
        Ok(self.limits()?.is_closed())
    }

    fn set_closed(&self, word: u64) -> Result<(), HostError> {
        self.write(MAX_GPUS - 1, offset_of!(GpuEntry, hidden_bytes), &word.to_ne_bytes())
    }

    /// The slice's part of `old` is one of `new` from now on. Only for a closed slice, none of whose processes is running on a GPU.
    ///
    /// # Errors
    /// As [`Observer::set_limit`].
    pub fn replace_gpu(&self, old: &Uuid, new: &Uuid) -> Result<(), HostError> {
        let index = self.index_of(old)?;
        // The UUID that the task's environment names. It is there before the GPU changes.
        if self.limits()?.former_gpu().is_none() {
            self.write(MAX_GPUS - 1, offset_of!(GpuEntry, uuid), old)?;
        }
        self.write(index, offset_of!(GpuEntry, uuid), new)
    }

    fn index_of(&self, uuid: &Uuid) -> Result<usize, HostError> {
        let limits = self.limits()?;
        let index = limits.gpus().iter().position(|gpu| gpu.uuid() == *uuid);
        index.ok_or_else(|| HostError::UnknownGpu(format!("{uuid:02x?}")))
    }

    fn set(&self, uuid: &Uuid, field: usize, bytes: u64) -> Result<(), HostError> {
        self.write(self.index_of(uuid)?, field, &bytes.to_ne_bytes())
    }

    /// Not through a mapping, which an accomplice could cut short under us. The kernels and processors that we know copy eight aligned
    /// bytes in one step.
    fn write(&self, index: usize, field: usize, bytes: &[u8]) -> Result<(), HostError> {
        let at = offset_of!(LimitsRegion, gpus) + index * size_of::<GpuEntry>() + field;
        self.limits
            .write_at(bytes, at)
            .map_err(|errno| HostError::Open(self.dir.join(LIMITS_FILE), OpenError::Io(errno)))
    }
}

std::thread_local! {
    /// The memory of this thread's last copy of a `usage`, with slots of zeros. A region has hundreds of KiB, of which a copy fills a few.
    static SPARE: Cell<Option<Box<UsageRegion>>> = const { Cell::new(None) };
}

fn lease(limits: &LimitsRegion) -> String {
    let bytes = &limits.lease;
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(LEASE_BYTES);
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadExtent {
    Head,
    Slots,
}

fn c_path(path: &Path) -> Result<CString, OpenError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| OpenError::PathTooLong)
}
