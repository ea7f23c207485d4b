//! The last error of each thread, and the names of codes.

use std::cell::Cell;
use std::ffi::{CStr, c_char};

use super::driver::driver;
use super::{CudaResult, runtime_api};

thread_local! {
    static LAST: Cell<i32> = const { Cell::new(0) };
}

const NOT_READY: i32 = 600;

/// Remembers a failure, and turns a result into what C sees. "Not ready" is an answer, not a failure.
pub(super) fn finish(result: CudaResult) -> i32 {
    let code = result.map_or_else(|error| error.0, |()| 0);
    if code != 0 && code != NOT_READY {
        LAST.set(code);
    }
    code
}

/// Names of the codes that programs of this machine meet; all others are `cudaErrorUnknown` by name.
#[rustfmt::skip]
static NAMES: &[(i32, &CStr)] = &[
    (0, c"cudaSuccess"), (1, c"cudaErrorInvalidValue"), (2, c"cudaErrorMemoryAllocation"), (3, c"cudaErrorInitializationError"),
    (4, c"cudaErrorCudartUnloading"), (35, c"cudaErrorInsufficientDriver"), (98, c"cudaErrorInvalidDeviceFunction"),
    (100, c"cudaErrorNoDevice"), (101, c"cudaErrorInvalidDevice"), (200, c"cudaErrorInvalidKernelImage"),
    (201, c"cudaErrorDeviceUninitialized"), (205, c"cudaErrorMapBufferObjectFailed"), (218, c"cudaErrorInvalidPtx"),
    (301, c"cudaErrorFileNotFound"), (400, c"cudaErrorInvalidResourceHandle"), (401, c"cudaErrorIllegalState"),
    (500, c"cudaErrorSymbolNotFound"), (600, c"cudaErrorNotReady"), (700, c"cudaErrorIllegalAddress"),
    (704, c"cudaErrorPeerAccessAlreadyEnabled"), (709, c"cudaErrorContextIsDestroyed"),
    (712, c"cudaErrorHostMemoryAlreadyRegistered"), (713, c"cudaErrorHostMemoryNotRegistered"), (719, c"cudaErrorLaunchFailure"),
    (800, c"cudaErrorNotPermitted"), (801, c"cudaErrorNotSupported"), (900, c"cudaErrorStreamCaptureUnsupported"),
    (901, c"cudaErrorStreamCaptureInvalidated"), (999, c"cudaErrorUnknown"),
];

/// The runtime's text where the driver has none, or another one.
static OWN_TEXTS: &[(i32, &CStr)] = &[
    (0, c"no error"),
    (35, c"CUDA driver version is insufficient for CUDA runtime version"),
    (98, c"invalid device function"),
    (400, c"invalid resource handle"),
];

fn find(table: &[(i32, &'static CStr)], code: i32) -> Option<&'static CStr> {
    table.iter().find(|(of, _)| *of == code).map(|(_, text)| *text)
}

fn text(code: i32) -> *const c_char {
    if let Some(own) = find(OWN_TEXTS, code) {
        return own.as_ptr();
    }
    let mut text: *const c_char = std::ptr::null();
    let found = driver!(cuGetErrorString(code => i32, &raw mut text => *mut *const c_char));
    if found.is_ok() && !text.is_null() { text } else { c"unrecognized error code".as_ptr() }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is CUDA's")]
extern "C" fn cudaGetErrorName(code: i32) -> *const c_char {
    find(NAMES, code).unwrap_or(c"cudaErrorUnknown").as_ptr()
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is CUDA's")]
extern "C" fn cudaGetErrorString(code: i32) -> *const c_char {
    text(code)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is CUDA's")]
extern "C" fn cudaGetLastError() -> i32 {
    LAST.replace(0)
}

#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is CUDA's")]
extern "C" fn cudaPeekAtLastError() -> i32 {
    LAST.get()
}

runtime_api! {
    fn cudaProfilerStart() { super::context::enter() }
    fn cudaProfilerStop() { super::context::enter() }
}
