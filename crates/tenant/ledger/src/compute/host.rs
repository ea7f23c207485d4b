//! The arbiter's side: creates the pages, reads launches, and opens and closes gates. It maps neither file, so that a
//! process that cuts one short cannot end the arbiter ([ADR
//! 0071](../../../../../docs/adr/0071-nobody-is-ended-by-others.md)).

mod grant;

use std::ffi::CString;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::vec;
use std::vec::Vec;
use std::{fs, io};

use core::mem::offset_of;

use super::layout::{
    LAUNCHES_MAGIC, LaunchesRegion, MAX_PROCESSES, MAX_THREADS, ProcessBlock, ThreadSlot, VERSION,
};
use crate::Uuid;
use crate::attach::is_any_locked;
use crate::file_names::{GRANT_FILE, LAUNCHES_FILE};
use crate::host::{HostError, put};
use crate::map::{Fd, OpenError};
use grant::Grant;

/// A thread that was last seen waiting longer ago does not wait any more. Waiting threads refresh this every few
/// milliseconds.
const WAITING_FRESH_NS: u64 = 30_000_000;

/// The longest time between two heartbeats of an arbiter that polls more often; a small part of [`super::GATE_STALE_NS`].
const HEARTBEAT_NS: u64 = 500_000;

/// The terms of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantTerms {
    /// The GPU.
    pub uuid: Uuid,
    /// A number for the mode, for display.
    pub mode: u32,
    /// Its weight, in thousandths of the GPU.
    pub request_milli: u32,
    /// Its cap; none for no cap.
    pub limit_milli: Option<u32>,
}

/// The launches of a slice's threads, in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchSums {
    /// Prices of all launches, in nanoseconds.
    pub submitted_ns: u64,
    /// Prices of the launches that have ended, in nanoseconds.
    pub confirmed_ns: u64,
    /// A thread waits at the closed gate.
    pub waiting: bool,
    /// A thread waits for the end of what it launched.
    pub attended: bool,
    /// The longest price measured.
    pub longest_ns: u64,
    /// Time that threads have waited at the gate.
    pub gate_wait_ns: u64,
}

/// Has the calling thread run before ordinary ones, where that is allowed: a gate that is opened late idles the GPU, and programs that
/// wait for a GPU keep all processors busy. It must sleep between its polls.
pub fn run_first() {
    const FIRST_REAL_TIME: libc::c_int = 1;
    let priority = libc::sched_param { sched_priority: FIRST_REAL_TIME };
    // Not inherited by what the thread might start.
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread; the kernel reads one `sched_param`, a live local. `setpriority` takes no pointers.
    unsafe {
        if libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) != 0 {
            libc::syscall(libc::SYS_setpriority, 0, 0, -10);
        }
    }
}

/// Creates both files in `dir`, which must exist.
///
/// # Errors
/// [`HostError`] names the file.
pub fn create_grant(dir: &Path, terms: &GrantTerms) -> Result<(), HostError> {
    let grant = grant::bytes(terms, &grant::Announced::default());
    let mut head = vec![0_u8; offset_of!(LaunchesRegion, blocks)];
    head[offset_of!(LaunchesRegion, magic)..][..8].copy_from_slice(&LAUNCHES_MAGIC.to_ne_bytes());
    head[offset_of!(LaunchesRegion, version)..][..4].copy_from_slice(&VERSION.to_ne_bytes());
    let launches = dir.join(LAUNCHES_FILE);
    let made = (|| -> io::Result<()> {
        fs::write(&launches, &head)?;
        let file = fs::OpenOptions::new().write(true).open(&launches)?;
        allocate(&file, size_of::<LaunchesRegion>())?;
        file.set_permissions(fs::Permissions::from_mode(0o666))
    })();
    made.map_err(|error| {
        // A slice that could not be created leaves no file.
        let _ = fs::remove_file(&launches);
        HostError::Io(launches, error)
    })?;
    put(dir, GRANT_FILE, 0o644, &grant.0)
}

/// Gives a file all its blocks. The disk allocates a hole in a mapped file at the first access, and a process that accesses
/// it when the disk is full gets SIGBUS.
fn allocate(file: &fs::File, bytes: usize) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: `file` is open for the length of this call, which reads and writes no memory of ours.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// A slice's figures, for display: its terms, GPU time charged, time waited, its part of the last second in parts per
/// million (none where no slice used the GPU), and whether its work cannot be weighted. None if its compute is not
/// enforced.
#[must_use]
pub fn read_grant(dir: &Path) -> Option<(GrantTerms, u64, u64, Option<u32>, bool)> {
    let (terms, now) = grant::read(&Fd::open(&path(dir, GRANT_FILE).ok()?, libc::O_RDONLY).ok()?).ok()?;
    let (all, own) = (now.recent_all_us, now.recent_own_us);
    let share = (all > 0).then(|| (u64::from(own) * 1_000_000 / u64::from(all)) as u32);
    Some((terms, now.granted_ns, now.gate_wait_ns, share, now.unweightable))
}

fn path(dir: &Path, name: &str) -> Result<CString, OpenError> {
    CString::new(dir.join(name).as_os_str().as_bytes()).map_err(|_| OpenError::Unknown)
}

/// One slice as its arbiter sees it.
pub struct LaunchWatch {
    grant: Grant,
    launches: Fd,
    /// The launches of ended processes.
    ended: LaunchSums,
    copy: Vec<u8>,
}

impl LaunchWatch {
    /// Opens the slice in `dir`, whose lease has these terms. The terms in its page are not used: a process may have
    /// cut the page short before there was an arbiter.
    ///
    /// # Errors
    /// If its compute is not enforced, or the files belong to another user.
    pub fn open(dir: &Path, terms: GrantTerms) -> Result<Self, HostError> {
        let open = || {
            let launches = Fd::open(&path(dir, LAUNCHES_FILE)?, libc::O_RDWR)?;
            Ok((Grant::open(&path(dir, GRANT_FILE)?, terms)?, launches))
        };
        let (grant, launches) = open().map_err(|error| HostError::Open(PathBuf::from(dir), error))?;
        Ok(Self { grant, launches, ended: LaunchSums::default(), copy: Vec::new() })
    }

    /// The launches of its threads by now. A file that is too short counts as empty from there on.
    pub fn observe(&mut self, now_ns: u64) -> LaunchSums {
        let mut sums = self.ended;
        (sums.waiting, sums.attended, sums.longest_ns) = (false, false, 0);
        for number in 0..self.blocks_touched() {
            if let Some(block) = self.block(number).filter(|block| block.owner != 0) {
                add(&mut sums, &block, now_ns);
            }
        }
        self.grant.now.gate_wait_ns = sums.gate_wait_ns;
        sums
    }

    /// Frees the blocks of processes that have ended; what they had in flight has ended with them.
    pub fn reap(&mut self) {
        for number in 0..self.blocks_touched() {
            let Some(block) = self.block(number).filter(|block| block.owner != 0) else { continue };
            let at = number as u32;
            if is_any_locked(&self.launches, at..at + 1) {
                continue;
            }
            let mut sums = self.ended;
            add(&mut sums, &block, 0);
            sums.confirmed_ns = sums.submitted_ns;
            self.ended = sums;
            let zeros = vec![0_u8; size_of::<ProcessBlock>()];
            // The owner last: from then on the block belongs to another process.
            let (owner, rest) = zeros.split_at(offset_of!(ProcessBlock, threads_touched));
            // A file that takes nothing, because it fills its disk, keeps the block of a dead process.
            let _ = self.launches.write_at(rest, block_at(number) + owner.len());
            let _ = self.launches.write_at(owner, block_at(number));
        }
    }

    /// Announces a decision, with a heartbeat. Wakes the process that waits for it.
    pub fn announce(&mut self, now_ns: u64, open: bool, window_ns: u64, granted_ns: u64, unweightable: bool) {
        let now = &mut self.grant.now;
        let changes = now.is_open() != open || (now.window_ns, now.unweightable) != (window_ns, unweightable);
        (now.window_ns, now.unweightable, now.granted_ns) = (window_ns, unweightable, granted_ns);
        let opens = open && !now.is_open();
        now.word = now.word.wrapping_add(u32::from(now.is_open() != open));
        // A change that only affects a figure for display waits for the next heartbeat.
        if changes || now_ns.saturating_sub(now.heartbeat_ns) >= HEARTBEAT_NS {
            now.heartbeat_ns = now_ns;
            self.grant.write();
        }
        if opens {
            self.grant.waiters.wake();
        }
    }

    /// Publishes the use of the GPU in the last second: of all slices, and of this one.
    pub const fn publish_recent(&mut self, all_us: u32, own_us: u32) {
        (self.grant.now.recent_all_us, self.grant.now.recent_own_us) = (all_us, own_us);
    }

    fn blocks_touched(&self) -> usize {
        let mut head = [0_u8; 4];
        let at = offset_of!(LaunchesRegion, blocks_touched);
        if self.launches.read_exact_at(&mut head, at) {
            (u32::from_ne_bytes(head) as usize).min(MAX_PROCESSES)
        } else {
            0
        }
    }

    fn block(&mut self, number: usize) -> Option<Block> {
        const FIRST_SLOTS: usize = 4;
        let head = offset_of!(ProcessBlock, slots);
        let at = block_at(number);
        self.copy.resize(head + FIRST_SLOTS * size_of::<ThreadSlot>(), 0);
        if !self.launches.read_exact_at(&mut self.copy, at) {
            return None;
        }
        let threads = (self.u32_at(offset_of!(ProcessBlock, threads_touched)) as usize).min(MAX_THREADS);
        if threads > FIRST_SLOTS {
            self.copy.resize(head + threads * size_of::<ThreadSlot>(), 0);
            if !self.launches.read_exact_at(&mut self.copy, at) {
                return None;
            }
        }
        let slot = |index: usize| {
            let at = head + index * size_of::<ThreadSlot>();
            let field = |offset: usize| self.u64_at(at + offset);
            let credit_ns = (field(offset_of!(ThreadSlot, credit_ns)) as i64).max(0) as u64;
            Slot {
                submitted_ns: field(offset_of!(ThreadSlot, credited_ns)).wrapping_sub(credit_ns),
                confirmed_ns: field(offset_of!(ThreadSlot, confirmed_ns)),
                waiting_ns: field(offset_of!(ThreadSlot, waiting_ns)),
                attends: field(offset_of!(ThreadSlot, attends)) == 1,
                gate_wait_ns: field(offset_of!(ThreadSlot, gate_wait_ns)),
            }
        };
        Some(Block {
            owner: self.u32_at(offset_of!(ProcessBlock, owner)),
            longest_ns: self.u64_at(offset_of!(ProcessBlock, longest_ns)),
            slots: (0..threads).map(slot).collect(),
        })
    }

    fn u64_at(&self, at: usize) -> u64 {
        grant::u64_at(&self.copy, at)
    }

    fn u32_at(&self, at: usize) -> u32 {
        grant::u32_at(&self.copy, at)
    }
}

/// Copied out of the tenant's file.
struct Block {
    owner: u32,
    longest_ns: u64,
    slots: Vec<Slot>,
}

struct Slot {
    submitted_ns: u64,
    confirmed_ns: u64,
    waiting_ns: u64,
    attends: bool,
    gate_wait_ns: u64,
}

fn block_at(number: usize) -> usize {
    offset_of!(LaunchesRegion, blocks) + number * size_of::<ProcessBlock>()
}

fn add(sums: &mut LaunchSums, block: &Block, now_ns: u64) {
    sums.longest_ns = sums.longest_ns.max(block.longest_ns);
    for slot in &block.slots {
        let in_flight = slot.submitted_ns > slot.confirmed_ns;
        sums.submitted_ns = sums.submitted_ns.wrapping_add(slot.submitted_ns);
        // A thread cannot have confirmed more than it submitted.
        sums.confirmed_ns = sums.confirmed_ns.wrapping_add(slot.confirmed_ns.min(slot.submitted_ns));
        sums.gate_wait_ns = sums.gate_wait_ns.wrapping_add(slot.gate_wait_ns);
        sums.waiting |= slot.waiting_ns != 0 && now_ns.saturating_sub(slot.waiting_ns) < WAITING_FRESH_NS;
        sums.attended |= in_flight && slot.attends;
    }
}
