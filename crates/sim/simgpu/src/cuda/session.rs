//! The driver's state in one process: visible devices, contexts and memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};

use super::account::Account;
use super::address_space::AddressSpace;
use super::array::Arrays;
use super::checkpoint;
use super::context::Contexts;
use super::execution::Objects;
use super::graph::Graphs;
use super::host::HostMemory;
use super::managed::Migrating;
use super::pool::Pools;
use super::visible::{Visible, select};
use super::vmm::Vmm;
use super::{CuError, CuResult};
use crate::state::{Registration, Sim};
use crate::version::{DEFAULT_DRIVER, cuda_of};

/// The driver after `cuInit`.
pub(super) struct Session {
    pub(super) sim: &'static Sim,
    pub(super) devices: Vec<Visible>,
    inner: Mutex<Inner>,
}

/// The part behind the process's lock.
pub(super) struct Inner {
    registration: Option<Registration>,
    /// One per visible device.
    pub(super) accounts: Vec<Account>,
    pub(super) contexts: Contexts,
    pub(super) addresses: AddressSpace,
    pub(super) host: HostMemory,
    pub(super) migrating: Migrating,
    pub(super) objects: Objects,
    pub(super) pools: Pools,
    pub(super) vmm: Vmm,
    pub(super) arrays: Arrays,
    pub(super) graphs: Graphs,
}

static SESSION: OnceLock<Session> = OnceLock::new();

/// A page that the kernel zeroes in a forked child: the child finds 0 where the parent wrote 1. Contexts do not survive
/// `fork`, and neither may the child touch the parent's accounts.
static FORK_MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The current context of this thread; 0: none.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

const COMPATIBILITY_MARK: &[u8; 18] = b"CANTLE-SIM-COMPAT:";

/// The mark, and in a copy of this library that replaces one of CUDA's compatibility package the version of the driver
/// that it belongs to, which the maker of the copy writes over the zeros.
#[used]
static COMPATIBILITY: [u8; 32] = *b"CANTLE-SIM-COMPAT:\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// The version of the driver that this library belongs to, if that need not be the machine's.
fn compatibility_driver() -> Option<&'static str> {
    // SAFETY: a valid, initialized static. Volatile, because the file may say otherwise than what was compiled.
    let first = unsafe { std::ptr::read_volatile(&raw const COMPATIBILITY[COMPATIBILITY_MARK.len()]) };
    if first == 0 {
        return None;
    }
    let version = std::hint::black_box(&COMPATIBILITY).get(COMPATIBILITY_MARK.len()..)?;
    std::ffi::CStr::from_bytes_until_nul(version).ok()?.to_str().ok()
}

/// `cuInit`.
pub(super) fn init() -> CuResult {
    if SESSION.get().is_some() {
        return session().map(|_| ());
    }
    let sim = crate::opening::open_configured().map_err(|error| match error {
        crate::state::SimOpenError::Absent(_) => CuError::NO_DEVICE,
        _ => CuError::INVALID_VALUE,
    })?;
    if compatibility_driver().is_some_and(|own| cuda_of(own).unwrap_or(0) < sim.lock().cuda_version()) {
        return Err(CuError::SYSTEM_DRIVER_MISMATCH);
    }
    let devices = select(&sim.lock(), crate::config::cuda_visible_devices().as_deref());
    if devices.is_empty() {
        return Err(CuError::NO_DEVICE);
    }
    let accounts = devices.iter().map(|d| Account::new(d.index(), d.domain)).collect();
    SESSION.get_or_init(|| {
        mark_for_fork();
        let inner = Inner {
            registration: None,
            accounts,
            contexts: Contexts::new(devices.len()),
            addresses: AddressSpace::new(),
            host: HostMemory::new(),
            migrating: Migrating::default(),
            objects: Objects::new(),
            pools: Pools::new(devices.len()),
            vmm: Vmm::default(),
            arrays: Arrays::default(),
            graphs: Graphs::default(),
        };
        Session { sim, devices, inner: Mutex::new(inner) }
    });
    Ok(())
}

/// The CUDA version of the machine's driver. A program may ask before `cuInit`, and without any GPU.
pub(super) fn cuda_version() -> i32 {
    if let Some(own) = compatibility_driver().and_then(cuda_of) {
        return own;
    }
    let of_machine = |sim: &'static Sim| sim.lock().cuda_version();
    let opened = SESSION.get().map(|session| session.sim).or_else(|| crate::opening::open_configured().ok());
    opened.map_or_else(|| cuda_of(DEFAULT_DRIVER).unwrap_or(0), of_machine)
}

fn mark_for_fork() {
    const PAGE: usize = 4096;
    // SAFETY: an anonymous mapping without MAP_FIXED: the kernel chooses unused addresses, so no memory that is in use changes.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the page just mapped: aligned, zeroed (a valid `AtomicU32`), and known to this function only.
    unsafe {
        libc::madvise(page, PAGE, libc::MADV_WIPEONFORK);
        (*page.cast::<AtomicU32>()).store(1, Ordering::Relaxed);
    }
    FORK_MARK.store(page.cast(), Ordering::Release);
}

/// The session, if this process has one of its own.
#[inline]
pub(super) fn session() -> CuResult<&'static Session> {
    let session = SESSION.get().ok_or(CuError::NOT_INITIALIZED)?;
    // SAFETY: null, or the page of `mark_for_fork`: aligned, never unmapped, and a valid atomic also after the kernel wiped it.
    match unsafe { FORK_MARK.load(Ordering::Relaxed).as_ref() } {
        Some(mark) if mark.load(Ordering::Relaxed) == 0 => Err(CuError::NOT_INITIALIZED),
        _ if checkpoint::is_locked() => Ok(session.once_unlocked()),
        _ => Ok(session),
    }
}

/// The session of this process, also while the process is locked: for calls about other processes.
pub(super) fn initialized() -> CuResult<&'static Session> {
    SESSION.get().ok_or(CuError::NOT_INITIALIZED)
}

/// The current context's number; 0: none.
pub(super) fn current() -> u32 {
    CURRENT.get()
}

/// Makes a context (or none, 0) current to this thread.
pub(super) fn set_current(context: u32) {
    CURRENT.set(context);
}

impl Session {
    /// A visible device by its CUDA ordinal.
    pub(super) fn device(&self, ordinal: i32) -> CuResult<&Visible> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(CuError::INVALID_DEVICE)
    }

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The lock, if it is free.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits as long as the process is locked for a checkpoint.
    #[cold]
    fn once_unlocked(&self) -> &Self {
        drop(self.lock());
        self
    }
}

impl Inner {
    /// This process's registration and the account of a device.
    pub(super) fn account(&mut self, device: usize) -> CuResult<(&Registration, &mut Account)> {
        let registration = self.registration.as_ref().ok_or(CuError::INVALID_CONTEXT)?;
        Ok((registration, &mut self.accounts[device]))
    }

    /// This process's slot in the machine.
    pub(super) fn slot(&self) -> CuResult<usize> {
        Ok(self.registration.as_ref().ok_or(CuError::INVALID_CONTEXT)?.identity().0)
    }

    /// Registers the process if it is not yet.
    pub(super) fn register(&mut self, sim: &'static Sim) -> CuResult {
        if self.registration.is_none() {
            let registration = sim.register()?;
            checkpoint::serve(initialized()?, registration.identity().0);
            self.registration = Some(registration);
        }
        Ok(())
    }

    /// This process in the machine, once it has a context.
    pub(super) fn registration(&self) -> Option<&Registration> {
        self.registration.as_ref()
    }
}
