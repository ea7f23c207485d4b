//! The simulated `libnvidia-ml.so.1`.
//!
//! Names, structures and error codes are those of NVIDIA's NVML reference. Memory and processes are the machine's state.
//! Figures that a simulation cannot know are invented, and marked "simulated" in the code: a GPU on which a process has a
//! context is fully busy (unless its kernels take time, see `crate::time`), at 60 % of its power limit and 62 °C; an idle
//! one at 0 %, 15 % and 35 °C. Everything else that the real library exports answers `NVML_ERROR_NOT_SUPPORTED`.

mod device;
mod events;
mod export_table;
mod faults;
mod handle;
mod limits;
mod links;
mod memory;
mod mig;
mod mig_calls;
mod mig_compute;
mod mig_device;
mod process;
mod remembered;
mod sensors;
mod session;
mod settings;
mod system;
mod utilization;
mod versions;

use crate::ffi::Null;
use crate::mig::MigRefusal;

/// An unsuccessful `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NvmlError(pub(crate) i32);

impl NvmlError {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const FUNCTION_NOT_FOUND: Self = Self(13);
    pub(crate) const OPERATING_SYSTEM: Self = Self(17);
    pub(crate) const IN_USE: Self = Self(19);
    pub(crate) const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
}

impl From<MigRefusal> for NvmlError {
    fn from(error: MigRefusal) -> Self {
        match error {
            MigRefusal::NotSupported => Self::NOT_SUPPORTED,
            MigRefusal::InvalidArgument => Self::INVALID_ARGUMENT,
            MigRefusal::InsufficientResources => Self::INSUFFICIENT_RESOURCES,
            MigRefusal::InUse => Self::IN_USE,
        }
    }
}

impl From<Null> for NvmlError {
    fn from(_: Null) -> Self {
        Self::INVALID_ARGUMENT
    }
}

pub(crate) type NvmlResult<T = ()> = Result<T, NvmlError>;

/// Turns an `NvmlResult` into what C sees.
pub(crate) fn code(result: NvmlResult) -> i32 {
    result.map_or_else(|error| error.0, |()| 0)
}

/// The version word that a structure of NVML's versioned kind carries: its size and its version.
pub(crate) const fn version_word<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | version << 24
}

/// Declares exported NVML functions. Each body yields an `NvmlResult`.
macro_rules! nvml_api {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$meta])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the name is NVML's")]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> i32 {
            $crate::nvml::faults::enter(stringify!($name));
            let _mig = $crate::nvml::mig_calls::begin(stringify!($name));
            let run = || -> $crate::nvml::NvmlResult { $body };
            $crate::nvml::code(run())
        }
    )*};
}
pub(crate) use nvml_api;

include!(concat!(env!("OUT_DIR"), "/nvml_generated.rs"));
