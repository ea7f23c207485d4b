//! The functions that only the build with the gate hooks.

use core::ffi::{c_uint, c_void};

use super::fast;
use super::launch::{self, Configuration};
use crate::function::Status;
use crate::hooks::hooks;

type Handle = *mut c_void;

hooks! { CUDA, "gate":
    Launches cuLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::kernel::<false>, behind fast::kernel;
    Launches cuLaunchKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::kernel::<true>;
    Launches cuLaunchKernelEx(configuration: *const Configuration, function: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::extended::<false>, behind fast::extended;
    Launches cuLaunchKernelEx_ptsz(configuration: *const Configuration, function: Handle, parameters: *mut Handle, extra: *mut Handle) => launch::extended::<true>;
    Launches cuLaunchCooperativeKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle) => launch::cooperative::<false>;
    Launches cuLaunchCooperativeKernel_ptsz(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint, stream: Handle, parameters: *mut Handle) => launch::cooperative::<true>;
}
