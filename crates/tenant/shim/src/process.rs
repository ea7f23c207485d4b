//! The state of this process: its slot in the ledger, its holdings on each GPU, and the charge for each address.
//!
//! All of it is in memory that a child of `fork` finds zeroed (`MADV_WIPEONFORK`), and all of it is valid when zero. So a child
//! starts with nothing charged and takes its own slot when it first needs one; what its parent holds stays the parent's, and the
//! child inherits no lock that another thread of the parent held.

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};

use cantle_ledger::compute::GatePage;
use cantle_ledger::{Attachment, Ledger, MAX_GPUS, OpenError};

use crate::holdings::Holdings;
use crate::lock::Lock;
use crate::moment::Moment;
use crate::table::Table;

/// CUDA device ordinals that are remembered; a process sees no more GPUs than this.
pub(crate) const MAX_DEVICES: usize = 64;

/// The process's state. All-zero bytes are that of a process that has done nothing yet, so every field must be valid when zero.
pub(crate) struct Process {
    /// The pid of the state's owner, for kernels before 4.14; the wiped copy of a child has 0.
    pid: AtomicU32,
    attachment: Once<Attachment>,
    /// The ledger of a process that has no slot in it.
    ledger: Once<Ledger>,
    /// Index of each CUDA device in the slice.
    pub(crate) devices: [DeviceSlot; MAX_DEVICES],
    /// The holdings of this process on each GPU of the slice.
    pub(crate) holdings: [Lock<Holdings>; MAX_GPUS],
    /// Linear memory.
    pub(crate) memory: Table,
    /// Slabs of small linear memory, by the number of the granule; the entry's context counts their allocations, and its bytes are theirs.
    pub(crate) slabs: Table,
    /// Arrays and mipmapped arrays.
    pub(crate) arrays: Table,
    /// Physical memory of the virtual memory API, by handle; the lower half of the entry's context counts what keeps it.
    pub(crate) handles: Table,
    /// Descriptors of exported memory, by number: see [`crate::cuda`]'s module `export`. An entry has bytes if the descriptor alone keeps them.
    pub(crate) exports: Table,
    /// Number of entries of `exports` with bytes.
    pub(crate) kept_by_descriptors: AtomicU32,
    /// The addresses at which such memory is mapped; the entry's context is the handle.
    pub(crate) mappings: Table,
    /// True once `pools` has had an entry. Most programs use none, and should not pay for looking them up.
    pub(crate) uses_pools: AtomicBool,
    /// Memory pools, with what is charged for their reservation. The entry's context is what is known to be idle of that, in bytes.
    pub(crate) pools: Table,
    /// Questions to pools that are under way, by pool.
    pub(crate) pool_guests: Table,
    /// True while a thread asks a pool: others wait for a moment, so that its answer is not old.
    pub(crate) is_asking: AtomicBool,
    /// The stream on which memory of a pool was freed since pools were last asked after a synchronization with it; 0 if there is none.
    pub(crate) freed_on: AtomicU64,
    /// Counts what may have given a GPU another current pool.
    pub(crate) pool_changes: AtomicU32,
    /// When this process last looked for dead ones of its slice.
    pub(crate) reaped: Moment,
    /// Number of CUDA devices that this process sees, 0 if it was not asked yet: it does not change.
    pub(crate) device_count: AtomicU32,
    /// Memory pools on the host, which take nothing of the slice.
    pub(crate) host_pools: Table,
    /// True once `graphs` has had an entry.
    pub(crate) uses_graph_memory: AtomicBool,
    /// Executable graphs that allocate, with the most they can take.
    pub(crate) graphs: Table,
    /// Memory that a launch of an executable leaves, by its address; the entry's context is the executable.
    pub(crate) graph_kept: Table,
    /// Executables that free first what their last launch has left, by GPU: the entry's context is what a launch leaves, in bytes, and its bytes are
    /// what is left now.
    pub(crate) graph_left: Table,
    /// Contexts that the program created itself.
    pub(crate) contexts: Table,
    /// The pages of the gate; none where compute is not shared by weight.
    gate_page: Once<GatePage>,
    /// True once there were none, or they could not be used: they do not come later.
    is_ungated: AtomicBool,
    pub(crate) gate: crate::gate::State,
}

/// A cached answer to "which GPU of the slice is this device?".
pub(crate) struct DeviceSlot(AtomicI32);

impl DeviceSlot {
    const FOREIGN: i32 = -1;

    /// The cached answer, or the result of `find`: the inner `None` is a device outside the slice.
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

/// Null, or a mapping that [`create`] made and that is never unmapped.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());
/// True on kernels before 4.14, which cannot wipe: there a child of `fork` finds its parent's state, and pids are
/// compared.
static CANNOT_WIPE: AtomicBool = AtomicBool::new(false);

/// `&'static Process` goes to every thread of the program.
const _: () = {
    const fn assert_sync<T: Sync>() {}
    assert_sync::<Process>();
};

/// Does a child of `fork` find zeros in the place of its parent's state?
pub(crate) fn is_wiped_for_children() -> bool {
    !CANNOT_WIPE.load(Relaxed)
}

/// This process's state; `None` if the kernel gives no memory for it.
#[inline]
pub(crate) fn process() -> Option<&'static Process> {
    let process = PROCESS.load(Acquire);
    if process.is_null() || CANNOT_WIPE.load(Relaxed) {
        return create(process);
    }
    // SAFETY: not null, so it is the page-aligned mapping of a `Process` that `create` made, which is never unmapped. Zero bytes
    // are a valid `Process`, also after the kernel has wiped it, and all changes go through its atomics and locks.
    Some(unsafe { &*process })
}

#[cold]
fn create(known: *mut Process) -> Option<&'static Process> {
    // SAFETY: `getpid` takes no arguments and has no preconditions.
    let pid = unsafe { libc::getpid() } as u32;
    // SAFETY: null, or a mapping of a `Process` as `process` describes it.
    if let Some(known) = unsafe { known.as_ref() }.filter(|known| known.pid.load(Relaxed) == pid) {
        return Some(known);
    }
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: an anonymous mapping without MAP_FIXED: the kernel chooses unused addresses, so no memory that is in use changes.
    let at = unsafe { libc::mmap(ptr::null_mut(), size_of::<Process>(), protection, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: address and length of the mapping just made; it is advice for children only.
    if unsafe { libc::madvise(at, size_of::<Process>(), libc::MADV_WIPEONFORK) } != 0 {
        CANNOT_WIPE.store(true, Relaxed);
    }
    let fresh = at.cast::<Process>();
    // SAFETY: the mapping just made, page-aligned and zeroed, and zero bytes are a valid `Process`.
    unsafe { (*fresh).pid.store(pid, Relaxed) };
    match PROCESS.compare_exchange(known, fresh, AcqRel, Acquire) {
        // SAFETY: from here on it is never unmapped: only the branch below unmaps, and only what was not published.
        Ok(_) => Some(unsafe { &*fresh }),
        Err(theirs) => {
            // SAFETY: `at` was not published and no reference to it exists. `theirs` is what another thread has published, which
            // is not null and never unmapped.
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

    /// The slot in the ledger, if this process has taken one.
    pub(crate) fn existing_attachment(&self) -> Option<&Attachment> {
        self.attachment.get()
    }

    /// The pages of this slice's gate.
    pub(crate) fn gate_page(&self) -> Option<&GatePage> {
        if self.is_ungated.load(Relaxed) {
            return None;
        }
        let mut may_come = false;
        let page = self.gate_page.get_or(|| {
            with_slice_dir(|dir| {
                // A program that has used up its file descriptors has not left the gate for that: the next launch tries again.
                let is_short = |error: &OpenError| {
                    matches!(error, OpenError::Io(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
                };
                GatePage::open(dir).inspect_err(|error| may_come = is_short(error)).ok()
            })
        });
        if page.is_none() && !may_come {
            self.is_ungated.store(true, Relaxed);
        }
        page
    }

    /// As [`Self::gate_page`], if they were opened.
    #[inline]
    pub(crate) fn existing_gate_page(&self) -> Option<&GatePage> {
        self.gate_page.get()
    }

    /// The ledger, to read figures from: takes no slot.
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        match self.attachment.get() {
            Some(attachment) => Some(attachment.ledger()),
            None => self.ledger.get_or(|| with_slice_dir(|dir| Ledger::open(dir).ok())),
        }
    }
}

/// The path at which the slice's accounting is mounted. Nothing that the task can set changes it.
#[cfg(not(feature = "preload"))]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    keeping_errno(|| open(c"/run/cantle/slice"))
}

/// The path of the accounting in an image. The environment cannot change it.
#[cfg(feature = "image")]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    keeping_errno(|| open(c"/opt/cantle/slice"))
}

/// The path that the environment names, for tasks that nothing can be mounted for. The limit holds for such a task only as long
/// as it does not try to evade it; the agent's audit finds the rest.
#[cfg(all(feature = "preload", not(feature = "image")))]
fn with_slice_dir<T>(open: impl FnOnce(&CStr) -> Option<T>) -> Option<T> {
    // SAFETY: a NUL-terminated name. C lets no thread change the environment while another one may read it, so a program that
    // does so during a call of CUDA, which reads variables itself, is wrong without us too.
    let dir = unsafe { libc::getenv(c"CANTLE_SLICE_DIR".as_ptr()) };
    if dir.is_null() {
        return None;
    }
    // SAFETY: not null, so it is a NUL-terminated string of the environment, which stays until the program changes the
    // environment (see above); `open` copies it.
    keeping_errno(|| open(unsafe { CStr::from_ptr(dir) }))
}

/// Does `work` and leaves errno as it was: a program may read it after our hooks, as after the driver's functions.
pub(crate) fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: `__errno_location` has no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own errno, which is valid and aligned as long as the thread runs.
    let before = unsafe { *errno };
    let result = work();
    // SAFETY: still this thread's own errno, and `work` has returned, so nothing else refers to it.
    unsafe { *errno = before };
    result
}

/// A value that is made on demand and then stays. Unmade when zero; after a failed attempt the next one tries again.
///
/// `value` is written once, under `making` and before `made` is set; after that nothing writes it, and no thread reads
/// it before.
struct Once<T> {
    made: AtomicBool,
    making: Lock<()>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: one thread writes the value under the lock (`Send`); others see it only after `made`, which orders the write before
// their reads, and then share it (`Sync`).
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    #[inline]
    fn get(&self) -> Option<&T> {
        // SAFETY: `made` is set, so the value was written before (acquire and release), and it never changes after that.
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
            // SAFETY: we hold the lock and `made` is not set, so no other thread writes the value, and none reads it
            // yet.
            unsafe { (*self.value.get()).write(value) };
            self.made.store(true, Release);
        }
        self.get()
    }
}
