//! The functions that cantle itself calls in the simulated libraries. Both libraries export them, in addition to the
//! driver's own names.

use std::ffi::{c_char, c_int};
use std::sync::Mutex;

use crate::ffi::{Text, TextBuffer};
use crate::hardware::hardware_json;
use crate::opened::opened_elsewhere;
use crate::opening::{open_configured, open_dir};
use crate::state::{SimGpu, Site};
use crate::truth_json;
use crate::version::cuda_of;

static CHOSEN: Mutex<Option<Site>> = Mutex::new(None);

/// The directory that [`cantle_sim_use`] has set.
pub(crate) fn chosen_site() -> Option<Site> {
    CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}

/// `int cantle_sim_use(const char *dir)`: this library uses the machine in `dir`, regardless of the environment. Call it
/// before `cuInit`/`nvmlInit`. 0, or -1 if there is no machine in `dir`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_use(dir: Text) -> c_int {
    let Ok(dir) = dir.get() else { return -1 };
    if open_dir(dir, None).is_err() {
        return -1;
    }
    *CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Site::Directory(dir.into()));
    0
}

/// `int cantle_sim_create(const char *dir, const char *spec, char *error, size_t error_len)`: makes the machine in `dir`
/// unless it exists already with the same GPUs. 0, or -1 with one line in `error`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_create(
    dir: Text,
    spec: Text,
    error: TextBuffer,
    error_len: usize,
) -> c_int {
    let result = match (dir.get(), spec.get()) {
        (Ok(dir), Ok(spec)) => open_dir(dir, Some(spec)).map_err(|e| e.to_string()),
        _ => Err("directory and list of GPUs are required".to_owned()),
    };
    let Err(text) = result else { return 0 };
    let _ = error.write(error_len, &text);
    -1
}

/// `ssize_t cantle_sim_truth_json(const char *dir, char *buffer, size_t len)`: what the simulated driver holds, as JSON.
/// Null means the machine that programs here use.
/// Returns the length of the text (without the final NUL); if that is not less than `len`, the text was cut and a second
/// call with a larger buffer gets it. -1 if there is no machine.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_truth_json(dir: Text, buffer: *mut c_char, len: usize) -> isize {
    let opened = match dir.get() {
        Ok(dir) => open_dir(dir, None),
        Err(_) => open_configured(),
    };
    let Ok(sim) = opened else { return -1 };
    let json = truth_json(sim);
    let _ = TextBuffer(buffer).write(len, &json);
    json.len() as isize
}

/// `int cantle_sim_set_driver(const char *dir, const char *version)`: the version of the driver from now on. 0, or -1 if
/// there is no machine in `dir` or no such driver.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_set_driver(dir: Text, version: Text) -> c_int {
    let (Ok(dir), Ok(version)) = (dir.get(), version.get()) else { return -1 };
    match (open_dir(dir, None), cuda_of(version)) {
        (Ok(sim), Some(_)) => {
            sim.lock().set_driver(version);
            0
        }
        _ => -1,
    }
}

/// `int cantle_sim_reload(const char *dir)`: the driver is loaded again, as when the machine is started. No MIG instance is left, and
/// a MIG mode that was pending is the mode. 0, or -1 if there is no machine in `dir` or a process uses it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_reload(dir: Text) -> c_int {
    let Ok(dir) = dir.get() else { return -1 };
    let Ok(sim) = open_dir(dir, None) else { return -1 };
    let mut state = sim.swept();
    if opened_elsewhere(&[sim.site().state()]) || state.processes().next().is_some() {
        return -1;
    }
    let count = state.devices().len();
    state.devices[..count].iter_mut().for_each(SimGpu::reload);
    state.clear_limits();
    0
}

/// `ssize_t cantle_sim_hardware_json(const char *dir, char *buffer, size_t len)`: what an installed driver would show of the
/// machine outside its libraries: versions, GPUs, device nodes. Lengths as [`cantle_sim_truth_json`].
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_hardware_json(dir: Text, buffer: *mut c_char, len: usize) -> isize {
    let Ok(dir) = dir.get() else { return -1 };
    let Ok(sim) = open_dir(dir, None) else { return -1 };
    let json = hardware_json(sim);
    let _ = TextBuffer(buffer).write(len, &json);
    json.len() as isize
}
