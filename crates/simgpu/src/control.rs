//! What the product itself calls in the simulated libraries. Exported by both of them, beside the driver's own names.

use std::ffi::{c_char, c_int};
use std::path::PathBuf;
use std::sync::Mutex;

use crate::ffi::{Text, TextBuffer, open_dir};
use crate::truth_json;

static CHOSEN: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The directory set with [`cantle_sim_use`].
pub(crate) fn chosen_directory() -> Option<PathBuf> {
    CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
}

/// `int cantle_sim_use(const char *dir)`: this library uses the machine in `dir`, whatever the environment says. Call it
/// before `cuInit`/`nvmlInit`. 0, or -1 if there is no machine in `dir`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_use(dir: Text) -> c_int {
    let Ok(dir) = dir.get() else { return -1 };
    if open_dir(dir, None).is_err() {
        return -1;
    }
    *CHOSEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(dir.into());
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
/// Returns the length of the text (without the final NUL); if that is not less than `len`, the text was cut and a second
/// call with a larger buffer gets it. -1 if there is no machine in `dir`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn cantle_sim_truth_json(dir: Text, buffer: *mut c_char, len: usize) -> isize {
    let Ok(dir) = dir.get() else { return -1 };
    let Ok(sim) = open_dir(dir, None) else { return -1 };
    let json = truth_json(sim);
    let _ = TextBuffer(buffer).write(len, &json);
    json.len() as isize
}
