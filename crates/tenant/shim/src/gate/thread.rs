//! The threads of this process that launch. A filter has no thread-local storage (it would use the little space that the C
//! library reserves for libraries loaded late), so a thread is found by its thread pointer, which is one register.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

use cantle_ledger::compute::{GatePage, MAX_THREADS, ThreadSlot};

use super::fences::Fences;
use super::{UNKNOWN_NS, clock, hashed};

/// How far from its place a thread may be.
const REACH: usize = 4;

pub(super) const SHIFT: u32 = 26;
const _: () = assert!(1 << (32 - SHIFT) == MAX_THREADS, "a place is a number of an entry");

/// All of them. Valid when zero.
pub(crate) struct Threads {
    all: [Thread; MAX_THREADS],
    /// For [`super::fast`], by the place of a thread: the value of [`expected`] at its last launch; 0 if there is none.
    pub(super) expects: [AtomicU64; MAX_THREADS],
    /// By the place of a thread: the address of its credit.
    pub(super) slots: [AtomicPtr<ThreadSlot>; MAX_THREADS],
}

/// One number for all that has to be as it was: the thread, the stream and the gate's word. Two threads of one place have the same number for
/// streams whose handles differ by the very bits in which their control blocks do; then one pays for the other's launch.
#[inline]
const fn expected(pointer: usize, stream: usize, word: u32) -> u64 {
    pointer as u64 ^ stream as u64 ^ ((word as u64) << 32)
}

/// One thread. Everything but `owner` is used by its owner only. Valid when zero.
#[repr(align(128))]
pub(super) struct Thread {
    /// Its thread pointer; 0 if the entry is free.
    owner: AtomicUsize,
    tid: AtomicU32,
    slot: AtomicPtr<ThreadSlot>,
    /// The gate's word when the credit was taken.
    pub(super) word: AtomicU32,
    /// Counts slow paths.
    pub(super) rounds: AtomicU32,
    stream: AtomicUsize,
    /// It has launched to more than one stream since all was confirmed.
    mixed: AtomicBool,
    fences: UnsafeCell<Fences>,
}

// SAFETY: `fences` is reached by [`Thread::fences`] only, which the owner calls; the other fields are atomic. An entry changes its owner
// only when the former one does not exist any more.
unsafe impl Sync for Thread {}

/// The calling thread's pointer: unlike any other thread's for as long as it runs.
#[inline]
pub(super) fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register, or the word at the beginning of the thread's control block, which holds its own address (x86-64's
    // and aarch64's ABI of thread-local storage).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly, pure));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem, pure));
    }
    pointer
}

impl Threads {
    #[inline]
    fn place(pointer: usize) -> usize {
        hashed(pointer as u32, SHIFT)
    }

    /// The entry of the calling thread, whose pointer this is.
    #[inline]
    pub(super) fn find(&self, pointer: usize) -> Option<&Thread> {
        let place = Self::place(pointer);
        (0..REACH)
            .filter_map(|step| self.all.get((place + step) % MAX_THREADS))
            .find(|thread| thread.owner.load(Relaxed) == pointer)
    }

    /// As [`Self::find`]; a thread without an entry gets one, with its slot in the page. `None` if too many threads launch.
    pub(super) fn claim(&self, page: &'static GatePage) -> Option<&Thread> {
        let pointer = pointer();
        if let Some(known) = self.find(pointer) {
            return Some(known);
        }
        let place = Self::place(pointer);
        for step in 0..REACH {
            let number = (place + step) % MAX_THREADS;
            let (thread, slot) = (self.all.get(number)?, page.slot(number)?);
            let owner = thread.owner.load(Acquire);
            let is_free = owner == 0 || !lives(thread.tid.load(Acquire));
            if is_free && thread.owner.compare_exchange(owner, pointer, AcqRel, Relaxed).is_ok() {
                thread.tid.store(own_tid(), Release);
                thread.word.store(0, Relaxed);
                self.expects.get(number)?.store(0, Relaxed);
                slot.credit_ns.store(0, Relaxed);
                slot.waiting_ns.store(0, Relaxed);
                thread.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
                page.touch(number);
                return Some(thread);
            }
        }
        None
    }

    /// The next launch of `thread`, which is the calling one, may take the fast path, if it goes to the same stream.
    #[inline]
    pub(super) fn expect(&self, thread: &Thread, stream: usize) {
        let pointer = pointer();
        let place = Self::place(pointer);
        let (Some(at_place), Some(expects), Some(slot)) =
            (self.all.get(place), self.expects.get(place), self.slots.get(place))
        else {
            return;
        };
        if core::ptr::eq(at_place, thread) {
            slot.store(thread.slot.load(Relaxed), Relaxed);
            expects.store(expected(pointer, stream, thread.word.load(Relaxed)), Relaxed);
        }
    }
}

fn own_tid() -> u32 {
    // SAFETY: no arguments, no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

/// Is there such a thread of this process? One that is about to write its number counts.
fn lives(tid: u32) -> bool {
    if tid == 0 {
        return true;
    }
    // SAFETY: signal 0 is none; the kernel only looks whether the thread exists. errno's address belongs to this thread.
    unsafe {
        let errno = *libc::__errno_location();
        let found = libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, 0) == 0;
        *libc::__errno_location() = errno;
        found
    }
}

impl Thread {
    #[inline]
    pub(super) fn slot(&self) -> Option<&'static ThreadSlot> {
        // SAFETY: null, or a slot of the page, which stays mapped for as long as the process lives.
        unsafe { self.slot.load(Relaxed).as_ref() }
    }

    /// The fences of this thread, for its owner.
    #[expect(clippy::mut_from_ref, reason = "one thread, and no two calls of it at a time")]
    pub(super) fn fences(&self) -> &mut Fences {
        // SAFETY: only the owner calls this, from a hook, and hooks do not nest: no function of the driver calls a
        // launch hook while a reference lives, because it is dropped or unused during the program's own launch.
        unsafe { &mut *self.fences.get() }
    }

    #[inline]
    pub(super) fn note_stream(&self, stream: usize) {
        if self.stream.load(Relaxed) != stream {
            self.stream.store(stream, Relaxed);
            self.mixed.store(true, Relaxed);
        }
    }

    /// Has it launched to this stream only, since all it had launched was confirmed?
    pub(super) fn used_only(&self, stream: usize) -> bool {
        self.stream.load(Relaxed) == stream && !self.mixed.load(Relaxed)
    }

    /// Takes the credit of one window, less the price of the launch that is about to be made.
    pub(super) fn take_credit(
        &self,
        page: &GatePage,
        slot: &ThreadSlot,
        price_ns: Option<u32>,
        stream: usize,
    ) {
        let now_ns = clock::now_ns();
        let submitted_ns = slot.submitted_ns();
        if submitted_ns == slot.confirmed_ns.load(Relaxed) {
            slot.progress_ns.store(now_ns, Relaxed);
            self.stream.store(stream, Relaxed);
            self.mixed.store(false, Relaxed);
        } else {
            self.note_stream(stream);
        }
        let (cost_ns, credit_ns) = match price_ns {
            Some(price_ns) => (u64::from(price_ns), page.window_ns().saturating_sub(u64::from(price_ns))),
            None => (UNKNOWN_NS, 0),
        };
        slot.credit_ns.store(0, Relaxed);
        slot.credited_ns.store(submitted_ns.wrapping_add(cost_ns), Relaxed);
        slot.credited_ns.store(submitted_ns.wrapping_add(cost_ns).wrapping_add(credit_ns), Relaxed);
        slot.credit_ns.store(credit_ns as i64, Relaxed);
        slot.window_ns.store(now_ns, Relaxed);
        self.word.store(page.word(), Relaxed);
    }
}
