//! The threads of this process that launch. There is no thread-local storage in a filter (it would take of what the C library has
//! left for libraries loaded late), so a thread is found by its thread pointer, which is one register.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};

use cantle_ledger::compute::{GatePage, MAX_THREADS, ThreadSlot};

use super::fences::Fences;
use super::{UNKNOWN_NS, clock};

/// How far from its place a thread may be.
const REACH: usize = 4;

/// All of them. Valid when zero.
pub(crate) struct Threads([Thread; MAX_THREADS]);

/// One thread. Everything but `owner` is used by its owner only. Valid when zero.
#[repr(align(128))]
pub(super) struct Thread {
    /// Its thread pointer; 0 is nobody.
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
        // Control blocks lie at the same offset of mappings of whole pages.
        ((pointer as u64 >> 6).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58) as usize
    }

    /// The entry of the calling thread, whose pointer this is.
    #[inline]
    pub(super) fn find(&self, pointer: usize) -> Option<&Thread> {
        let place = Self::place(pointer);
        (0..REACH)
            .filter_map(|step| self.0.get((place + step) % MAX_THREADS))
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
            let (thread, slot) = (self.0.get(number)?, page.slot(number)?);
            let owner = thread.owner.load(Acquire);
            let is_free = owner == 0 || !lives(thread.tid.load(Acquire));
            if is_free && thread.owner.compare_exchange(owner, pointer, AcqRel, Relaxed).is_ok() {
                thread.tid.store(own_tid(), Release);
                thread.word.store(0, Relaxed);
                slot.credit_ns.store(0, Relaxed);
                slot.waiting_ns.store(0, Relaxed);
                thread.slot.store(core::ptr::from_ref(slot).cast_mut(), Release);
                page.touch(number);
                return Some(thread);
            }
        }
        None
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
        // SAFETY: only the owner calls this, from a hook, and hooks do not nest: no function of the driver calls a launch of ours while
        // a reference lives, because it is dropped or unused during the program's own launch.
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
