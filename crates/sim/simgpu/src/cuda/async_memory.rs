//! Stream-ordered allocation and the pools it comes from. Work on streams completes at once, so memory freed on a stream
//! is back in its pool when the call returns.

use std::ffi::c_void;

use super::address_space::Kind;
use super::session::{cuda_version, session};
use super::{CuError, CuResult, driver_api};
use crate::ffi::{In, Out};

/// A `CUmemoryPool`.
type Handle = u64;
const HANDLE_BASE: Handle = 0xC0DC_0000_0000;

const LOCATION_DEVICE: u32 = 1;
/// A part of a device's memory. The devices here have one such part, so it is all of their memory.
const LOCATION_DEVICE_LOCALITY_DOMAIN: u32 = 6;
const LOCALITY_DOMAINS_FROM: i32 = 13040;
const ALLOCATION_PINNED: u32 = 1;
const ALLOCATION_MANAGED: u32 = 2;
/// Also nodes of graphs that allocate managed memory, or memory of the host.
const MANAGED_POOLS_FROM: i32 = 13000;
const ACCESS_READ_WRITE: u32 = 3;

const REUSE_FIRST: i32 = 1;
const REUSE_LAST: i32 = 3;
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED_CURRENT: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED_CURRENT: i32 = 7;
const USED_HIGH: i32 = 8;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) kind: u32,
    pub(super) id: i32,
}

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PoolProps {
    allocation: u32,
    handle_types: u32,
    pub(super) location: Location,
}

impl PoolProps {
    /// Ordinary memory of a device.
    pub(super) const fn pinned_on(device: usize) -> Self {
        let location = Location { kind: LOCATION_DEVICE, id: device as i32 };
        Self { allocation: ALLOCATION_PINNED, handle_types: 0, location }
    }

    /// The device of a graph's allocation node; `None` on the host. Managed memory counts as that of a device.
    pub(super) fn graph_device(self) -> CuResult<Option<usize>> {
        let is_new = cuda_version() >= MANAGED_POOLS_FROM;
        match self.allocation {
            ALLOCATION_PINNED if is_new && self.location.is_host() => Ok(None),
            ALLOCATION_MANAGED if is_new && self.location.kind != LOCATION_DEVICE => Ok(Some(0)),
            ALLOCATION_PINNED => self.location.device().map(Some),
            ALLOCATION_MANAGED if is_new => self.location.device().map(Some),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

impl Location {
    /// Host memory: anywhere, on a NUMA node, or on that of the calling thread.
    pub(super) const fn is_host(self) -> bool {
        matches!(self.kind, 2..=4)
    }

    /// The device meant, if it is one.
    pub(super) fn device(self) -> CuResult<usize> {
        let device = match self.kind {
            LOCATION_DEVICE => self.id,
            LOCATION_DEVICE_LOCALITY_DOMAIN if cuda_version() >= LOCALITY_DOMAINS_FROM => {
                // The two first bytes of the union are the device and the domain.
                let [device, domain, ..] = self.id.to_ne_bytes();
                if domain != 0 {
                    return Err(CuError::INVALID_VALUE);
                }
                i32::from(device)
            }
            _ => return Err(CuError::INVALID_VALUE),
        };
        session()?.device(device)?;
        Ok(device as usize)
    }
}

fn handle(pool: u32) -> Handle {
    HANDLE_BASE + u64::from(pool) * 16
}

fn number(handle: Handle) -> CuResult<u32> {
    let offset = handle.checked_sub(HANDLE_BASE).filter(|offset| offset % 16 == 0);
    offset.and_then(|offset| u32::try_from(offset / 16).ok()).ok_or(CuError::INVALID_VALUE)
}

/// Allocates from the device's current pool or a given one; in a stream that is being captured, adds a node instead.
fn allocate(out: Out<u64>, size_bytes: u64, pool: Option<Handle>, stream: u64) -> CuResult {
    let mut inner = session()?.lock();
    if out.is_null() || size_bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let (_, device) = inner.current_device()?;
    let pool = pool.map_or(Ok(inner.pools.current[device]), number)?;
    let address = match inner.capture_of(stream)? {
        Some(graph) => inner.capture_allocation(graph, PoolProps::pinned_on(device), size_bytes, stream)?,
        None => {
            inner.forbid_unsafe()?;
            inner.allocate(size_bytes, Kind::Pool(pool))?
        }
    };
    Ok(out.set(address)?)
}

fn free(address: u64, stream: u64) -> CuResult {
    let mut inner = session()?.lock();
    match inner.capture_of(stream)? {
        Some(graph) => inner.capture_free(graph, address, stream),
        None => {
            inner.forbid_unsafe()?;
            inner.free(address)
        }
    }
}

fn pool_of_device(out: Out<Handle>, device: i32, current: bool) -> CuResult {
    let session = session()?;
    session.device(device)?;
    let default = device as u32;
    let pool = if current { session.lock().pools.current[device as usize] } else { default };
    Ok(out.set(handle(pool))?)
}

fn get_attribute(pool: Handle, attribute: i32, value: *mut c_void) -> CuResult {
    let mut inner = session()?.lock();
    inner.forbid_unsafe()?;
    let pool = inner.pools.get(number(pool)?)?;
    let figures = &pool.figures;
    let bytes = match attribute {
        REUSE_FIRST..=REUSE_LAST => {
            return Ok(Out(value.cast()).set(pool.reuse[(attribute - REUSE_FIRST) as usize])?);
        }
        RELEASE_THRESHOLD => pool.release_threshold_bytes,
        RESERVED_CURRENT => figures.reserved_bytes(),
        RESERVED_HIGH => figures.reserved_high_bytes(),
        USED_CURRENT => figures.used_bytes,
        USED_HIGH => figures.used_high_bytes,
        _ => return Err(CuError::INVALID_VALUE),
    };
    Ok(Out(value.cast()).set(bytes)?)
}

fn set_attribute(pool: Handle, attribute: i32, value: *const c_void) -> CuResult {
    let mut inner = session()?.lock();
    inner.forbid_unsafe()?;
    let pool = inner.pools.get(number(pool)?)?;
    let bytes = || In::<u64>(value.cast()).get();
    match attribute {
        REUSE_FIRST..=REUSE_LAST => {
            pool.reuse[(attribute - REUSE_FIRST) as usize] = In(value.cast()).get()?;
        }
        RELEASE_THRESHOLD => pool.release_threshold_bytes = bytes()?,
        RESERVED_HIGH if bytes()? == 0 => pool.figures.reset_reserved_high(),
        USED_HIGH if bytes()? == 0 => pool.figures.reset_used_high(),
        _ => return Err(CuError::INVALID_VALUE),
    }
    Ok(())
}

driver_api! {
    fn cuMemAllocAsync(address: Out<u64>, size_bytes: usize, stream: u64) {
        allocate(address, size_bytes as u64, None, stream)
    }
    fn cuMemAllocAsync_ptsz(address: Out<u64>, size_bytes: usize, stream: u64) {
        allocate(address, size_bytes as u64, None, stream)
    }
    fn cuMemAllocFromPoolAsync(address: Out<u64>, size_bytes: usize, pool: Handle, stream: u64) {
        allocate(address, size_bytes as u64, Some(pool), stream)
    }
    fn cuMemAllocFromPoolAsync_ptsz(address: Out<u64>, size_bytes: usize, pool: Handle, stream: u64) {
        allocate(address, size_bytes as u64, Some(pool), stream)
    }
    fn cuMemFreeAsync(address: u64, stream: u64) { free(address, stream) }
    fn cuMemFreeAsync_ptsz(address: u64, stream: u64) { free(address, stream) }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) { pool_of_device(pool, device, false) }
    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) { pool_of_device(pool, device, true) }
    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        let session = session()?;
        session.device(device)?;
        session.lock().set_current_pool(device as usize, number(pool)?)
    }

    /// Pools with a maximum size are not simulated. One of managed memory, which CUDA has from version 13 on, counts on its device as if all
    /// of it were resident there; one of host memory does not count.
    fn cuMemPoolCreate(pool: Out<Handle>, props: In<PoolProps>) {
        let props = props.get()?;
        let is_host = props.location.is_host();
        let is_known = match props.allocation {
            ALLOCATION_PINNED => true,
            ALLOCATION_MANAGED => !is_host && cuda_version() >= MANAGED_POOLS_FROM,
            _ => false,
        };
        if !is_known {
            return Err(CuError::INVALID_VALUE);
        }
        // Managed memory may have no location of its own.
        let is_anywhere = is_host || props.allocation == ALLOCATION_MANAGED && props.location.kind == 0;
        let device = if is_anywhere { 0 } else { props.location.device()? };
        let mut inner = session()?.lock();
        inner.forbid_unsafe()?;
        let number = inner.pools.create(device, is_host);
        Ok(pool.set(handle(number))?)
    }
    fn cuMemPoolDestroy(pool: Handle) { session()?.lock().destroy_pool(number(pool)?) }
    fn cuMemPoolTrimTo(pool: Handle, keep_bytes: usize) {
        let mut inner = session()?.lock();
        inner.forbid_unsafe()?;
        inner.trim(number(pool)?, keep_bytes as u64)
    }
    fn cuMemPoolGetAttribute(pool: Handle, attribute: i32, value: *mut c_void) {
        get_attribute(pool, attribute, value)
    }
    fn cuMemPoolSetAttribute(pool: Handle, attribute: i32, value: *const c_void) {
        set_attribute(pool, attribute, value)
    }
    /// Every device may access every pool.
    fn cuMemPoolSetAccess(pool: Handle, _descriptions: *const c_void, _count: usize) {
        session()?.lock().pools.get(number(pool)?).map(|_| ())
    }
    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, _location: In<Location>) {
        session()?.lock().pools.get(number(pool)?)?;
        Ok(flags.set(ACCESS_READ_WRITE)?)
    }
}
