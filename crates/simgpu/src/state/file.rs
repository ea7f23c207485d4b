//! Creating, opening and locking the state file.

use std::cell::UnsafeCell;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::layout::State;
use super::liveness::LockFile;
use crate::spec::{self, SpecDevice};

const MAGIC: u64 = u64::from_le_bytes(*b"cantlSIM");
/// Changes with every change of the layout.
const VERSION: u64 = 3;

/// The file as mapped. Magic and version are written before the file gets its name and never change.
#[repr(C)]
struct Region {
    magic: u64,
    version: u64,
    /// The kernel's boot id. Locks and processes do not survive a reboot, the file does.
    boot_id: UnsafeCell<[u8; 36]>,
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    state: UnsafeCell<State>,
}

/// Why a machine can't be opened.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's text says it")]
pub enum OpenError {
    #[error("no simulated GPUs in {0}: create them with CANTLE_SIM_GPUS (e.g. 3xA100-40GB) or --sim-gpus")]
    Absent(PathBuf),
    #[error(
        "{dir} already simulates {has}, not {asked}: use another CANTLE_SIM_DIR, or remove {dir} when no task runs"
    )]
    OtherSpec { dir: PathBuf, has: String, asked: String },
    #[error("{0}/state is not a simulated machine of this version: remove it when no task runs")]
    Foreign(PathBuf),
    #[error(transparent)]
    Spec(#[from] spec::SpecError),
    #[error("simulated GPUs in {dir}: {source}")]
    Io { dir: PathBuf, source: io::Error },
}

/// A simulated machine, mapped into this process. Lives until the process ends (see [`LockFile`]).
pub struct Sim {
    dir: PathBuf,
    region: &'static Region,
    pub(super) locks: LockFile,
}

// SAFETY: all interior mutability of `Region` is reached through `Sim::lock`, whose mutex excludes threads as well as
// processes, or (boot id) under a file lock.
unsafe impl Sync for Sim {}
// SAFETY: nothing in a `Sim` belongs to one thread.
unsafe impl Send for Sim {}

/// Machines opened by this process, by device and inode of the state file. Never emptied.
static OPENED: Mutex<Vec<((u64, u64), &'static Sim)>> = Mutex::new(Vec::new());

impl Sim {
    /// Opens the machine in `dir`. With a spec, creates it if there is none and refuses one made from another spec.
    pub fn open(dir: &Path, spec: Option<&str>) -> Result<&'static Self, OpenError> {
        let devices = spec.map(spec::parse).transpose()?;
        let in_dir = |source| OpenError::Io { dir: dir.to_owned(), source };
        let file = match open_shared(&dir.join("state"), false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let devices = devices.as_ref().ok_or_else(|| OpenError::Absent(dir.to_owned()))?;
                create(dir, devices).map_err(in_dir)?;
                open_shared(&dir.join("state"), false)
            }
            other => other,
        };
        let sim = Self::opened(dir, &file.map_err(in_dir)?)?;
        if let Some(asked) = devices {
            let has = sim.lock().spec();
            if has != asked {
                let (has, asked) = (spec::format(&has), spec::format(&asked));
                return Err(OpenError::OtherSpec { dir: dir.to_owned(), has, asked });
            }
        }
        Ok(sim)
    }

    fn opened(dir: &Path, file: &File) -> Result<&'static Self, OpenError> {
        let in_dir = |source| OpenError::Io { dir: dir.to_owned(), source };
        let meta = file.metadata().map_err(in_dir)?;
        let key = (meta.dev(), meta.ino());
        let mut opened = OPENED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, sim)) = opened.iter().find(|(k, _)| *k == key) {
            return Ok(sim);
        }
        if meta.len() != size_of::<Region>() as u64 {
            return Err(OpenError::Foreign(dir.to_owned()));
        }
        // SAFETY: the file is exactly one `Region` long and nothing truncates it; the mapping is never undone.
        let region: &'static Region = unsafe { &*map(file).map_err(in_dir)? };
        if region.magic != MAGIC || region.version != VERSION {
            return Err(OpenError::Foreign(dir.to_owned()));
        }
        let locks = open_shared(&dir.join("locks"), true).map_err(in_dir)?;
        region.reset_after_reboot(file).map_err(in_dir)?;
        let sim: &'static Self =
            Box::leak(Box::new(Self { dir: dir.to_owned(), region, locks: LockFile(locks.into()) }));
        opened.push((key, sim));
        Ok(sim)
    }

    /// Where the machine lives.
    pub fn directory(&self) -> &Path {
        &self.dir
    }

    /// Takes the machine's lock.
    pub fn lock(&'static self) -> Guard {
        let mutex = self.region.mutex.get();
        // SAFETY: the mutex was initialised before the file got its name and is never destroyed.
        let rc = unsafe { libc::pthread_mutex_lock(mutex) };
        let mut guard = Guard { sim: self };
        if rc == libc::EOWNERDEAD {
            guard.repair();
            // SAFETY: this thread holds the mutex, in the state that `pthread_mutex_consistent` is for.
            unsafe { libc::pthread_mutex_consistent(mutex) };
        }
        guard
    }
}

/// The machine's state, while this thread holds its lock.
pub struct Guard {
    pub(super) sim: &'static Sim,
}

impl Guard {
    /// Where the machine lives.
    pub fn directory(&self) -> &'static Path {
        self.sim.directory()
    }
}

impl Deref for Guard {
    type Target = State;
    fn deref(&self) -> &State {
        // SAFETY: the lock is held, so no other thread or process touches the state.
        unsafe { &*self.sim.region.state.get() }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the lock is held, so no other thread or process touches the state.
        unsafe { &mut *self.sim.region.state.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: a `Guard` exists only while this thread holds the mutex.
        unsafe { libc::pthread_mutex_unlock(self.sim.region.mutex.get()) };
    }
}

impl Region {
    /// A machine whose file is older than the running kernel has just been switched on again.
    fn reset_after_reboot(&self, file: &File) -> io::Result<()> {
        let Some(boot_id) = boot_id() else { return Ok(()) };
        // SAFETY: a torn read while another process resets only leads to the file lock below.
        let stale = || unsafe { self.boot_id.get().read_volatile() } != boot_id;
        if !stale() {
            return Ok(());
        }
        file.lock()?;
        if stale() {
            // SAFETY: no process of this boot has got past this function with a stale id, and the file lock admits one.
            let state = unsafe { &mut *self.state.get() };
            let spec = state.spec();
            init_mutex(self.mutex.get())?;
            state.power_on(&spec);
            fence(Ordering::SeqCst);
            // SAFETY: as above; written last, so that whoever sees it sees the rest.
            unsafe { self.boot_id.get().write_volatile(boot_id) };
        }
        file.unlock()
    }
}

fn boot_id() -> Option<[u8; 36]> {
    fs::read("/proc/sys/kernel/random/boot_id").ok()?.first_chunk().copied()
}

/// Opens for everybody who may use the machine: tasks may run as any user.
fn open_shared(path: &Path, create: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)?;
    if create {
        // Fails for all but the owner, who has already done it.
        let _ = file.set_permissions(Permissions::from_mode(0o666));
    }
    Ok(file)
}

/// Writes the state to a file without a name and links it into place, so that nobody ever sees half of it; if another
/// process was quicker, its file stays.
fn create(dir: &Path, spec: &[SpecDevice]) -> io::Result<()> {
    static ATTEMPT: AtomicU32 = AtomicU32::new(0);
    if !dir.exists() {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, Permissions::from_mode(0o1777))?;
    }
    let attempt = ATTEMPT.fetch_add(1, Ordering::Relaxed);
    let temporary = dir.join(format!(".state.{}.{attempt}", std::process::id()));
    let result =
        write_new(&temporary, spec).and_then(|()| match fs::hard_link(&temporary, dir.join("state")) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        });
    fs::remove_file(&temporary)?;
    result
}

fn write_new(path: &Path, spec: &[SpecDevice]) -> io::Result<()> {
    // A leftover of a killed process with our pid is nobody's.
    let _ = fs::remove_file(path);
    let file = open_shared(path, true)?;
    file.set_len(size_of::<Region>() as u64)?;
    let region = map(&file)?;
    // SAFETY: the file is one `Region` long, zeroed (a valid value), and only this process knows it.
    let r = unsafe { &mut *region };
    r.magic = MAGIC;
    r.version = VERSION;
    *r.boot_id.get_mut() = boot_id().unwrap_or([0; 36]);
    init_mutex(r.mutex.get())?;
    r.state.get_mut().power_on(spec);
    // SAFETY: mapped above with this size; no reference to it is used afterwards.
    unsafe { libc::munmap(region.cast(), size_of::<Region>()) };
    Ok(())
}

fn map(file: &File) -> io::Result<*mut Region> {
    // SAFETY: a new shared mapping of an open file; nothing else is affected.
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
    // SAFETY: `a` is initialised by the first call and used as the calls require; nobody uses `mutex` yet.
    let rc = unsafe {
        libc::pthread_mutexattr_init(a)
            | libc::pthread_mutexattr_setpshared(a, libc::PTHREAD_PROCESS_SHARED)
            | libc::pthread_mutexattr_setrobust(a, libc::PTHREAD_MUTEX_ROBUST)
            | libc::pthread_mutex_init(mutex, a)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(rc)) }
}
