//! Devices, versions, and access to the driver's own functions.

use std::ffi::{c_char, c_void};

use super::driver::{DriverFunction, check, driver, proc_address};
use super::{CudaError, CudaResult, VERSION, context, forwards, runtime_api};
use crate::ffi::Out;

/// Flags of `cudaGetDeviceFlags` that say that a primary context maps host memory; it always does.
const MAP_HOST: u32 = 8;

fn count() -> CudaResult<i32> {
    context::init()?;
    let mut count = 0;
    driver!(cuDeviceGetCount(&raw mut count => *mut i32))?;
    Ok(count)
}

pub(super) fn known(device: i32) -> CudaResult {
    if (0..count()?).contains(&device) { Ok(()) } else { Err(CudaError::INVALID_DEVICE) }
}

/// One attribute of a device.
pub(super) fn attribute(number: i32, device: i32) -> CudaResult<i32> {
    let mut value = 0;
    driver!(cuDeviceGetAttribute(&raw mut value => *mut i32, number => i32, device => i32))?;
    Ok(value)
}

/// A peer's primary context, as access to a peer is granted context by context.
fn peer_context(device: i32) -> CudaResult<usize> {
    let mine = context::device()?;
    context::enter_primary(device)?;
    let peer = context::current();
    context::enter_primary(mine)?;
    peer
}

runtime_api! {
    fn cudaGetDeviceCount(out: Out<i32>) {
        out.set_if_asked(0);
        Ok(out.set(count()?)?)
    }
    fn cudaGetDevice(out: Out<i32>) { Ok(out.set(context::device()?)?) }
    fn cudaSetDevice(device: i32) { known(device).and_then(|()| context::enter_primary(device)) }
    fn cudaInitDevice(device: i32, _device_flags: u32, _flags: u32) {
        known(device).and_then(|()| context::enter_primary(device))
    }
    fn cudaSetDeviceFlags(_flags: u32) { context::init() }
    fn cudaGetDeviceFlags(flags: Out<u32>) {
        context::init()?;
        Ok(flags.set(MAP_HOST)?)
    }
    fn cudaDeviceReset() { context::reset() }
    fn cudaDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
        known(device)?;
        Ok(value.set(attribute(number, device)?)?)
    }
    fn cudaDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32) {
        known(device)?;
        driver!(cuDeviceGetPCIBusId(text => *mut c_char, length => i32, device => i32))
    }
    fn cudaDeviceGetByPCIBusId(device: *mut i32, text: *const c_char) {
        context::init()?;
        driver!(cuDeviceGetByPCIBusId(device => *mut i32, text => *const c_char))
    }
    fn cudaDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) {
        context::init()?;
        driver!(cuDeviceCanAccessPeer(can => *mut i32, device => i32, peer => i32))
    }
    fn cudaDeviceGetP2PAttribute(value: *mut i32, number: i32, device: i32, peer: i32) {
        context::init()?;
        driver!(cuDeviceGetP2PAttribute(value => *mut i32, number => i32, device => i32, peer => i32))
    }
    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        driver!(cuCtxEnablePeerAccess(peer_context(peer)? => usize, flags => u32))
    }
    fn cudaDeviceDisablePeerAccess(peer: i32) { driver!(cuCtxDisablePeerAccess(peer_context(peer)? => usize)) }

    /// 0 where there is no driver.
    fn cudaDriverGetVersion(version: Out<i32>) {
        let mut found = 0;
        let _ = driver!(cuDriverGetVersion(&raw mut found => *mut i32));
        Ok(version.set(found)?)
    }
    fn cudaRuntimeGetVersion(version: Out<i32>) { Ok(version.set(VERSION)?) }

    fn cudaGetDriverEntryPoint(symbol: *const c_char, function: Out<*mut c_void>, flags: u64, status: Out<i32>) {
        entry_point(symbol, function, VERSION, flags, status)
    }
    fn cudaGetDriverEntryPointByVersion(
        symbol: *const c_char, function: Out<*mut c_void>, version: u32, flags: u64, status: Out<i32>,
    ) {
        entry_point(symbol, function, version as i32, flags, status)
    }
    fn cudaGetExportTable(table: *mut *const c_void, id: *const c_void) {
        static ENTRY: DriverFunction = DriverFunction::new("cuGetExportTable\0");
        ENTRY.get()?;
        driver!(cuGetExportTable(table => *mut *const c_void, id => *const c_void))
    }
}

/// The runtime's answers (found, not found, too new) have the driver's numbers.
fn entry_point(
    symbol: *const c_char,
    function: Out<*mut c_void>,
    version: i32,
    flags: u64,
    status: Out<i32>,
) -> CudaResult {
    let ask = proc_address()?;
    let (mut found, mut answer) = (std::ptr::null_mut(), 0);
    // SAFETY: `ask` is `cuGetProcAddress_v2`; `symbol` is the program's, by the C contract a NUL-terminated string (or null, which the
    // driver refuses); the other pointers are to live locals.
    check(unsafe { ask(symbol, &raw mut found, version, flags, &raw mut answer) })?;
    function.set(found)?;
    status.set_if_asked(answer);
    if status.is_null() && found.is_null() { Err(CudaError::SYMBOL_NOT_FOUND) } else { Ok(()) }
}

forwards! {
    fn cudaDeviceSynchronize => cuCtxSynchronize();
    fn cudaDeviceGetLimit => cuCtxGetLimit(value: *mut usize, limit: i32);
    fn cudaDeviceSetLimit => cuCtxSetLimit(limit: i32, value: usize);
    fn cudaDeviceGetCacheConfig => cuCtxGetCacheConfig(config: *mut i32);
    fn cudaDeviceSetCacheConfig => cuCtxSetCacheConfig(config: i32);
    fn cudaDeviceGetStreamPriorityRange => cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32);
}
