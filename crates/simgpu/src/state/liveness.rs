//! Who is alive: each registered process has a thread that holds the *keeper* of its slot, a word in the machine's memory
//! that the kernel writes when the thread ends (a robust futex, see `set_robust_list(2)`).
//!
//! The thread ends with its process, however that dies, and at `exec`; a forked child has no such thread. That is exactly
//! the life of a CUDA context, and it needs neither a file descriptor nor a pid, so it works across containers.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;

/// The thread that holds the word, as the kernel keeps it (`FUTEX_TID_MASK`). The kernel sets it to 0 when the thread ends.
const OWNER: u32 = 0x3fff_ffff;
/// The thread does nothing but wait.
const STACK_BYTES: usize = 64 << 10;

/// A word that says whether one process lives. Lies in memory that all processes share.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Keeper {
    /// The kernel's list of what the thread holds: an address in the process that holds this keeper, meaningless elsewhere.
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

impl Keeper {
    /// Whether a living process holds it.
    pub(super) fn is_held(&self) -> bool {
        self.word.load(Ordering::Acquire) & OWNER != 0
    }

    /// Nobody holds it: for a machine that has just been switched on.
    pub(super) fn reset(&self) {
        self.word.store(0, Ordering::Release);
    }

    /// Holds it until this process ends. The caller knows that nobody else does.
    pub(super) fn hold(&'static self) -> io::Result<()> {
        let (ready, is_held) = mpsc::channel();
        let _signals = SignalsBlocked::new();
        std::thread::Builder::new()
            .name("cuda-keeper".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || self.hold_in_this_thread(&ready))?;
        is_held.recv().unwrap_or_else(|_| Err(io::Error::other("the keeper's thread ended")))
    }

    fn hold_in_this_thread(&'static self, ready: &mpsc::Sender<io::Result<()>>) {
        let mut list = RobustList {
            next: std::ptr::from_ref(&self.next).addr() as u64,
            word_offset: offset_of!(Self, word) as i64 - offset_of!(Self, next) as i64,
            pending: 0,
        };
        // The end of a list is its head.
        self.next.store((&raw mut list).addr() as u64, Ordering::Release);
        // SAFETY: `list` lives as long as the thread, which never returns once the kernel knows the list; the thread holds no
        // mutex of glibc's that would need glibc's own list.
        let rc = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw mut list, size_of::<RobustList>()) };
        if rc != 0 {
            let _ = ready.send(Err(io::Error::last_os_error()));
            return;
        }
        // SAFETY: gettid has no preconditions and can't fail.
        let thread = unsafe { libc::syscall(libc::SYS_gettid) };
        self.word.store(thread as u32 & OWNER, Ordering::Release);
        let _ = ready.send(Ok(()));
        loop {
            // SAFETY: pause has no preconditions.
            unsafe { libc::pause() };
        }
    }
}

/// All signals are blocked in this thread, and so in those that it starts, until this is dropped: a program's signals are
/// for the program's own threads.
struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    fn new() -> Self {
        // SAFETY: both sets are live locals; a zeroed `sigset_t` is a valid (empty) one.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            Self { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled in by the call above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut()) };
    }
}
