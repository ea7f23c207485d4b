//! The driver's functions, looked up as the runtime looks them up.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{CudaError, CudaResult};

/// The CUDA version whose functions are meant: what a name means to a driver depends on it, and these are the signatures that this
/// library knows.
const KNOWN_SIGNATURES: i32 = 12040;

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut i32) -> i32;

/// `cuGetProcAddress_v2` of whichever `libcuda.so.1` the loader finds; null if there is none.
pub(super) fn proc_address() -> CudaResult<GetProcAddress> {
    static FOUND: OnceLock<usize> = OnceLock::new();
    let found = *FOUND.get_or_init(|| {
        // SAFETY: both strings are NUL-terminated constants, and `library` is used only if `dlopen` gave one. It stays loaded: nothing
        // here closes it.
        unsafe {
            let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
            if library.is_null() { 0 } else { libc::dlsym(library, c"cuGetProcAddress_v2".as_ptr()) as usize }
        }
    });
    if found == 0 {
        return Err(CudaError::INSUFFICIENT_DRIVER);
    }
    // SAFETY: not null, so it is the driver's function of this name, which has this signature in every driver that exports it.
    Ok(unsafe { std::mem::transmute::<usize, GetProcAddress>(found) })
}

/// A function of the driver.
pub(super) struct DriverFunction {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl DriverFunction {
    pub(super) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("a name ends with NUL") };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; an error if this driver does not have it.
    pub(super) fn get(&self) -> CudaResult<*mut c_void> {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return Ok(found);
        }
        let (mut found, mut status) = (std::ptr::null_mut(), 0);
        let ask = proc_address()?;
        // SAFETY: `ask` is `cuGetProcAddress_v2`; the name is NUL-terminated, and the other two pointers are to live locals.
        let code = unsafe { ask(self.name.as_ptr(), &raw mut found, KNOWN_SIGNATURES, 0, &raw mut status) };
        check(code)?;
        if found.is_null() {
            return Err(CudaError::SYMBOL_NOT_FOUND);
        }
        self.found.store(found, Ordering::Relaxed);
        Ok(found)
    }
}

/// The result of a function of the driver.
pub(super) fn check(code: i32) -> CudaResult {
    if code == 0 { Ok(()) } else { Err(CudaError(code)) }
}

/// Calls a function of the driver: `driver!(cuMemAlloc(out => *mut u64, bytes => usize))`. The types are those of the driver API's
/// reference, in the version of `KNOWN_SIGNATURES`.
macro_rules! driver {
    ($name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        static ENTRY: $crate::cudart::driver::DriverFunction =
            $crate::cudart::driver::DriverFunction::new(concat!(stringify!($name), "\0"));
        ENTRY.get().and_then(|found| {
            // SAFETY: the driver gave `found` for this name and version, and the types are those of its reference. Pointers among the
            // arguments are to live locals, or the program's own, which by the C contract (`ffi`) are as valid for the
            // driver's function as for the runtime's.
            let code = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($ty),*) -> i32>(found)($($arg),*)
            };
            $crate::cudart::driver::check(code)
        })
    }};
}
pub(super) use driver;
