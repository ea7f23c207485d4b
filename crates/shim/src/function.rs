//! Functions of the real driver.

use core::ffi::{CStr, c_int, c_void};
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

/// `CUresult` or `nvmlReturn_t`.
pub(crate) type Status = c_int;

/// One of the driver's two libraries.
pub(crate) struct Library {
    /// Where the real one is, absolute: in a task's mount namespace the usual names lead to us.
    #[cfg(not(feature = "preload"))]
    pub(crate) path: &'static CStr,
    /// What the real one is called, where nothing is mounted over it.
    #[cfg(feature = "preload")]
    pub(crate) soname: &'static CStr,
    /// What to answer for a function that this driver does not have.
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

    /// It is loaded already: `DT_NEEDED` names it. `dlopen` looks in the namespace of its caller, that is ours.
    #[cfg(not(feature = "preload"))]
    fn open(&self) -> *mut c_void {
        // SAFETY: `path` is a C string.
        unsafe { libc::dlopen(self.path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) }
    }

    /// Whoever calls a hook has loaded it, or would have, by this name.
    #[cfg(feature = "preload")]
    fn open(&self) -> *mut c_void {
        // SAFETY: `soname` is a C string.
        unsafe { libc::dlopen(self.soname.as_ptr(), libc::RTLD_NOW) }
    }

    fn find(&self, name: &CStr) -> *mut c_void {
        let handle = self.handle();
        if handle.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: a handle that we keep open, and a C string.
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
    pub(crate) const fn new(library: &'static Library, name: &'static CStr) -> Self {
        Self { library, name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// The function, or what to answer in its place.
    #[inline]
    pub(crate) fn get(&self) -> Result<F, Status> {
        let address = self.address();
        if address == MISSING {
            return Err(self.library.missing);
        }
        // SAFETY: declared with the type that the vendor's header gives for this name; both are pointers.
        Ok(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// What all functions have in common, whatever their type.
pub(crate) trait Named: Sync {
    /// Where it is; [`MISSING`] if nowhere.
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

/// Declares functions of the driver: `driver_functions! { LIBRARY: name(argument types); … }`.
macro_rules! driver_functions {
    ($library:ident: $( $name:ident($($type:ty),* $(,)?); )*) => {$(
        pub(super) static $name: $crate::function::Function<unsafe extern "C" fn($($type),*) -> Status> =
            $crate::function::Function::new(&$crate::function::$library, unsafe {
                // SAFETY: `concat!` ends it with its only NUL.
                core::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes())
            });
    )*};
}

pub(crate) use driver_functions;
