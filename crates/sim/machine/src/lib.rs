//! A machine with simulated GPUs, with all that an installed driver brings: libraries in the distribution's directories and
//! in the loader's cache, nodes in `/dev`, `/proc/driver/nvidia`. All of it exists in a mount namespace only. A program that
//! runs there finds a machine with GPUs, and no variable or option shows that they are simulated.
//!
//! ```text
//! <home>/state       the GPUs; what `/dev/nvidiactl` and all other nodes of the machine lead to
//! <home>/lock        held shared by every process in the machine
//! <home>/run         the machine's /run/cantle: leases belong to GPUs
//! <home>/shm         its /dev/shm, for the same reason
//! <home>/driver/…    the libraries of one version in one layout, and the loader's cache
//! <home>/mnt         where they are assembled, inside the namespace
//! ```

mod amd;
mod dev;
mod elf;
mod hardware;
mod layout;
mod libraries;
mod loop_device;
mod mounts;
mod namespace;
mod procfs;

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};

pub use hardware::{Hardware, truth_json};
pub use layout::Layout;

/// The GPUs of a machine if none are named.
pub const DEFAULT_GPUS: &str = "1xA100-40GB";

/// Why a machine cannot be entered.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each variant's text says it")]
pub enum MachineError {
    #[error("the simulated driver is missing: {0}; run make build")]
    NoDriver(PathBuf),
    #[error("simulated GPUs: {0}")]
    Gpus(String),
    #[error(
        "\"{0}\" is not a driver that can be simulated; expected a version such as 580.95.05, from 470 on"
    )]
    Version(String),
    #[error("a machine with simulated GPUs needs root or user namespaces: {0}")]
    NoNamespace(io::Error),
    #[error("cannot make a machine with simulated GPUs: {step}: {why}")]
    Step { step: String, why: io::Error },
}

type Result<T> = std::result::Result<T, MachineError>;

/// The machine to enter.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Directory of its parts; a machine that exists there already is entered again.
    pub home: PathBuf,
    /// Its GPUs, e.g. `3xA100-40GB,1xT4-16GB`; none: those it has, or [`DEFAULT_GPUS`].
    pub gpus: Option<String>,
    /// The driver's version; none: the one it has, or 580.95.05.
    pub driver: Option<String>,
    /// The layout of the driver's files.
    pub layout: Layout,
    /// Directory with the simulated driver, below `sim`.
    pub lib_dir: PathBuf,
}

/// Moves the calling process, which must have one thread only, into the machine; everything that it executes afterwards runs
/// there. The machine stays as it is while any process runs in it.
///
/// # Errors
/// If this host cannot have such a machine, or the machine is in use with other GPUs.
pub fn enter(machine: &Machine) -> Result<()> {
    let home = &machine.home;
    step("make its directory", || fs::create_dir_all(home.join("run")))?;
    let lock = step("open its lock", || {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(home.join("lock"))
    })?;
    make_gpus(machine, &lock)?;
    step("lock it", || lock.lock_shared())?;
    if amd::spec_of(home).is_some() { enter_amd(machine, lock) } else { enter_nvidia(machine, lock) }
}

fn enter_amd(machine: &Machine, lock: File) -> Result<()> {
    let home = &machine.home;
    if machine.driver.is_some() || machine.layout != Layout::default() {
        let why = "a machine with GPUs of AMD has neither a version nor a layout of NVIDIA's driver";
        return Err(MachineError::Gpus(why.to_owned()));
    }
    let is_root = namespace::enter()?;
    let stage = mounts::Stage::new(&home.join("mnt"))?;
    let backing =
        dev::Backing::without_function(is_root && namespace::makes_nodes()?, &amd::node_file(home))?;
    dev::put_amd(&stage, &amd::nodes(home)?, &backing, &shared_memory(home)?)?;
    amd::put(&stage, home)?;
    finish(stage, home, is_root)?;
    inherit(lock)
}

fn enter_nvidia(machine: &Machine, lock: File) -> Result<()> {
    let Machine { home, lib_dir, .. } = machine;
    let hardware = hardware::read(home, lib_dir)?;
    let files = libraries::prepare(home, lib_dir, machine.layout, &hardware.driver)?;

    let is_root = namespace::enter()?;
    let stage = mounts::Stage::new(&home.join("mnt"))?;
    let state = home.join("state");
    // Before /dev is covered: the node of a new loop device appears in the machine's own.
    let device = if is_root && namespace::makes_nodes()? { loop_device::attach(&state)? } else { None };
    libraries::put(&stage, &files)?;
    let backing = dev::Backing::of(device.as_ref(), &state)?;
    dev::put(&stage, machine.layout, &hardware, &backing, &shared_memory(home)?)?;
    procfs::put(&stage, &hardware)?;
    finish(stage, home, is_root)?;
    // Every process in the machine holds both, so the state is not replaced and the device not detached while one runs.
    inherit(lock)?;
    device.map_or(Ok(()), inherit)
}

/// The last steps, which all machines have.
fn finish(stage: mounts::Stage, home: &Path, is_root: bool) -> Result<()> {
    mounts::put_node_directory(&home.join("run"))?;
    stage.close()?;
    if is_root { Ok(()) } else { namespace::drop_capabilities() }
}

/// Makes the GPUs that were requested. A machine in which no process runs any more may get others.
fn make_gpus(machine: &Machine, lock: &File) -> Result<()> {
    let Machine { home, lib_dir, .. } = machine;
    if make_amd(machine, lock)? {
        return Ok(());
    }
    let state = home.join("state");
    let asked = machine.gpus.as_deref().or((!state.exists()).then_some(DEFAULT_GPUS));
    if let Some(asked) = asked {
        let made = hardware::create(home, asked, lib_dir);
        match (made, lock.try_lock()) {
            (Ok(()), _) => {}
            (Err(_), Ok(())) if state.exists() => {
                step("switch it off", || switch_off(home))?;
                hardware::create(home, asked, lib_dir)?;
            }
            (Err(why), Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_))) => return Err(why),
        }
    }
    match &machine.driver {
        Some(version) => hardware::set_driver(home, version, lib_dir),
        None => Ok(()),
    }
}

/// True if the machine has GPUs of AMD. The former GPUs are removed, unless a process runs in it.
fn make_amd(machine: &Machine, lock: &File) -> Result<bool> {
    let home = &machine.home;
    let (has, wanted) = (amd::spec_of(home), machine.gpus.as_deref());
    let is_amd = wanted.map_or(has.is_some(), amd::is_spec);
    if wanted.is_none() || has.as_deref() == wanted || !is_amd && has.is_none() {
        return Ok(is_amd);
    }
    let is_new = has.is_none() && !home.join("state").exists();
    if !is_new && lock.try_lock().is_err() {
        return Err(MachineError::Gpus("the machine is in use with other GPUs".to_owned()));
    }
    if !is_new {
        step("switch it off", || switch_off(home))?;
    }
    if is_amd {
        amd::create(home, wanted.unwrap_or_default())?;
    }
    Ok(is_amd)
}

/// Removes the GPUs and the leases of their slices.
fn switch_off(home: &Path) -> io::Result<()> {
    let (state, amd) = (home.join("state"), home.join("amd"));
    if state.exists() {
        fs::remove_file(state)?;
    }
    if amd.exists() {
        fs::remove_dir_all(amd)?;
    }
    let _ = fs::remove_dir_all(home.join("shm"));
    fs::remove_dir_all(home.join("run"))?;
    fs::create_dir(home.join("run"))
}

/// The directory that is `/dev/shm` in the machine.
fn shared_memory(home: &Path) -> Result<PathBuf> {
    let dir = home.join("shm");
    step("make its shared memory", || {
        fs::create_dir_all(&dir)?;
        fs::set_permissions(&dir, Permissions::from_mode(0o1777))
    })?;
    Ok(dir)
}

/// Keeps a file open in this process and all that it starts.
fn inherit(file: File) -> Result<()> {
    step("keep it", || Ok(fcntl_setfd(file.as_fd(), FdFlags::empty())?))?;
    std::mem::forget(file);
    Ok(())
}

fn step<T>(step: &str, f: impl FnOnce() -> io::Result<T>) -> Result<T> {
    f().map_err(|why| MachineError::Step { step: step.to_owned(), why })
}
