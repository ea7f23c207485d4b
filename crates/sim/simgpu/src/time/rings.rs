//! Rings of items, in memory that all processes share. Each belongs to one process, which alone adds items; what is in it does not
//! change until the channel has passed it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::advance::Rings;
use super::item::{Item, Op};
use super::shared::TimeRegion;
use crate::state::Sim;

/// Items that a channel can hold: a launch beyond them blocks, as it does at about this depth with NVIDIA's driver.
pub(crate) const DEPTH: u64 = 1024;
/// Channels of the whole machine.
pub(super) const MAX_RINGS: usize = 2048;
/// In the word for a mark's time, that it was not reached yet; the rest is then the item's number.
const PENDING: u64 = 1 << 63;

/// Everything but the items.
#[repr(C)]
pub(super) struct Header {
    /// Slot of the process that it belongs to, plus 1; 0: free.
    owner: AtomicU32,
    /// Changes when waiting threads should check again; a futex.
    signal: AtomicU32,
    /// Number of the next item. Goes on when the ring changes hands: no two items of a ring have the same number.
    tail: AtomicU64,
}

impl Header {
    pub(super) fn reset(&self) {
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(0, Ordering::Relaxed);
        }
    }
}

#[repr(C)]
pub(super) struct Entry {
    op: [AtomicU64; 2],
    ready_ns: AtomicU64,
    /// When a mark was passed, or a spinning kernel met the others.
    at_ns: AtomicU64,
}

/// A ring of a machine.
#[derive(Clone, Copy)]
pub(crate) struct Ring {
    sim: &'static Sim,
    pub(crate) index: usize,
}

impl Ring {
    /// Takes a free ring for the process in `slot`, or one of a process that has died.
    pub(crate) fn take(sim: &'static Sim, slot: usize) -> Option<Self> {
        let me = slot as u32 + 1;
        let is_ours = |header: &Header| {
            let owner = header.owner.load(Ordering::Relaxed);
            let is_free = owner == 0 || owner != me && !sim.is_slot_held(owner as usize - 1);
            is_free && header.owner.compare_exchange(owner, me, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let index = sim.time().headers.iter().position(is_ours)?;
        Some(Self { sim, index })
    }

    /// A ring by its number, of any process.
    pub(super) fn at(sim: &'static Sim, index: usize) -> Self {
        Self { sim, index: index % MAX_RINGS }
    }

    /// Gives it back.
    pub(crate) fn release(self) {
        self.header().owner.store(0, Ordering::Release);
    }

    fn header(&self) -> &'static Header {
        &self.sim.time().headers[self.index]
    }

    fn entry(&self, seq: u64) -> &'static Entry {
        &self.sim.time().entries[self.index][(seq % DEPTH) as usize]
    }

    /// Number of the next item.
    pub(crate) fn tail(&self) -> u64 {
        self.header().tail.load(Ordering::Acquire)
    }

    /// Adds an item; its number. The caller knows that there is room.
    pub(crate) fn push(&self, op: Op, ready_ns: u64) -> u64 {
        let seq = self.tail();
        let entry = self.entry(seq);
        for (word, value) in entry.op.iter().zip(op.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        entry.ready_ns.store(ready_ns, Ordering::Relaxed);
        entry.at_ns.store(PENDING | seq, Ordering::Relaxed);
        self.header().tail.store(seq + 1, Ordering::Release);
        seq
    }

    /// Says that an item of this process is ready.
    pub(crate) fn set_ready(&self, seq: u64, now_ns: u64) {
        self.entry(seq).ready_ns.store(now_ns, Ordering::Release);
        self.wake();
    }

    /// When a mark was passed or a kernel met the others; `None` if that was not yet, or if the item is not in the ring any more.
    pub(crate) fn at_ns(&self, seq: u64) -> Option<u64> {
        let at_ns = self.entry(seq).at_ns.load(Ordering::Acquire);
        (at_ns & PENDING == 0).then_some(at_ns)
    }

    /// Notes when that was. Only the first call does; a late one, even by hours, changes nothing.
    pub(super) fn set_at_ns(&self, seq: u64, at_ns: u64) -> bool {
        let word = &self.entry(seq).at_ns;
        word.compare_exchange(PENDING | seq, at_ns, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A value for [`Ring::sleep`].
    pub(crate) fn signal(&self) -> u32 {
        self.header().signal.load(Ordering::Acquire)
    }

    /// Wakes the threads that sleep on this ring.
    pub(crate) fn wake(&self) {
        let signal = &self.header().signal;
        signal.fetch_add(1, Ordering::AcqRel);
        // SAFETY: FUTEX_WAKE uses the address as a key only; it is in a mapping that never ends.
        unsafe { libc::syscall(libc::SYS_futex, signal.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Sleeps until `until_ns`, or until the ring is woken after `signal` was read.
    pub(crate) fn sleep(&self, signal: u32, until_ns: u64) {
        precise_timers();
        let until = libc::timespec {
            tv_sec: (until_ns / 1_000_000_000) as libc::time_t,
            tv_nsec: (until_ns % 1_000_000_000) as libc::c_long,
        };
        // SAFETY: the word is a live, aligned atomic in a mapping that never ends, `until` a live local; the operation takes an
        // absolute time of CLOCK_MONOTONIC and no second address.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.header().signal.as_ptr(),
                libc::FUTEX_WAIT_BITSET,
                signal,
                &raw const until,
                std::ptr::null::<u32>(),
                libc::FUTEX_BITSET_MATCH_ANY,
            )
        };
    }
}

/// A thread's timers are up to 50 µs late by default, more than many kernels take.
pub(crate) fn precise_timers() {
    const SLACK_NS: libc::c_ulong = 1000;
    thread_local! {
        static DONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    if !DONE.replace(true) {
        // SAFETY: the option takes one number and changes nothing but the calling thread's timers.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS) };
    }
}

/// The rings of a machine, as its engines read them.
pub(super) struct RingsOf(pub(super) &'static Sim);

impl Rings for RingsOf {
    fn item(&self, ring: usize, seq: u64) -> Option<Item> {
        let region = self.0.time();
        let header = region.headers.get(ring)?;
        if header.tail.load(Ordering::Acquire) <= seq {
            return None;
        }
        let entry = &region.entries[ring][(seq % DEPTH) as usize];
        let words = [0, 1].map(|i| entry.op[i].load(Ordering::Relaxed));
        let at_ns = entry.at_ns.load(Ordering::Acquire);
        Some(Item {
            op: Op::from_words(words),
            ready_ns: entry.ready_ns.load(Ordering::Acquire),
            met_ns: (at_ns & PENDING == 0).then_some(at_ns),
        })
    }
}

impl TimeRegion {
    /// Frees what a process left behind whose slot has a new owner.
    pub(super) fn free_rings(&self, slot: usize) {
        for header in self.headers.iter().filter(|h| h.owner.load(Ordering::Relaxed) == slot as u32 + 1) {
            header.owner.store(0, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }
}
