//! Memory pools.

use std::ffi::c_void;

use super::driver::driver;
use super::{context, forwards, runtime_api};

forwards! {
    fn cudaMemPoolCreate => cuMemPoolCreate(pool: *mut usize, properties: *const c_void);
    fn cudaMemPoolDestroy => cuMemPoolDestroy(pool: usize);
    fn cudaMemPoolTrimTo => cuMemPoolTrimTo(pool: usize, keep_bytes: usize);
    fn cudaMemPoolGetAttribute => cuMemPoolGetAttribute(pool: usize, attribute: i32, value: *mut c_void);
    fn cudaMemPoolSetAttribute => cuMemPoolSetAttribute(pool: usize, attribute: i32, value: *mut c_void);
    fn cudaMemPoolSetAccess => cuMemPoolSetAccess(pool: usize, descriptions: *const c_void, count: usize);
    fn cudaMemPoolGetAccess => cuMemPoolGetAccess(flags: *mut i32, pool: usize, location: *const c_void);
    fn cudaMemPoolExportToShareableHandle =>
        cuMemPoolExportToShareableHandle(handle: *mut c_void, pool: usize, kind: i32, flags: u64);
    fn cudaMemPoolImportFromShareableHandle =>
        cuMemPoolImportFromShareableHandle(pool: *mut usize, handle: *mut c_void, kind: i32, flags: u64);
}

runtime_api! {
    fn cudaDeviceGetDefaultMemPool(pool: *mut usize, device: i32) {
        context::init()?;
        driver!(cuDeviceGetDefaultMemPool(pool => *mut usize, device => i32))
    }
    fn cudaDeviceGetMemPool(pool: *mut usize, device: i32) {
        context::init()?;
        driver!(cuDeviceGetMemPool(pool => *mut usize, device => i32))
    }
    fn cudaDeviceSetMemPool(device: i32, pool: usize) {
        context::init()?;
        driver!(cuDeviceSetMemPool(device => i32, pool => usize))
    }
    fn cudaDeviceGetGraphMemAttribute(device: i32, attribute: i32, value: *mut c_void) {
        context::init()?;
        driver!(cuDeviceGetGraphMemAttribute(device => i32, attribute => i32, value => *mut c_void))
    }
    fn cudaDeviceSetGraphMemAttribute(device: i32, attribute: i32, value: *mut c_void) {
        context::init()?;
        driver!(cuDeviceSetGraphMemAttribute(device => i32, attribute => i32, value => *mut c_void))
    }
    fn cudaDeviceGraphMemTrim(device: i32) {
        context::init()?;
        driver!(cuDeviceGraphMemTrim(device => i32))
    }
}
