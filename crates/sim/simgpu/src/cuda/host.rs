//! Page-locked host memory: ordinary host memory, never counted against a device.

use std::collections::BTreeMap;
use std::ffi::c_void;

use super::session::session;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;

const PAGE_BYTES: usize = 4096;

/// Host memory the driver knows, by address.
pub(super) struct HostMemory(BTreeMap<u64, Block>);

struct Block {
    size_bytes: u64,
    flags: u32,
    /// Allocated by us, not merely registered.
    ours: bool,
}

impl HostMemory {
    pub(super) fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// Size of the block that contains `address`.
    pub(super) fn size_of(&self, address: u64) -> Option<u64> {
        self.block(address).map(|b| b.size_bytes)
    }

    fn block(&self, address: u64) -> Option<&Block> {
        let (start, block) = self.0.range(..=address).next_back()?;
        (address - start < block.size_bytes).then_some(block)
    }
}

fn allocate(out: Out<*mut c_void>, size_bytes: usize, flags: u32) -> CuResult {
    let mut inner = session()?.lock();
    inner.current_device()?;
    inner.forbid_unsafe()?;
    if size_bytes == 0 || out.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let mut pointer = std::ptr::null_mut();
    // SAFETY: the alignment is a power of two and a multiple of a pointer's size; `pointer` is a live local.
    if unsafe { libc::posix_memalign(&raw mut pointer, PAGE_BYTES, size_bytes) } != 0 {
        return Err(CuError::OUT_OF_MEMORY);
    }
    inner.host.0.insert(pointer as u64, Block { size_bytes: size_bytes as u64, flags, ours: true });
    Ok(out.set(pointer)?)
}

fn remove(pointer: *mut c_void, ours: bool) -> CuResult {
    let mut inner = session()?.lock();
    match inner.host.0.remove(&(pointer as u64)) {
        Some(block) if block.ours == ours => Ok(()),
        Some(block) => {
            inner.host.0.insert(pointer as u64, block);
            Err(CuError::INVALID_VALUE)
        }
        None => Err(CuError::INVALID_VALUE),
    }
}

driver_api! {
    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, size_bytes: usize) { allocate(pointer, size_bytes, 0) }

    fn cuMemHostAlloc(pointer: Out<*mut c_void>, size_bytes: usize, flags: u32) {
        allocate(pointer, size_bytes, flags)
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        session()?.lock().forbid_unsafe()?;
        remove(pointer, true)?;
        // SAFETY: `remove` has found and taken out a block that `allocate` got from `posix_memalign`, so it is freed once; by the
        // contract of `cuMemFreeHost` the program does not use it any more.
        unsafe { libc::free(pointer) };
        Ok(())
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, size_bytes: usize, flags: u32) {
        let mut inner = session()?.lock();
        inner.current_device()?;
        if pointer.is_null() || size_bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        if inner.host.size_of(pointer as u64).is_some() {
            return Err(CuError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        inner.host.0.insert(pointer as u64, Block { size_bytes: size_bytes as u64, flags, ours: false });
        Ok(())
    }

    fn cuMemHostUnregister(pointer: *mut c_void) { remove(pointer, false) }

    fn cuMemHostGetDevicePointer_v2(address: Out<u64>, pointer: *mut c_void, _flags: u32) {
        session()?.lock().host.block(pointer as u64).ok_or(CuError::INVALID_VALUE)?;
        Ok(address.set(pointer as u64)?)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        let inner = session()?.lock();
        let block = inner.host.block(pointer as u64).ok_or(CuError::INVALID_VALUE)?;
        Ok(flags.set(block.flags)?)
    }
}
