//! What this process keeps: its slot in the ledger, what it holds on each GPU, and what was charged for each address.
//!
//! All of it lies in memory that a child of `fork` finds zeroed (`MADV_WIPEONFORK`), and all of it is valid when zero. So a child
//! starts with nothing charged and takes its own slot when it first needs one; what its parent holds stays the parent's, and no
//! lock can be left behind taken.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32};

use cantle_ledger::{Attachment, Ledger, MAX_GPUS};

use crate::book::Book;
use crate::lock::Lock;
use crate::table::Table;

/// CUDA device ordinals that are remembered; a process sees no more GPUs than this.
pub(crate) const MAX_DEVICES: usize = 64;

/// The process's state. All-zero bytes are that of a process that has done nothing yet.
pub(crate) struct Process {
    attachment: Once<Attachment>,
    onlooker: Once<Ledger>,
    /// Index of each CUDA device in the slice.
    pub(crate) devices: [DeviceSlot; MAX_DEVICES],
    /// What this process holds on each GPU of the slice.
    pub(crate) books: [Lock<Book>; MAX_GPUS],
    /// Linear memory.
    pub(crate) memory: Table,
    /// Arrays and mipmapped arrays.
    pub(crate) arrays: Table,
    /// Physical memory of the virtual memory API, by handle; the entry's context counts what keeps it.
    pub(crate) handles: Table,
    /// Where such memory is mapped; the entry's context is the handle.
    pub(crate) mappings: Table,
    /// True once `pools` has had an entry: most programs use none, and are not to pay for them.
    pub(crate) uses_pools: AtomicBool,
    /// Memory pools, with what is charged for their reservation.
    pub(crate) pools: Table,
    /// As `uses_pools`, for `graphs`.
    pub(crate) uses_graph_memory: AtomicBool,
    /// Executable graphs that allocate, with the most they can take.
    pub(crate) graphs: Table,
    /// Contexts that the program created itself.
    pub(crate) contexts: Table,
}

/// A cached answer to "which GPU of the slice is this device?".
pub(crate) struct DeviceSlot(AtomicI32);

impl DeviceSlot {
    const FOREIGN: i32 = -1;

    /// The cached answer, or what `find` says: the inner `None` is a device outside the slice.
    #[inline]
    pub(crate) fn get_or(&self, find: impl FnOnce() -> Option<Option<usize>>) -> Option<usize> {
        match self.0.load(Relaxed) {
            0 => {
                let found = find()?;
                self.0.store(found.map_or(Self::FOREIGN, |gpu| gpu as i32 + 1), Relaxed);
                found
            }
            Self::FOREIGN => None,
            known => Some(known as usize - 1),
        }
    }
}

static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// 0, or on kernels before 4.14, which can't wipe, the pid whose state [`PROCESS`] is.
static PID_TO_CHECK: AtomicU32 = AtomicU32::new(0);

/// This process's state; `None` if the kernel gives no memory for it.
#[inline]
pub(crate) fn process() -> Option<&'static Process> {
    let process = PROCESS.load(Acquire);
    if process.is_null() || PID_TO_CHECK.load(Relaxed) != 0 {
        return create(process);
    }
    // SAFETY: mapped by `create`, never unmapped; valid when zero and changed only through its own locks.
    Some(unsafe { &*process })
}

#[cold]
fn create(known: *mut Process) -> Option<&'static Process> {
    // SAFETY: always succeeds.
    let pid = unsafe { libc::getpid() } as u32;
    if !known.is_null() && PID_TO_CHECK.load(Relaxed) == pid {
        // SAFETY: as in `process`.
        return Some(unsafe { &*known });
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: fresh zeroed memory at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), size_of::<Process>(), protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: advice on the mapping just made.
    if unsafe { libc::madvise(at, size_of::<Process>(), libc::MADV_WIPEONFORK) } != 0 {
        PID_TO_CHECK.store(pid, Relaxed);
    }
    let fresh = at.cast::<Process>();
    match PROCESS.compare_exchange(known, fresh, AcqRel, Acquire) {
        // SAFETY: as in `process`.
        Ok(_) => Some(unsafe { &*fresh }),
        Err(theirs) => {
            // SAFETY: ours, and nobody has seen it; theirs as in `process`.
            unsafe {
                libc::munmap(at, size_of::<Process>());
                Some(&*theirs)
            }
        }
    }
}

impl Process {
    /// This process's slot in the ledger, taken on the first call; `None` if there is no ledger. Asked again, it tries again.
    #[inline]
    pub(crate) fn attachment(&self) -> Option<&Attachment> {
        self.attachment.get_or(|| with_slice_dir(|dir| Attachment::new(dir).ok()))
    }

    /// The ledger, for looking only: takes no slot.
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        match self.attachment.get() {
            Some(attachment) => Some(attachment.ledger()),
            None => self.onlooker.get_or(|| with_slice_dir(|dir| Ledger::open(dir).ok())),
        }
    }
}

/// Where the slice's accounting is mounted. Nothing that the task can set leads elsewhere.
#[cfg(not(feature = "preload"))]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    keeping_errno(|| open(c"/run/cantle/slice"))
}

/// Where an image has it. The environment leads nowhere else.
#[cfg(feature = "image")]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    keeping_errno(|| open(c"/opt/cantle/slice"))
}

/// Where the slice's accounting is, for tasks that nothing can be mounted for. Such a task is held to its limit only as
/// long as it does not mean to get around it; the agent's audit sees the rest.
#[cfg(all(feature = "preload", not(feature = "image")))]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    // SAFETY: a C string; the answer is copied by `open` before the program can change its environment under us.
    let dir = unsafe { libc::getenv(c"CANTLE_SLICE_DIR".as_ptr()) };
    if dir.is_null() {
        return None;
    }
    // SAFETY: not null, and getenv gives C strings.
    keeping_errno(|| open(unsafe { CStr::from_ptr(dir) }))
}

/// The program looks at errno after our hooks as after the driver's functions.
fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: glibc's errno of this thread, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: as above.
    unsafe { *errno = before };
    result
}

/// A value that is made on demand and then stays. Unmade when zero; a failed attempt is not remembered.
struct Once<T> {
    made: AtomicBool,
    making: Lock<()>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the value is written once, under the lock, before `made` is set, and only read after that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    #[inline]
    fn get(&self) -> Option<&T> {
        // SAFETY: made, and never changed after that.
        self.made.load(Acquire).then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    #[inline]
    fn get_or(&self, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        if self.made.load(Acquire) { self.get() } else { self.make(make) }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        let _making = self.making.lock();
        if !self.made.load(Acquire) {
            let value = make()?;
            // SAFETY: not made yet, and the lock is ours.
            unsafe { (*self.value.get()).write(value) };
            self.made.store(true, Release);
        }
        self.get()
    }
}
