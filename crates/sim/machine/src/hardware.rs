//! The simulated GPUs. The simulated `libcuda.so.1` creates, describes and queries them, through functions that it exports
//! for this. This crate cannot depend on the crate that builds that library, so it loads it.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};
use serde::Deserialize;

use crate::{MachineError, Result};

type Create = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> i32;
type SetDriver = unsafe extern "C" fn(*const c_char, *const c_char) -> i32;
type Json = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;

/// The facts that an installed driver shows about its machine.
#[derive(Clone, Debug, Deserialize)]
pub struct Hardware {
    /// The driver's version.
    pub driver: String,
    /// 1000 · major + 10 · minor of its CUDA.
    pub cuda: i32,
    /// In order of their minor numbers.
    pub gpus: Vec<HardwareGpu>,
    /// The names of the nodes in `/dev/nvidia-caps`.
    pub capability_nodes: Vec<String>,
    /// The text of `/proc/driver/nvidia-caps/mig-minors`.
    pub mig_minors: String,
}

/// One GPU, as the driver shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct HardwareGpu {
    /// Its product name.
    pub model: String,
    /// `GPU-…`
    pub uuid: String,
    /// Its address on the bus, e.g. `0000:10:00.0`.
    pub pci: String,
}

/// Makes the GPUs that `spec` names, unless they exist already.
pub(crate) fn create(home: &Path, spec: &str, lib_dir: &Path) -> Result<()> {
    let lib = load(&in_dist(lib_dir)?)?;
    let create: Symbol<'_, Create> = symbol(&lib, b"cantle_sim_create\0")?;
    let (dir, spec) = (c_path(home)?, c_string(spec.as_bytes())?);
    let mut message = vec![0u8; 1024];
    // SAFETY: both strings are NUL-terminated, and the buffer has the length that is passed; all outlive the call.
    let code = unsafe { create(dir.as_ptr(), spec.as_ptr(), message.as_mut_ptr().cast(), message.len()) };
    if code == 0 {
        return Ok(());
    }
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
    Err(MachineError::Gpus(String::from_utf8_lossy(&message[..end]).into_owned()))
}

pub(crate) fn set_driver(home: &Path, version: &str, lib_dir: &Path) -> Result<()> {
    let lib = load(&in_dist(lib_dir)?)?;
    let set: Symbol<'_, SetDriver> = symbol(&lib, b"cantle_sim_set_driver\0")?;
    let (dir, text) = (c_path(home)?, c_string(version.as_bytes())?);
    // SAFETY: both strings are NUL-terminated and outlive the call.
    match unsafe { set(dir.as_ptr(), text.as_ptr()) } {
        0 => Ok(()),
        _ => Err(MachineError::Version(version.to_owned())),
    }
}

pub(crate) fn read(home: &Path, lib_dir: &Path) -> Result<Hardware> {
    let lib = load(&in_dist(lib_dir)?)?;
    let json = json(&*symbol::<Json>(&lib, b"cantle_sim_hardware_json\0")?, Some(&c_path(home)?))?;
    serde_json::from_str(&json).map_err(|why| MachineError::Gpus(why.to_string()))
}

/// The allocations that the simulated driver of this machine has recorded, as JSON: the outside witness of every test
/// (`cantle sim truth`).
///
/// # Errors
/// If this machine has no simulated GPUs.
pub fn truth_json() -> Result<String> {
    let lib = load(Path::new("libcuda.so.1"))?;
    let truth: Symbol<'_, Json> = symbol(&lib, b"cantle_sim_truth_json\0")?;
    json(&truth, None)
}

/// Calls a function that writes as much of a text as fits into a buffer, and returns the text's length.
fn json(function: &Json, dir: Option<&CString>) -> Result<String> {
    let dir = dir.map_or(std::ptr::null(), |dir| dir.as_ptr());
    let mut text: Vec<u8> = vec![0; 16 * 1024];
    loop {
        // SAFETY: `dir` is null or NUL-terminated and outlives the call; the buffer has the length that is passed.
        let needed = unsafe { function(dir, text.as_mut_ptr().cast(), text.len()) };
        let needed =
            usize::try_from(needed).map_err(|_| MachineError::Gpus("there are none here".to_owned()))?;
        if needed < text.len() {
            text.truncate(needed);
            return String::from_utf8(text).map_err(|why| MachineError::Gpus(why.to_string()));
        }
        // Processes may start between the two calls.
        text.resize(needed + 4096, 0);
    }
}

fn in_dist(lib_dir: &Path) -> Result<PathBuf> {
    let path = lib_dir.join("sim/libcuda.so.1");
    if path.is_file() { Ok(path) } else { Err(MachineError::NoDriver(path)) }
}

fn load(path: &Path) -> Result<Library> {
    // SAFETY: runs the constructors of a driver's library, simulated or real, which ask nothing of the process that loads it.
    unsafe { Library::new(path) }.map_err(|why| MachineError::Gpus(why.to_string()))
}

/// One of the simulated driver's own functions. `T` must be its type, one of those above.
fn symbol<'lib, T>(lib: &'lib Library, name: &'static [u8]) -> Result<Symbol<'lib, T>> {
    let not_simulated =
        |_| MachineError::Gpus("the driver of this machine is not the simulated one".to_owned());
    // SAFETY: `T` is the function's type: the callers above use the types that the simulated driver declares for these names
    // (`control.rs` of cantle-simgpu), which no real driver has.
    unsafe { lib.get(name) }.map_err(not_simulated)
}

fn c_path(path: &Path) -> Result<CString> {
    c_string(path.as_os_str().as_bytes())
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|why| MachineError::Gpus(why.to_string()))
}
