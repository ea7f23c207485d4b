//! The driver API: which functions a slice changes, and how.

mod charge;
mod context;
mod lookup;
mod memory;
mod report;

use core::ffi::{c_char, c_int, c_uint, c_void};

use crate::function::Status;
use crate::hooks::hooks;

pub(crate) const SUCCESS: Status = 0;
pub(crate) const OUT_OF_MEMORY: Status = 2;
pub(crate) const NOT_SUPPORTED: Status = 801;

/// `CUdeviceptr`.
type Address = u64;
/// `CUdeviceptr` of the functions without `_v2`.
type ShortAddress = c_uint;
/// `CUdevice`: an ordinal.
type Device = c_int;
/// `CUcontext`.
type Context = *mut c_void;

hooks! { CUDA, "cuda":
    Allocates cuMemAlloc_v2(address: *mut Address, bytes: usize) => memory::alloc;
    Allocates cuMemAlloc(address: *mut ShortAddress, bytes: c_uint) => memory::alloc;
    Allocates cuMemAllocPitch_v2(address: *mut Address, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::alloc_pitch;
    Allocates cuMemAllocPitch(address: *mut ShortAddress, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint) => memory::alloc_pitch;
    Allocates cuMemAllocManaged(address: *mut Address, bytes: usize, flags: c_uint) => memory::alloc_managed;
    Frees cuMemFree_v2(address: Address) => memory::free;
    Frees cuMemFree(address: ShortAddress) => memory::free;

    Allocates cuCtxCreate(context: *mut Context, flags: c_uint, device: Device) => context::create;
    Allocates cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device) => context::create;
    Allocates cuCtxCreate_v3(context: *mut Context, affinity: *mut c_void, count: c_int, flags: c_uint, device: Device) => context::create_v3;
    Allocates cuCtxCreate_v4(context: *mut Context, parameters: *mut c_void, flags: c_uint, device: Device) => context::create_v4;
    Frees cuCtxDestroy(context: Context) => context::destroy;
    Frees cuCtxDestroy_v2(context: Context) => context::destroy;
    Frees cuCtxDetach(context: Context) => context::destroy;
    Allocates cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) => context::retain_primary;
    Frees cuDevicePrimaryCtxRelease(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxRelease_v2(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxReset(device: Device) => context::end_primary;
    Frees cuDevicePrimaryCtxReset_v2(device: Device) => context::end_primary;

    Reports cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => report::memory_info;
    Reports cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) => report::memory_info;
    Reports cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) => report::total_memory;
    Reports cuDeviceTotalMem(bytes: *mut c_uint, device: Device) => report::total_memory;

    Resolves cuGetProcAddress(name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64) => lookup::address;
    Resolves cuGetProcAddress_v2(name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int) => lookup::address_v2;
}

/// Functions of the driver that the hooks ask themselves.
mod driver {
    #![allow(non_upper_case_globals, reason = "the names are the driver's")]
    use super::*;
    use crate::function::{CUDA, Function};

    pub(super) static cuCtxGetDevice: Function<unsafe extern "C" fn(*mut Device) -> Status> =
        Function::new(&CUDA, c"cuCtxGetDevice");
    pub(super) static cuCtxGetCurrent: Function<unsafe extern "C" fn(*mut Context) -> Status> =
        Function::new(&CUDA, c"cuCtxGetCurrent");
    pub(super) static cuDeviceGetUuid: Function<unsafe extern "C" fn(*mut [u8; 16], Device) -> Status> =
        Function::new(&CUDA, c"cuDeviceGetUuid");
    pub(super) static cuDeviceGetUuid_v2: Function<unsafe extern "C" fn(*mut [u8; 16], Device) -> Status> =
        Function::new(&CUDA, c"cuDeviceGetUuid_v2");
    pub(super) static cuDevicePrimaryCtxGetState: Function<
        unsafe extern "C" fn(Device, *mut c_uint, *mut c_int) -> Status,
    > = Function::new(&CUDA, c"cuDevicePrimaryCtxGetState");
}
