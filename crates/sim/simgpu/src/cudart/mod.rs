//! A stand-in for the CUDA runtime (`libcudart.so.12`, `libcudart.so.13`) on simulated GPUs.
//!
//! NVIDIA's own runtime asks the driver to prove that it is NVIDIA's, which a simulated driver does not try to. This library has the
//! runtime's exported names instead, each made of functions of the driver API that are looked up as the runtime looks them
//! up, through `cuGetProcAddress`. It shares only this crate with the simulated driver. So cantle's filter, or anything else
//! in front of the driver, is between the two.
//!
//! Names, signatures and error codes are those of NVIDIA's runtime API reference. It has the functions that frameworks
//! import, not all of the runtime. Kernels are launched and copies are made by the driver, so on simulated GPUs they do
//! nothing.

mod array;
mod context;
mod copy;
mod device;
mod driver;
mod errors;
mod event;
mod graph;
mod kernel;
mod memory;
mod pointer;
mod pool;
mod properties;
mod stream;

/// The runtime's version: the toolkit whose programs load a library of this name.
const VERSION: i32 = if cfg!(feature = "cudart12") { 12090 } else { 13020 };

/// An unsuccessful `cudaError_t`. The driver's codes have the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CudaError(i32);

impl CudaError {
    const INVALID_VALUE: Self = Self(1);
    const INSUFFICIENT_DRIVER: Self = Self(35);
    const INVALID_DEVICE_FUNCTION: Self = Self(98);
    const INVALID_DEVICE: Self = Self(101);
    const SYMBOL_NOT_FOUND: Self = Self(500);
}

impl From<crate::ffi::Null> for CudaError {
    fn from(_: crate::ffi::Null) -> Self {
        Self::INVALID_VALUE
    }
}

type CudaResult<T = ()> = Result<T, CudaError>;

/// Declares exported functions of the runtime. Each body yields a `CudaResult`; a failure becomes the thread's last error.
macro_rules! runtime_api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        #[allow(clippy::too_many_arguments, reason = "the signature is CUDA's")]
        extern "C" fn $name($($arg: $ty),*) -> i32 {
            #[allow(clippy::redundant_closure_call, reason = "a place for `?`")]
            let run = || -> $crate::cudart::CudaResult { $body };
            $crate::cudart::errors::finish(run())
        }
    )*};
}
use runtime_api;

/// Declares exported functions that do what one function of the driver does, in the thread's context, with the same arguments.
macro_rules! forwards {
    ($($(#[$meta:meta])* fn $name:ident => $driver:ident($($arg:ident : $ty:ty),* $(,)?);)*) => {
        $crate::cudart::runtime_api! {$(
            $(#[$meta])*
            fn $name($($arg: $ty),*) {
                $crate::cudart::context::enter()?;
                $crate::cudart::driver::driver!($driver($($arg => $ty),*))
            }
        )*}
    };
}
use forwards;
