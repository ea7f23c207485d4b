//! The simulated `libcuda.so.1`.
//!
//! Names, signatures and error codes are those of NVIDIA's driver API reference; only what the simulation adds or leaves
//! out is documented here. Everything else that the real library exports answers `CUDA_ERROR_NOT_SUPPORTED`.
//!
//! One lock per process guards its bookkeeping ([`session::Session`]); the machine's own lock is taken inside it, and only
//! when whole granules change hands.

mod account;
mod address_space;
mod array;
mod async_memory;
mod attributes;
mod capture;
mod checkpoint;
mod context;
mod context_state;
mod device;
mod effects;
mod errors;
mod event;
mod execution;
mod graph;
mod graph_api;
mod green;
mod host;
mod image;
mod ipc;
mod kernel_time;
mod managed;
mod memory;
mod module;
mod pointer;
mod pool;
mod proc_address;
mod session;
mod slab;
mod stream;
mod timeline;
mod transfer;
mod visible;
mod vmm;

use crate::ffi::Null;
use crate::state::ConsumeError;

/// An unsuccessful `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CuError(pub(crate) i32);

impl CuError {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const SYSTEM_DRIVER_MISMATCH: Self = Self(803);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const ILLEGAL_STATE: Self = Self(401);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const STREAM_CAPTURE_MERGE: Self = Self(902);
    pub(crate) const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    pub(crate) const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    pub(crate) const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    pub(crate) const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const CAPTURED_EVENT: Self = Self(907);
    pub(crate) const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);
}

impl From<Null> for CuError {
    fn from(_: Null) -> Self {
        Self::INVALID_VALUE
    }
}

impl From<ConsumeError> for CuError {
    fn from(error: ConsumeError) -> Self {
        match error {
            ConsumeError::OutOfMemory | ConsumeError::TooManyProcesses => Self::OUT_OF_MEMORY,
            ConsumeError::Lost => Self::CONTEXT_IS_DESTROYED,
        }
    }
}

pub(crate) type CuResult<T = ()> = Result<T, CuError>;

/// Turns a `CuResult` into what C sees.
pub(crate) fn code(result: CuResult) -> i32 {
    result.map_or_else(|error| error.0, |()| 0)
}

/// Declares exported driver functions. Each body yields a `CuResult`.
macro_rules! driver_api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is CUDA's")]
        #[allow(clippy::too_many_arguments, reason = "the signature is CUDA's")]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> i32 {
            #[allow(clippy::redundant_closure_call, reason = "a place for `?`")]
            let run = || -> $crate::cuda::CuResult { $body };
            $crate::cuda::code(run())
        }
    )*};
}
pub(crate) use driver_api;
