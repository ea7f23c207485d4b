//! NVML: what a slice sees of the GPUs.

mod guard;
mod memory;

use core::ffi::{c_char, c_uint, c_void};

use crate::function::Status;
use crate::hooks::hooks;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const NOT_SUPPORTED: Status = 3;

/// `nvmlDevice_t`.
type Device = *mut c_void;

hooks! { NVML, "nvml":
    Reports nvmlDeviceGetMemoryInfo(device: Device, info: *mut memory::Info) => memory::info;
    Reports nvmlDeviceGetMemoryInfo_v2(device: Device, info: *mut memory::InfoV2) => memory::info_v2;
}

/// Functions of NVML that the hooks ask themselves.
mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::*;
    use crate::function::{Function, NVML};

    pub(super) static nvmlDeviceGetUUID: Function<
        unsafe extern "C" fn(Device, *mut c_char, c_uint) -> Status,
    > = Function::new(&NVML, c"nvmlDeviceGetUUID");
}
