//! Looks up functions of the real driver.

use core::ffi::{CStr, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

/// `CUresult` or `nvmlReturn_t`.
pub(crate) type Status = c_int;

/// One of the driver's two libraries.
pub(crate) struct Library {
    /// Absolute path of the real one: in a task's mount namespace the usual names lead to us.
    #[cfg(not(feature = "preload"))]
    pub(crate) path: &'static CStr,
    /// Name of the real one, where nothing is mounted over it.
    #[cfg(feature = "preload")]
    pub(crate) soname: &'static CStr,
    /// The answer for a function that this driver does not have.
    pub(crate) missing: Status,
    handle: AtomicPtr<c_void>,
}

/// The driver API.
pub(crate) static CUDA: Library = Library {
    #[cfg(not(feature = "preload"))]
    path: c"/run/cantle/real/libcuda.so.1",
    #[cfg(feature = "preload")]
    soname: c"libcuda.so.1",
    missing: crate::cuda::NOT_SUPPORTED,
    handle: AtomicPtr::new(ptr::null_mut()),
};

/// The management library.
pub(crate) static NVML: Library = Library {
    #[cfg(not(feature = "preload"))]
    path: c"/run/cantle/real/libnvidia-ml.so.1",
    #[cfg(feature = "preload")]
    soname: c"libnvidia-ml.so.1",
    missing: crate::nvml::FUNCTION_NOT_FOUND,
    handle: AtomicPtr::new(ptr::null_mut()),
};

impl Library {
    fn handle(&self) -> *mut c_void {
        let known = self.handle.load(Acquire);
        if !known.is_null() {
            return known;
        }
        let handle = self.open();
        self.handle.store(handle, Release);
        handle
    }

    /// It is loaded already: `DT_NEEDED` names it. `dlopen` searches the linker namespace of its caller, which is ours.
    #[cfg(not(feature = "preload"))]
    fn open(&self) -> *mut c_void {
        // SAFETY: `path` is a NUL-terminated constant. With RTLD_NOLOAD no library is loaded, so no constructor runs.
        unsafe { libc::dlopen(self.path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
    }

    /// A program that calls a hook has loaded the library by this name, or would have without the hook.
    #[cfg(feature = "preload")]
    fn open(&self) -> *mut c_void {
        // SAFETY: `soname` is a NUL-terminated constant. If the driver's library is not loaded yet, its constructors run as they
        // would have for the program.
        unsafe { libc::dlopen(self.soname.as_ptr(), libc::RTLD_NOW) }
    }

    pub(crate) fn find(&self, name: &CStr) -> *mut c_void {
        let handle = self.handle();
        if handle.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: `handle` came from `dlopen` and is never closed; `name` is NUL-terminated and outlives the call.
        #[cfg(not(feature = "preload"))]
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        #[cfg(feature = "preload")]
        let found = crate::preload::real_dlsym(handle, name);
        found
    }
}

/// A function of the real library, looked up once. `F` is its `unsafe extern "C" fn` type.
pub(crate) struct Function<F> {
    library: &'static Library,
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

/// Address of a function that the library does not have.
const MISSING: *mut c_void = ptr::without_provenance_mut(1);

impl<F: Copy + Sync> Function<F> {
    /// # Safety
    /// `F` must be the function pointer type that the vendor's header gives for `name`.
    pub(crate) const unsafe fn new(library: &'static Library, name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { library, name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function, or what to answer in its place.
    #[inline]
    pub(crate) fn get(&self) -> Result<F, Status> {
        let address = self.address();
        if address == MISSING {
            return Err(self.library.missing);
        }
        // SAFETY: `address` is not null and not MISSING, so the driver's library exports `name` there, and stays loaded. By the
        // condition of `new`, `F` is the type of that function, and a function pointer has the size of a data pointer.
        Ok(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// The common part of all functions, of any type.
pub(crate) trait Named: Sync {
    /// The function's address; [`MISSING`] if the library does not have it.
    fn address(&self) -> *mut c_void;
}

impl<F: Copy + Sync> Named for Function<F> {
    #[inline]
    fn address(&self) -> *mut c_void {
        let known = self.address.load(Acquire);
        if known.is_null() { resolve(self.library, self.name, &self.address) } else { known }
    }
}

#[cold]
fn resolve(library: &Library, name: &CStr, address: &AtomicPtr<c_void>) -> *mut c_void {
    let found = library.find(name);
    let found = if found.is_null() { MISSING } else { found };
    address.store(found, Release);
    found
}

/// An identifier as a C string. Evaluated by the compiler, so nothing of it can panic at run time.
macro_rules! c_name {
    ($name:ident) => {
        const {
            match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            }
        }
    };
}

/// Declares functions of the driver: `driver_functions! { LIBRARY: name(argument types); … }`. The types must be those that the
/// vendor's header gives for that name: every call of these functions relies on it.
macro_rules! driver_functions {
    ($library:ident: $( $name:ident($($type:ty),* $(,)?); )*) => {$(
        pub(super) static $name: $crate::function::Function<unsafe extern "C" fn($($type),*) -> Status> =
            // SAFETY: the type is written down from the vendor's header, as the macro asks for.
            unsafe { $crate::function::Function::new(&$crate::function::$library, $crate::function::c_name!($name)) };
    )*};
}

pub(crate) use {c_name, driver_functions};
