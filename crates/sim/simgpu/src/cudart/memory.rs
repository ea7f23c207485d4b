//! Linear memory, host memory, and memory of other processes.

use std::ffi::c_void;

use super::driver::driver;
use super::{CudaResult, context, forwards, runtime_api};
use crate::ffi::Out;

const ATTACH_GLOBAL: u32 = 1;
/// The width of an element that a pitch is made for; any of the driver's three would do.
const ELEMENT_BYTES: u32 = 4;

/// `cudaIpcMemHandle_t`, `cudaIpcEventHandle_t`: passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle([u64; 8]);

/// Nothing is allocated for 0 bytes; that is no error.
fn allocate(out: Out<u64>, take: impl FnOnce(*mut u64) -> CudaResult, size_bytes: usize) -> CudaResult {
    context::enter()?;
    let mut address = 0;
    if size_bytes > 0 {
        take(&raw mut address)?;
    }
    Ok(out.set(address)?)
}

/// Freeing nothing makes a context all the same, which is what programs call it for.
fn free(address: u64, give: impl FnOnce(u64) -> CudaResult) -> CudaResult {
    context::enter()?;
    if address == 0 { Ok(()) } else { give(address) }
}

fn host(out: Out<u64>, size_bytes: usize, flags: u32) -> CudaResult {
    let take = |at| driver!(cuMemHostAlloc(at => *mut u64, size_bytes => usize, flags => u32));
    allocate(out, take, size_bytes)
}

runtime_api! {
    fn cudaMalloc(out: Out<u64>, size_bytes: usize) {
        allocate(out, |at| driver!(cuMemAlloc(at => *mut u64, size_bytes => usize)), size_bytes)
    }
    fn cudaMallocManaged(out: Out<u64>, size_bytes: usize, flags: u32) {
        let flags = if flags == 0 { ATTACH_GLOBAL } else { flags };
        let take = |at| driver!(cuMemAllocManaged(at => *mut u64, size_bytes => usize, flags => u32));
        allocate(out, take, size_bytes)
    }
    fn cudaMallocPitch(out: Out<u64>, pitch: *mut usize, width: usize, height: usize) {
        let take = |at| driver!(cuMemAllocPitch(
            at => *mut u64, pitch => *mut usize, width => usize, height => usize, ELEMENT_BYTES => u32
        ));
        allocate(out, take, width.saturating_mul(height))
    }
    fn cudaFree(address: u64) { free(address, |at| driver!(cuMemFree(at => u64))) }
    fn cudaMallocAsync(out: Out<u64>, size_bytes: usize, stream: usize) {
        let take = |at| driver!(cuMemAllocAsync(at => *mut u64, size_bytes => usize, stream => usize));
        allocate(out, take, size_bytes)
    }
    fn cudaMallocFromPoolAsync(out: Out<u64>, size_bytes: usize, pool: usize, stream: usize) {
        let take = |at| driver!(cuMemAllocFromPoolAsync(
            at => *mut u64, size_bytes => usize, pool => usize, stream => usize
        ));
        allocate(out, take, size_bytes)
    }
    fn cudaFreeAsync(address: u64, stream: usize) {
        free(address, |at| driver!(cuMemFreeAsync(at => u64, stream => usize)))
    }

    fn cudaMallocHost(out: Out<u64>, size_bytes: usize) { host(out, size_bytes, 0) }
    fn cudaHostAlloc(out: Out<u64>, size_bytes: usize, flags: u32) { host(out, size_bytes, flags) }
    fn cudaFreeHost(address: u64) { free(address, |at| driver!(cuMemFreeHost(at => u64))) }
}

forwards! {
    fn cudaMemGetInfo => cuMemGetInfo(free: *mut usize, total: *mut usize);
    fn cudaHostRegister => cuMemHostRegister(pointer: *mut c_void, size_bytes: usize, flags: u32);
    fn cudaHostUnregister => cuMemHostUnregister(pointer: *mut c_void);
    fn cudaHostGetDevicePointer => cuMemHostGetDevicePointer(out: *mut u64, pointer: *mut c_void, flags: u32);
    fn cudaHostGetFlags => cuMemHostGetFlags(flags: *mut u32, pointer: *mut c_void);

    fn cudaIpcGetMemHandle => cuIpcGetMemHandle(handle: *mut IpcHandle, address: u64);
    fn cudaIpcOpenMemHandle => cuIpcOpenMemHandle(address: *mut u64, handle: IpcHandle, flags: u32);
    fn cudaIpcCloseMemHandle => cuIpcCloseMemHandle(address: u64);
    fn cudaIpcGetEventHandle => cuIpcGetEventHandle(handle: *mut IpcHandle, event: usize);
    fn cudaIpcOpenEventHandle => cuIpcOpenEventHandle(event: *mut usize, handle: IpcHandle);
}
