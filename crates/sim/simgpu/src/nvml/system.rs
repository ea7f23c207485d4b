//! The driver itself: versions, error texts, names of processes.

use std::ffi::{CStr, c_char};
use std::fs;

use super::session::sim;
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::{Out, TextBuffer};
use crate::opening::open_configured;

/// Writes a whole text or nothing.
pub(super) fn write(buffer: TextBuffer, capacity: u32, text: &str) -> NvmlResult {
    if buffer.write(capacity as usize, text)? { Ok(()) } else { Err(NvmlError::INSUFFICIENT_SIZE) }
}

/// The driver's version and its CUDA's: these may be asked before `nvmlInit`.
fn versions() -> NvmlResult<(String, i32)> {
    let sim = sim().or_else(|_| open_configured().map_err(|_| NvmlError::DRIVER_NOT_LOADED))?;
    let state = sim.lock();
    Ok((state.driver().to_owned(), state.cuda_version()))
}

/// The program a process was started as.
pub(super) fn process_name(pid: u32) -> Option<String> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let program = command.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(program).into_owned())
}

static ERRORS: &[(i32, &CStr)] = &[
    (0, c"Success"),
    (1, c"Uninitialized"),
    (2, c"Invalid Argument"),
    (3, c"Not Supported"),
    (4, c"Insufficient Permissions"),
    (6, c"Not Found"),
    (7, c"Insufficient Size"),
    (9, c"Driver Not Loaded"),
    (10, c"Timeout"),
    (13, c"Function Not Found"),
    (15, c"GPU is lost"),
    (16, c"GPU requires reset"),
    (19, c"In use by another client"),
    (20, c"Insufficient Memory"),
    (21, c"No data"),
    (23, c"Insufficient Resources"),
    (25, c"Argument version mismatch"),
];

/// The only NVML function that does not return a code.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is NVML's")]
pub(crate) extern "C" fn nvmlErrorString(error: i32) -> *const c_char {
    ERRORS.iter().find(|(code, _)| *code == error).map_or(c"Unknown Error", |(_, text)| text).as_ptr()
}

nvml_api! {
    fn nvmlSystemGetDriverVersion(text: TextBuffer, length: u32) {
        write(text, length, sim()?.lock().driver())
    }

    fn nvmlSystemGetNVMLVersion(text: TextBuffer, length: u32) {
        let (driver, cuda) = versions()?;
        write(text, length, &format!("{}.{driver}", cuda / 1000))
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) { Ok(version.set(versions()?.1)?) }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) { Ok(version.set(versions()?.1)?) }

    fn nvmlSystemGetProcessName(pid: u32, text: TextBuffer, length: u32) {
        text.write(length as usize, &process_name(pid).ok_or(NvmlError::NOT_FOUND)?)?;
        Ok(())
    }
}
