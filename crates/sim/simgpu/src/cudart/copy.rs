//! Copies and fills. The driver itself determines the direction of a copy, so the kind that a program names is ignored.

use std::ffi::c_void;

use super::driver::driver;
use super::{CudaResult, VERSION, context, kernel, runtime_api};

/// `CUmemLocationType`.
const DEVICE: u64 = 1;
const HOST: u64 = 2;

fn copy(to: u64, from: u64, size_bytes: usize) -> CudaResult {
    context::enter()?;
    driver!(cuMemcpy(to => u64, from => u64, size_bytes => usize))
}

fn copy_async(to: u64, from: u64, size_bytes: usize, stream: usize) -> CudaResult {
    context::enter()?;
    driver!(cuMemcpyAsync(to => u64, from => u64, size_bytes => usize, stream => usize))
}

/// Row by row.
fn copy_rows(to: (u64, usize), from: (u64, usize), width: usize, height: usize, stream: usize) -> CudaResult {
    let at = |(start, pitch): (u64, usize), row: usize| start.wrapping_add((pitch * row) as u64);
    (0..height).try_for_each(|row| copy_async(at(to, row), at(from, row), width, stream))
}

runtime_api! {
    fn cudaMemcpy(to: u64, from: u64, size_bytes: usize, _kind: i32) { copy(to, from, size_bytes) }
    fn cudaMemcpyAsync(to: u64, from: u64, size_bytes: usize, _kind: i32, stream: usize) {
        copy_async(to, from, size_bytes, stream)
    }
    fn cudaMemcpyPeer(to: u64, _to_device: i32, from: u64, _from_device: i32, size_bytes: usize) {
        copy(to, from, size_bytes)
    }
    fn cudaMemcpyPeerAsync(to: u64, _to_device: i32, from: u64, _from_device: i32, size_bytes: usize, stream: usize) {
        copy_async(to, from, size_bytes, stream)
    }
    fn cudaMemcpy2D(to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, _kind: i32) {
        copy_rows((to, to_pitch), (from, from_pitch), width, height, 0)
    }
    fn cudaMemcpy2DAsync(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, _kind: i32, stream: usize,
    ) {
        copy_rows((to, to_pitch), (from, from_pitch), width, height, stream)
    }
    fn cudaMemcpyToSymbol(symbol: *const c_void, from: u64, size_bytes: usize, offset: usize, _kind: i32) {
        copy(kernel::symbol(symbol)?.0 + offset as u64, from, size_bytes)
    }
    fn cudaMemcpyFromSymbol(to: u64, symbol: *const c_void, size_bytes: usize, offset: usize, _kind: i32) {
        copy(to, kernel::symbol(symbol)?.0 + offset as u64, size_bytes)
    }
    fn cudaMemset(at: u64, value: i32, size_bytes: usize) {
        context::enter()?;
        driver!(cuMemsetD8(at => u64, value as u8 => u8, size_bytes => usize))
    }
    fn cudaMemsetAsync(at: u64, value: i32, size_bytes: usize, stream: usize) {
        context::enter()?;
        driver!(cuMemsetD8Async(at => u64, value as u8 => u8, size_bytes => usize, stream => usize))
    }
    /// The destination is a device, or from CUDA 13 on a location: what it is and then its number, an `int` each.
    fn cudaMemPrefetchAsync(at: u64, size_bytes: usize, to: u64) {
        context::enter()?;
        let to = match to as u32 {
            _ if VERSION >= 13000 => to,
            u32::MAX => HOST,
            device => DEVICE | u64::from(device) << 32,
        };
        driver!(cuMemPrefetchAsync(at => u64, size_bytes => usize, to => u64, 0 => u32, 0 => usize))
    }
    fn cudaMemAdvise(_at: u64, _size_bytes: usize) { context::enter() }
}
