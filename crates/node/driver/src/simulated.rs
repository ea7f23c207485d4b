//! For tests: creates simulated GPUs in a directory, and reads what they really hold. The simulated libraries export
//! functions of their own for this.

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libloading::{Library, Symbol};

use nvml_wrapper_sys::bindings::NvmlLib;

use crate::libraries::{CUDA_SONAME, Libraries, Library as DriverLibrary, NVML_SONAME};
use crate::{DriverError, Result};

type Use = unsafe extern "C" fn(*const c_char) -> i32;
type Create = unsafe extern "C" fn(*const c_char, *const c_char, *mut c_char, usize) -> i32;
type SetDriver = unsafe extern "C" fn(*const c_char, *const c_char) -> i32;
type TruthJson = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;

/// Makes the simulated GPUs that `spec` names (`3xA100-40GB,1xT4-16GB`) in `dir`, unless they are there already.
///
/// # Errors
/// If the spec is wrong, or `dir` holds other GPUs than those.
pub fn create(dir: &Path, spec: &str, lib_dir: &Path) -> Result<()> {
    let lib = load(lib_dir)?;
    let (dir, spec) = (c_path(dir)?, c_string(spec.as_bytes())?);
    let create: Symbol<'_, Create> = symbol(&lib, b"cantle_sim_create\0")?;
    let mut message = vec![0u8; 1024];
    // SAFETY: both strings are NUL-terminated, and the buffer has the length that is passed; all outlive the call.
    let code = unsafe { create(dir.as_ptr(), spec.as_ptr(), message.as_mut_ptr().cast(), message.len()) };
    if code == 0 {
        return Ok(());
    }
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
    Err(DriverError::Sim(String::from_utf8_lossy(&message[..end]).into_owned()))
}

/// The state of the simulated driver, as JSON: the outside witness of every test.
///
/// # Errors
/// If there are no simulated GPUs in `dir`.
pub fn truth_json(dir: &Path, lib_dir: &Path) -> Result<String> {
    let lib = load(lib_dir)?;
    let dir_text = c_path(dir)?;
    let select: Symbol<'_, Use> = symbol(&lib, b"cantle_sim_use\0")?;
    let no_gpus = || DriverError::Sim(format!("there are none in {}", dir.display()));
    // SAFETY: `dir_text` is NUL-terminated and outlives the call.
    if unsafe { select(dir_text.as_ptr()) } != 0 {
        return Err(no_gpus());
    }
    let truth: Symbol<'_, TruthJson> = symbol(&lib, b"cantle_sim_truth_json\0")?;
    let mut json: Vec<u8> = vec![0; 16 * 1024];
    loop {
        // SAFETY: `dir_text` is NUL-terminated, and the buffer has the length that is passed; both outlive the call.
        let needed = unsafe { truth(dir_text.as_ptr(), json.as_mut_ptr().cast(), json.len()) };
        let needed = usize::try_from(needed).map_err(|_| no_gpus())?;
        if needed < json.len() {
            json.truncate(needed);
            return String::from_utf8(json).map_err(|why| DriverError::Sim(why.to_string()));
        }
        // Processes may start between the two calls.
        json.resize(needed + 4096, 0);
    }
}

/// The simulated driver in `dir` is of this version from now on.
///
/// # Errors
/// If there are no simulated GPUs in `dir`, or there is no such driver.
pub fn set_driver(dir: &Path, version: &str, lib_dir: &Path) -> Result<()> {
    let lib = load(lib_dir)?;
    let (dir_text, version_text) = (c_path(dir)?, c_string(version.as_bytes())?);
    let set: Symbol<'_, SetDriver> = symbol(&lib, b"cantle_sim_set_driver\0")?;
    // SAFETY: both strings are NUL-terminated and outlive the call.
    match unsafe { set(dir_text.as_ptr(), version_text.as_ptr()) } {
        0 => Ok(()),
        _ => Err(DriverError::Sim(format!("no machine in {}, or no driver {version}", dir.display()))),
    }
}

pub(crate) fn libraries(lib_dir: &Path) -> Result<Libraries> {
    let library = |soname: &str| {
        let real = lib_dir.join("sim").join(soname);
        if !real.is_file() {
            return Err(DriverError::NoSimDriver(real));
        }
        Ok(DriverLibrary { names: vec![real.clone()], real })
    };
    Ok(Libraries { cuda: library(CUDA_SONAME)?, nvml: library(NVML_SONAME)? })
}

/// Loads the library and sets where this copy of it finds its state, before it is initialized.
pub(crate) fn nvml(dir: &Path, lib_dir: &Path) -> Result<NvmlLib> {
    let path = libraries(lib_dir)?.nvml.real;
    let failed = |why: String| DriverError::Load { path: path.clone(), why };
    // SAFETY: our own library, which has no constructors of its own; those of the Rust runtime ask nothing of the process.
    let lib = unsafe { NvmlLib::new(&path) }.map_err(|why| failed(why.to_string()))?;
    let dir_text = c_path(dir)?;
    // SAFETY: the simulated driver declares the function with this type (`control.rs` of cantle-simgpu).
    let select = unsafe { lib.__library.get::<Use>(b"cantle_sim_use\0") };
    let select = select.map_err(|why| failed(why.to_string()))?;
    // SAFETY: `dir_text` is NUL-terminated and outlives the call.
    match unsafe { select(dir_text.as_ptr()) } {
        0 => Ok(lib),
        code => Err(DriverError::Sim(format!("cannot use {} (code {code})", dir.display()))),
    }
}

fn load(lib_dir: &Path) -> Result<Library> {
    let path = libraries(lib_dir)?.cuda.real;
    // SAFETY: our own library, which has no constructors of its own; those of the Rust runtime ask nothing of the process.
    unsafe { Library::new(&path) }.map_err(|why| DriverError::Load { path, why: why.to_string() })
}

/// One of the simulated driver's own functions. `T` must be its type, one of those above.
fn symbol<'lib, T>(lib: &'lib Library, name: &[u8]) -> Result<Symbol<'lib, T>> {
    // SAFETY: `T` is the function's type: the callers above use the types that the simulated driver declares for these names
    // (`control.rs` of cantle-simgpu).
    unsafe { lib.get(name) }.map_err(|why| DriverError::Sim(why.to_string()))
}

fn c_path(path: &Path) -> Result<CString> {
    c_string(path.as_os_str().as_bytes())
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|why| DriverError::Sim(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_simulated_driver_is_named() {
        let error = libraries(Path::new("/nowhere")).unwrap_err();
        assert_eq!(error, DriverError::NoSimDriver("/nowhere/sim/libcuda.so.1".into()));
        assert!(error.to_string().contains("make build"));
    }
}
