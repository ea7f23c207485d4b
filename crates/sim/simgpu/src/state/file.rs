//! Creating, opening and locking the state file.

use std::cell::UnsafeCell;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Seek as _};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::checkpoint::Orders;
use super::layout::{MAX_PROCESSES, SimState};
use super::liveness::LivenessWord;
use super::site::Site;
use crate::spec::{self, MachineSpec};
use crate::time::TimeRegion;

const MAGIC: u64 = u64::from_le_bytes(*b"cantlSIM");
/// Changes with every change of the layout.
const VERSION: u64 = 10;
/// Long enough for the directories of tests and people.
const HOME_LEN: usize = 512;

/// A device node shows whole sectors only.
const FILE_BYTES: u64 = (size_of::<Region>() as u64).next_multiple_of(4096);

/// The file as mapped. Any bytes are a valid value. `magic`, `version` and `home` are written before the file gets its name and
/// never change; `liveness`, `orders` and `time` are atomic; the rest is in cells: Only the holder of `mutex` accesses `state`, and
/// `boot_id` is written under a lock on the file.
#[repr(C)]
struct Region {
    magic: u64,
    version: u64,
    /// The kernel's boot id. Locks and processes do not survive a reboot, the file does.
    boot_id: UnsafeCell<[u8; 36]>,
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    /// The directory in which the machine was made, NUL-terminated. Never changes.
    home: [u8; HOME_LEN],
    liveness: [LivenessWord; MAX_PROCESSES],
    orders: [Orders; MAX_PROCESSES],
    state: UnsafeCell<SimState>,
    /// Much larger than all else, and hardly ever used in full: the file has holes.
    time: TimeRegion,
}

/// Why a machine cannot be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's text says it")]
pub enum SimOpenError {
    #[error("no simulated GPUs in {0}: create them with CANTLE_SIM_GPUS (e.g. 3xA100-40GB) or --sim-gpus")]
    Absent(PathBuf),
    #[error(
        "{dir} already simulates {has}, not {asked}: use another CANTLE_SIM_DIR, or remove {dir} when no task runs"
    )]
    OtherSpec { dir: PathBuf, has: String, asked: String },
    #[error("{0} is not a simulated machine of this version: remove it when no task runs")]
    Foreign(PathBuf),
    #[error("the directory {0} is too long; at most {max} bytes are possible", max = HOME_LEN - 1)]
    LongName(PathBuf),
    #[error(transparent)]
    Spec(#[from] spec::SpecError),
    #[error("simulated GPUs in {dir}: {source}")]
    Io { dir: PathBuf, source: io::Error },
}

/// A simulated machine, mapped into this process until the process ends.
pub struct Sim {
    site: Site,
    region: &'static Region,
}

// SAFETY: of what can change in `Region`, the liveness words and the engines' time are atomic, the state is reached through `Sim::lock` only, whose
// mutex excludes threads as well as processes, and the boot id is used only in `reset_after_reboot`, before the `Sim` exists.
unsafe impl Sync for Sim {}
// SAFETY: a `Sim` is a path and a reference to memory that is never unmapped; nothing in it belongs to one thread.
unsafe impl Send for Sim {}

/// Machines opened by this process, by device and inode (or device number) of the state. Never emptied.
static OPENED: Mutex<Vec<((u64, u64), &'static Sim)>> = Mutex::new(Vec::new());

impl Sim {
    /// Opens the machine at `site`. With a spec, creates it in its directory if there is none, and refuses one made from
    /// another spec.
    pub fn open(site: &Site, spec: Option<&str>) -> Result<&'static Self, SimOpenError> {
        let asked = spec.map(spec::parse).transpose()?;
        let path = site.state();
        let failed = |source| SimOpenError::Io { dir: site.name().to_owned(), source };
        let file = match (open_shared(&path, false), site) {
            (Err(e), Site::Directory(dir)) if e.kind() == io::ErrorKind::NotFound => {
                let asked = asked.as_ref().ok_or_else(|| SimOpenError::Absent(dir.to_owned()))?;
                if dir.as_os_str().len() >= HOME_LEN {
                    return Err(SimOpenError::LongName(dir.to_owned()));
                }
                create(dir, asked).map_err(failed)?;
                open_shared(&path, false)
            }
            (other, _) => other,
        };
        let sim = Self::opened(site, &file.map_err(failed)?)?;
        if let Some(asked) = asked {
            let has = sim.lock().spec();
            if has != asked {
                let (has, asked) = (spec::format(&has), spec::format(&asked));
                return Err(SimOpenError::OtherSpec { dir: site.name().to_owned(), has, asked });
            }
        }
        Ok(sim)
    }

    fn opened(site: &Site, file: &File) -> Result<&'static Self, SimOpenError> {
        let failed = |source| SimOpenError::Io { dir: site.name().to_owned(), source };
        let meta = file.metadata().map_err(failed)?;
        // All nodes of one device are one machine, whatever their paths.
        let is_node = meta.file_type().is_block_device();
        let key = if is_node { (u64::MAX, meta.rdev()) } else { (meta.dev(), meta.ino()) };
        let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, sim)) = opened.iter().find(|(k, _)| *k == key) {
            return Ok(sim);
        }
        let length = (&*file).seek(io::SeekFrom::End(0)).map_err(failed)?;
        if length != FILE_BYTES {
            return Err(SimOpenError::Foreign(site.name().to_owned()));
        }
        // SAFETY: `map` returns the page-aligned mapping of a file that is as long as a `Region`, which no process
        // shortens; it is never unmapped. Any bytes are a valid `Region`, and what others may change in it is atomic or
        // in a cell.
        let region: &'static Region = unsafe { &*map(file).map_err(failed)? };
        if region.magic != MAGIC || region.version != VERSION {
            return Err(SimOpenError::Foreign(site.name().to_owned()));
        }
        region.reset_after_reboot(file).map_err(failed)?;
        let sim: &'static Self = Box::leak(Box::new(Self { site: site.clone(), region }));
        opened.push((key, sim));
        Ok(sim)
    }

    /// Where the machine's parts are.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The directory in which the machine was made, where its scripted faults are; inside a container it may not be there.
    pub fn home(&self) -> &Path {
        let end = self.region.home.iter().position(|byte| *byte == 0).unwrap_or(HOME_LEN);
        Path::new(OsStr::from_bytes(&self.region.home[..end]))
    }

    /// The word that shows whether the process in `slot` is alive.
    pub(super) fn liveness_of(&self, slot: usize) -> &'static LivenessWord {
        &self.region.liveness[slot]
    }

    #[cfg_attr(
        not(any(feature = "cuda", test)),
        allow(dead_code, reason = "the CUDA library alone gives orders")
    )]
    /// Where the process in `slot` gets the orders of the checkpoint functions.
    pub(crate) fn orders_of(&self, slot: usize) -> &'static Orders {
        &self.region.orders[slot]
    }

    /// The state of the engines, which the lock does not guard.
    pub(crate) fn time(&self) -> &'static TimeRegion {
        &self.region.time
    }

    /// Whether a live process has `slot`.
    pub(crate) fn is_slot_held(&self, slot: usize) -> bool {
        self.region.liveness.get(slot).is_some_and(LivenessWord::is_held)
    }

    /// Takes the machine's lock.
    pub fn lock(&'static self) -> StateGuard {
        let mutex = self.region.mutex.get();
        // SAFETY: the mutex was initialized before the file got its name, is never destroyed, and its mapping never ends.
        let rc = unsafe { libc::pthread_mutex_lock(mutex) };
        // Anything else means that the lock is not held, and that it cannot be had again.
        assert!(matches!(rc, 0 | libc::EOWNERDEAD), "the simulated GPUs' lock is unusable (error {rc})");
        let mut guard = StateGuard { sim: self, of_this_thread: PhantomData };
        if rc == libc::EOWNERDEAD {
            guard.repair();
            // SAFETY: this thread has just locked the mutex and got EOWNERDEAD, which is the state that this call ends.
            unsafe { libc::pthread_mutex_consistent(mutex) };
        }
        guard
    }
}

/// The machine's state, while this thread holds its lock.
pub struct StateGuard {
    pub(super) sim: &'static Sim,
    /// Only the thread that locked a mutex may unlock it, so a guard is not `Send`.
    of_this_thread: PhantomData<*const ()>,
}

impl StateGuard {
    /// Where the machine's parts are.
    pub fn site(&self) -> &'static Site {
        self.sim.site()
    }

    /// The machine that this is the state of.
    pub(crate) fn sim(&self) -> &'static Sim {
        self.sim
    }

    /// The GPUs that this process can open.
    pub fn accessible(&self) -> Vec<usize> {
        (0..self.devices().len()).filter(|gpu| self.site().can_open(*gpu)).collect()
    }
}

impl Deref for StateGuard {
    type Target = SimState;
    fn deref(&self) -> &SimState {
        // SAFETY: a guard exists only while its thread holds the mutex, which every thread and process takes before it touches
        // the state; a thread that took it twice would wait for itself, so there is one guard. Its borrow rules hold for the
        // state.
        unsafe { &*self.sim.region.state.get() }
    }
}

impl DerefMut for StateGuard {
    fn deref_mut(&mut self) -> &mut SimState {
        // SAFETY: a guard exists only while its thread holds the mutex, and a thread has at most one, so this is the only guard.
        // It is borrowed exclusively, and so is the state.
        unsafe { &mut *self.sim.region.state.get() }
    }
}

impl Drop for StateGuard {
    fn drop(&mut self) {
        // SAFETY: a guard is made by the thread that locked the mutex and, not being `Send`, dropped by the same one.
        unsafe { libc::pthread_mutex_unlock(self.sim.region.mutex.get()) };
    }
}

impl Region {
    /// If the file is older than the running kernel, starts the machine again: nothing of before the reboot is left.
    fn reset_after_reboot(&self, file: &File) -> io::Result<()> {
        let Some(boot_id) = boot_id() else { return Ok(()) };
        // SAFETY: a live mapping. Another process may write the id meanwhile; a volatile read then gives old and new bytes mixed,
        // which are not `boot_id` either, so the question is asked again under the file lock.
        let stale = || unsafe { self.boot_id.get().read_volatile() } != boot_id;
        if !stale() {
            return Ok(());
        }
        file.lock()?;
        if stale() {
            // SAFETY: no other process uses the state: no process gets past this function while the id is stale,
            // processes of earlier boots are gone, and the file lock admits one at a time.
            let state = unsafe { &mut *self.state.get() };
            let spec = state.spec();
            init_mutex(self.mutex.get())?;
            self.liveness.iter().for_each(LivenessWord::reset);
            self.orders.iter().for_each(Orders::reset);
            self.time.reset();
            state.power_on(&spec);
            fence(Ordering::SeqCst);
            // SAFETY: a live mapping, and the file lock admits one writer. Written last, so a reader of it finds the rest
            // done.
            unsafe { self.boot_id.get().write_volatile(boot_id) };
        }
        file.unlock()
    }
}

fn boot_id() -> Option<[u8; 36]> {
    fs::read("/proc/sys/kernel/random/boot_id").ok()?.first_chunk().copied()
}

/// Opens an existing file, or makes one that everybody may open: tasks may run as any user.
fn open_shared(path: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(create)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)?;
    if create {
        // Some filesystems have no modes; there the mount decides who may open it.
        let _ = file.set_permissions(Permissions::from_mode(0o666));
    }
    Ok(file)
}

/// Writes the state to a file without a name and links it into place, so that no process ever finds half of it; if another
/// process was quicker, its file stays.
fn create(dir: &Path, spec: &MachineSpec) -> io::Result<()> {
    static ATTEMPT: AtomicU32 = AtomicU32::new(0);
    if !dir.exists() {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(0o1777))?;
    }
    let home = std::path::absolute(dir)?;
    let attempt = ATTEMPT.fetch_add(1, Ordering::Relaxed);
    let temporary = dir.join(format!(".state.{}.{attempt}", std::process::id()));
    let result = write_new(&temporary, &home, spec).and_then(|()| {
        match fs::hard_link(&temporary, dir.join("state")) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    });
    fs::remove_file(&temporary)?;
    result
}

fn write_new(path: &Path, home: &Path, spec: &MachineSpec) -> io::Result<()> {
    // A process with our pid that was killed may have left one.
    let _ = fs::remove_file(path);
    let file = open_shared(path, true)?;
    file.set_len(FILE_BYTES)?;
    let region = map(&file)?;
    // SAFETY: `map` returns the page-aligned mapping of a file of zeros, which are a valid `Region`, as long as one. The file is
    // new, so no other process has it open, and nothing else in this one refers to the mapping.
    let r = unsafe { &mut *region };
    r.magic = MAGIC;
    r.version = VERSION;
    let home = home.as_os_str().as_bytes();
    r.home[..home.len()].copy_from_slice(home);
    *r.boot_id.get_mut() = boot_id().unwrap_or([0; 36]);
    init_mutex(r.mutex.get())?;
    r.state.get_mut().power_on(spec);
    // SAFETY: mapped above with this size; `r` is not used any more.
    unsafe { libc::munmap(region.cast(), size_of::<Region>()) };
    Ok(())
}

fn map(file: &File) -> io::Result<*mut Region> {
    // SAFETY: without MAP_FIXED the kernel chooses unused addresses, so no memory that is in use changes.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size_of::<Region>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(address.cast()) }
}

fn init_mutex(mutex: *mut libc::pthread_mutex_t) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let a = attributes.as_mut_ptr();
    // SAFETY: `a` is a live local that the first call initializes before the others use it; `mutex` is valid memory in a mapping,
    // and both callers are the only user of it so far.
    let rc = unsafe {
        libc::pthread_mutexattr_init(a)
            | libc::pthread_mutexattr_setpshared(a, libc::PTHREAD_PROCESS_SHARED)
            | libc::pthread_mutexattr_setrobust(a, libc::PTHREAD_MUTEX_ROBUST)
            | libc::pthread_mutex_init(mutex, a)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
}
