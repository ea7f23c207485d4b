//! Maps files into memory.

use core::ffi::{CStr, c_int};
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr::NonNull;

use crate::layout::{LimitsRegion, Region, UsageRegion};

/// Why a slice's files cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// The file cannot be opened or mapped; the value is `errno`.
    Io(c_int),
    /// The path does not fit.
    PathTooLong,
    /// The file is shorter than its layout.
    Truncated,
    /// The file is something else, or of a version that this build does not know.
    Unknown,
    /// All slots are held by living processes.
    Full,
}

impl core::fmt::Display for OpenError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Io(errno) => write!(f, "the slice's accounting cannot be opened (errno {errno})"),
            Self::PathTooLong => f.write_str("the path of the slice's accounting is too long"),
            Self::Truncated => f.write_str("the slice's accounting is shorter than its layout"),
            Self::Unknown => f.write_str("the slice's accounting is of an unknown kind or version"),
            Self::Full => f.write_str("the slice has no slot left for another process"),
        }
    }
}

impl core::error::Error for OpenError {}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address of this thread's own errno, valid and aligned as long as the thread runs.
    unsafe { *libc::__errno_location() }
}

/// An open file that closes itself.
#[derive(Debug)]
pub(crate) struct Fd(pub(crate) c_int);

impl Fd {
    /// Never waits: a process of the task can hold a lease (`F_SETLEASE`) on a file of its slice, and without `O_NONBLOCK` an open would
    /// wait for it as long as `/proc/sys/fs/lease-break-time` says.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Self, OpenError> {
        // By number, as all calls here: the C library's functions are cancellation points, and a thread that was asked to end
        // must not do so in the middle of ours.
        // SAFETY: `path` is NUL-terminated and outlives the call; without O_CREAT the kernel reads no mode.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                path.as_ptr(),
                flags | libc::O_CLOEXEC | libc::O_NONBLOCK,
            )
        };
        c_int::try_from(fd).ok().filter(|fd| *fd >= 0).map(Self).ok_or_else(|| OpenError::Io(errno()))
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Option<usize> {
        // SAFETY: the kernel writes at most `buffer.len()` bytes, all of them into `buffer`, which we borrow exclusively.
        let length = unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) };
        usize::try_from(length).ok()
    }

    /// Fills `buffer` from `offset` on; false if the file is shorter.
    #[cfg(feature = "std")]
    pub(crate) fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: usize) -> bool {
        while !buffer.is_empty() {
            // SAFETY: the kernel writes at most `buffer.len()` bytes, all of them into `buffer`, which we borrow exclusively.
            let length = unsafe {
                libc::syscall(libc::SYS_pread64, self.0, buffer.as_mut_ptr(), buffer.len(), offset)
            };
            let Some(length) = usize::try_from(length).ok().filter(|length| *length > 0) else {
                return false;
            };
            buffer = buffer.get_mut(length..).unwrap_or_default();
            offset += length;
        }
        true
    }

    #[cfg(feature = "std")]
    pub(crate) fn properties(&self) -> Option<std::fs::Metadata> {
        use std::os::fd::FromRawFd as _;
        // SAFETY: the descriptor is open as long as `self` exists, which outlives the file, and is not closed with the file.
        let file = core::mem::ManuallyDrop::new(unsafe { std::fs::File::from_raw_fd(self.0) });
        file.metadata().ok()
    }

    /// Writes all of `bytes` at `offset`; the error is `errno`.
    #[cfg(feature = "std")]
    pub(crate) fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), c_int> {
        // SAFETY: the kernel reads at most `bytes.len()` bytes of `bytes`, which is borrowed for the call.
        let length =
            unsafe { libc::syscall(libc::SYS_pwrite64, self.0, bytes.as_ptr(), bytes.len(), offset) };
        if usize::try_from(length) == Ok(bytes.len()) { Ok(()) } else { Err(errno()) }
    }

    /// `fcntl` with a lock; false if it fails.
    pub(crate) fn lock(&self, command: c_int, request: &mut libc::flock) -> bool {
        // SAFETY: the kernel reads and writes one `flock`, the one that we borrow exclusively; on 64-bit systems its layout is
        // the C library's.
        unsafe { libc::syscall(libc::SYS_fcntl, self.0, command, core::ptr::from_mut(request)) == 0 }
    }

    fn len(&self) -> Result<usize, OpenError> {
        // Not fstat: its symbol needs a newer glibc than we promise.
        // SAFETY: no pointers; the descriptor is open as long as `self` exists.
        let len = unsafe { libc::lseek(self.0, 0, libc::SEEK_END) };
        usize::try_from(len).map_err(|_| OpenError::Io(errno()))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: no pointers; only `self` owns the descriptor, so it is closed once and not used afterwards.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// A whole region in memory, unmapped on drop.
///
/// A region that was kept out of children ([`Mapping::keep_from_children`]) does not exist in a child of `fork`: such a child
/// must not use the copy of this value that it inherits. If a program shortens a mapped file, a process that reads
/// beyond its end gets SIGBUS. So only a slice's own processes map its files; the agent reads and writes them
/// ([`WakeAddress`] is not memory).
pub(crate) struct Mapping<T: Region> {
    at: NonNull<T>,
    region: PhantomData<T>,
}

impl<T: Region> core::fmt::Debug for Mapping<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.at.fmt(f)
    }
}

// SAFETY: `munmap` may be called by any thread, and the value gives out shared references only, which `T: Sync` allows.
unsafe impl<T: Region> Send for Mapping<T> {}
// SAFETY: the value gives out shared references only, which `T: Sync` allows in several threads.
unsafe impl<T: Region> Sync for Mapping<T> {}

impl<T: Region> Mapping<T> {
    pub(crate) fn new(fd: &Fd, writable: bool) -> Result<Self, OpenError> {
        if fd.len()? < size_of::<T>() {
            return Err(OpenError::Truncated);
        }
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses, so no memory that is in use changes.
        let at = unsafe {
            libc::mmap(core::ptr::null_mut(), size_of::<T>(), protection, libc::MAP_SHARED, fd.0, 0)
        };
        match NonNull::new(at.cast::<T>()) {
            Some(at) if at.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { at, region: PhantomData }),
            _ => Err(OpenError::Io(errno())),
        }
    }

    /// Keeps the mapping out of children of this process.
    pub(crate) fn keep_from_children(&self) -> bool {
        // SAFETY: the address and length of the live mapping that `self` owns; the advice changes nothing in this process.
        unsafe { libc::madvise(self.at.as_ptr().cast(), size_of::<T>(), libc::MADV_DONTFORK) == 0 }
    }
}

impl<T: Region> Deref for Mapping<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `at` begins a page and is mapped for `size_of::<T>()` bytes until `self` is dropped, which the returned
        // reference does not outlive. `T: Region`: any bytes are a valid `T`, and what other processes may change meanwhile is
        // atomic.
        unsafe { self.at.as_ref() }
    }
}

impl<T: Region> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this address with this length; references into it borrow `self`, so none is left.
        unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

/// The address of a word in a file, by which the kernel finds the threads that wait for a change of it (futex).
///
/// It is an address only. Nothing here reads or writes at it, so a program that cuts the file short does no harm: the
/// kernel, which does look there, answers `EFAULT`.
#[cfg(feature = "std")]
pub(crate) struct WakeAddress {
    page: NonNull<libc::c_void>,
    offset: usize,
}

#[cfg(feature = "std")]
const PAGE_BYTES: usize = 4096;

// SAFETY: an address that only the kernel uses, which every thread may give it.
#[cfg(feature = "std")]
unsafe impl Send for WakeAddress {}

#[cfg(feature = "std")]
impl WakeAddress {
    /// Of the word at `offset` in the first page.
    pub(crate) fn new(file: &Fd, offset: usize) -> Result<Self, OpenError> {
        debug_assert!(offset < PAGE_BYTES && offset.is_multiple_of(4));
        // SAFETY: without MAP_FIXED the kernel chooses unused addresses, so no memory that is in use changes.
        let page = unsafe {
            libc::mmap(core::ptr::null_mut(), PAGE_BYTES, libc::PROT_READ, libc::MAP_SHARED, file.0, 0)
        };
        match NonNull::new(page) {
            Some(page) if page.as_ptr() != libc::MAP_FAILED => Ok(Self { page, offset }),
            _ => Err(OpenError::Io(errno())),
        }
    }

    /// Wakes all threads that wait there.
    pub(crate) fn wake(&self) {
        // SAFETY: the address is in the page that `self` has mapped. Only the kernel looks there, and it checks what it finds.
        unsafe {
            let word = self.page.as_ptr().byte_add(self.offset);
            libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX);
        }
    }
}

#[cfg(feature = "std")]
impl Drop for WakeAddress {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this page, and nothing refers to it.
        unsafe { libc::munmap(self.page.as_ptr(), PAGE_BYTES) };
    }
}

pub(crate) fn limits(path: &CStr) -> Result<Mapping<LimitsRegion>, OpenError> {
    let limits = Mapping::<LimitsRegion>::new(&Fd::open(path, libc::O_RDONLY)?, false)?;
    if limits.is_ours() { Ok(limits) } else { Err(OpenError::Unknown) }
}

pub(crate) fn usage(fd: &Fd) -> Result<Mapping<UsageRegion>, OpenError> {
    let usage = Mapping::<UsageRegion>::new(fd, true)?;
    if usage.is_ours() { Ok(usage) } else { Err(OpenError::Unknown) }
}
