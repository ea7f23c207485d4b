//! A simulated NVIDIA driver.
//!
//! A simulated machine is a directory with one file, `state`, that every process maps: GPUs, their memory, and which process
//! holds how much of it. Two driver libraries are built from this crate over that state: `libcuda.so.1` (feature `cuda`) and
//! `libnvidia-ml.so.1` (feature `nvml`). A third one, a stand-in for NVIDIA's CUDA runtime (features `cudart` for `libcudart.so.13`,
//! `cudart12` for `libcudart.so.12`), uses only the driver's exported functions. Memory is counted, not provided: device
//! addresses cannot be dereferenced, copies and kernels succeed without doing anything.
//!
//! The memory that counts as consumed (the same rule the shim charges by):
//! - an allocation above 1 MiB takes its size rounded up to 2 MiB, the *granule*;
//! - smaller ones of one context share slabs of 2 MiB: each rounds up to 512 B, and none lies in two slabs;
//! - a process's first context on a device takes a constant of the model.

#[cfg(any(feature = "cuda", feature = "nvml", test))]
#[cfg_attr(not(test), allow(dead_code, reason = "each library uses its part"))]
mod config;
#[cfg(any(feature = "cuda", feature = "nvml", test))]
mod control;
#[cfg(any(feature = "cuda", test))]
mod cuda;
#[cfg(any(feature = "cudart", test))]
mod cudart;
#[cfg(any(feature = "cuda", feature = "nvml", feature = "cudart", test))]
#[cfg_attr(not(test), allow(dead_code, reason = "each library uses its part"))]
mod ffi;
#[cfg(any(feature = "cuda", feature = "nvml", test))]
mod hardware;
pub mod identity;
pub mod mig;
pub mod models;
#[cfg(any(feature = "nvml", test))]
mod nvml;
mod opened;
#[cfg(any(feature = "cuda", feature = "nvml", test))]
mod opening;
#[cfg(any(feature = "cuda", feature = "cudart", test))]
mod private_table;
mod signals;
pub mod spec;
pub mod state;
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "each library uses its part"))]
mod time;
mod truth;
pub mod version;
pub mod wiring;

pub use truth::truth_json;

/// The unit in which device memory is taken and given back.
pub const GRANULE_BYTES: u64 = 2 << 20;

/// Whole granules that hold `bytes`.
pub const fn granules(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULE_BYTES)
}
