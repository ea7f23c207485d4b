//! Detects which processes are alive. Each registered process has a thread that holds its slot's *liveness word* in the
//! machine's memory, which the kernel writes when the thread ends (a robust futex, see `set_robust_list(2)`).
//!
//! The thread ends with its process, however that ends, and at `exec`; a forked child has no such thread. That is exactly
//! the lifetime of a CUDA context, and it needs neither a file descriptor nor a pid, so it works across containers.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

use crate::signals::SignalsBlocked;

/// The thread that holds the word, as the kernel keeps it (`FUTEX_TID_MASK`). The kernel sets it to 0 when the thread ends.
const OWNER: u32 = 0x3fff_ffff;
/// The thread does nothing but wait.
const STACK_BYTES: usize = 64 << 10;

/// A word that shows whether one process is alive, in memory that all processes share.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct LivenessWord {
    /// The kernel's list of what the thread holds: an address in the process that holds this word, meaningless elsewhere.
    next: AtomicU64,
    word: AtomicU32,
}

/// `struct robust_list_head`.
#[repr(C)]
struct RobustList {
    next: u64,
    word_offset: i64,
    pending: u64,
}

impl LivenessWord {
    /// Whether a live process holds it.
    pub(super) fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & OWNER != 0
    }

    /// Marks it as free, for a machine that has just been started.
    pub(super) fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Takes it until this process ends. The caller has made sure that no other process has it.
    pub(super) fn hold(&'static self) -> io::Result<()> {
        let (ready, is_held) = mpsc::channel();
        let _signals = SignalsBlocked::new();
        std::thread::Builder::new()
            .name("cuda-liveness".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || self.hold_in_this_thread(&ready))?;
        is_held.recv().unwrap_or_else(|_| Err(io::Error::other("the liveness thread ended")))
    }

    fn hold_in_this_thread(&'static self, ready: &mpsc::Sender<io::Result<()>>) {
        let mut list = RobustList {
            next: std::ptr::from_ref(&self.next).addr() as u64,
            word_offset: offset_of!(Self, word) as i64 - offset_of!(Self, next) as i64,
            pending: 0,
        };
        // The end of a list is its head.
        self.next.store((&raw mut list).addr() as u64, Ordering::Release);
        // SAFETY: when the thread ends, the kernel reads `list` and writes the one liveness word in it. Both exist until
        // then: this function never returns once the kernel knows the list, and the keeper is `'static`. The list that glibc had
        // registered for this thread is replaced; only robust mutexes need that, and this thread locks none.
        let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw mut list, size_of::<RobustList>()) };
        if rc != 0 {
            let _ = ready.send(Err(io::Error::last_os_error()));
            return;
        }
        // SAFETY: `gettid` takes no arguments and has no preconditions.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        self.word.store(thread as u32 & OWNER, Ordering::Release);
        let _ = ready.send(Ok(()));
        loop {
            // SAFETY: `pause` takes no arguments and has no preconditions.
            unsafe { libc::pause() };
        }
    }
}
