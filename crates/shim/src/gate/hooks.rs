//! The functions that only this build hooks.

use core::ffi::{c_uint, c_void};

use super::launch::{self, Configuration};
use crate::function::Status;
use crate::hooks::hooks;

type Handle = *mut c_void;

hooks! { CUDA, "gate":
    Launches cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::kernel::<false>;
    Launches cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::kernel::<true>;
    Launches cuLaunchKernelEx(configuration: *const Configuration, function: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::extended::<false>;
    Launches cuLaunchKernelEx_ptsz(configuration: *const Configuration, function: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::extended::<true>;
    Launches cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle) => launch::cooperative::<false>;
    Launches cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle) => launch::cooperative::<true>;
}
