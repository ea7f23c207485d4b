//! Stream-ordered memory: charged by what its pool has reserved, not by what was asked for.
//!
//! A pool takes physical memory when it must grow and keeps it beyond a free, until a trim or a synchronisation lets it go. So
//! each pool's reservation is charged as the driver reports it, and read again whenever it may have changed. Before an
//! allocation that may make the pool grow, the growth is reserved.

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

use cantle_ledger::{GRANULE_BYTES, Over, granules_holding};

use super::charge::{self, Place};
use super::vmm::Location;
use super::{Address, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CUmemoryPool`.
pub(super) type Pool = *mut c_void;
/// `CUstream`.
pub(super) type Stream = *mut c_void;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const RESERVED: c_int = 5;
const USED: c_int = 7;

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    pub(super) location: Location,
}

/// The driver's pools grow in steps of this size.
const STEP_BYTES: u64 = 32 << 20;

/// What a pool may grow by for an allocation that does not fit into what it has.
pub(super) const fn growth_granules(bytes: u64) -> u32 {
    granules_holding(bytes.div_ceil(STEP_BYTES).saturating_mul(STEP_BYTES))
}

/// Pools pack what they give out at multiples of this.
const SLOT_BYTES: u64 = 512;

/// Whether a pool has enough idle memory for a request. What is idle may end in a piece too small to be given out.
fn fits(bytes: u64, idle_bytes: u64) -> bool {
    bytes.checked_next_multiple_of(SLOT_BYTES).is_some_and(|taken| taken <= idle_bytes)
}

fn attribute(pool: Pool, which: c_int) -> Option<u64> {
    let mut bytes = 0_u64;
    // SAFETY: both attributes are 64 bits.
    let status = unsafe { driver::cuMemPoolGetAttribute.get().ok()?(pool, which, (&raw mut bytes).cast()) };
    (status == SUCCESS).then_some(bytes)
}

/// Creation takes no memory, but tells which GPU the pool's will be on.
pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Pool, *const Properties) -> Status,
    pool: *mut Pool,
    properties: *const Properties,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(pool, properties) };
    if status == SUCCESS {
        // SAFETY: the driver accepted both.
        let (pool, location) = unsafe { (*pool, (*properties).location) };
        if location.kind == Location::DEVICE {
            know(pool, location.id);
        }
    }
    status
}

/// From now on the pool is watched. If it can't be remembered, its first allocation is tried again.
fn know(pool: Pool, device: Device) -> Option<Entry> {
    let place = Place::of(device).ok()?;
    let pools = &place.process().pools;
    if let Some(known) = pools.get(pool as u64) {
        return Some(known);
    }
    let entry = Entry::new(pool as u64, 0, place.gpu, 0);
    pools.insert(entry).ok()?;
    place.process().uses_pools.store(true, Relaxed);
    Some(entry)
}

pub(super) unsafe fn alloc(
    real: unsafe extern "C" fn(*mut Address, usize, Stream) -> Status,
    address: *mut Address,
    bytes: usize,
    stream: Stream,
) -> Status {
    let Some(device) = device_of(stream) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(address, bytes, stream) };
    };
    let mut pool = core::ptr::null_mut();
    // SAFETY: writes to where it is told.
    let found = driver::cuDeviceGetMemPool
        .get()
        .map_or_else(|status| status, |get| unsafe { get(&raw mut pool, device) });
    if found != SUCCESS {
        // Without a pool there is no such memory; the driver has said why.
        return found;
    }
    // SAFETY: the caller's arguments.
    from(know(pool, device), bytes, address, stream, || unsafe { real(address, bytes, stream) })
}

pub(super) unsafe fn alloc_from(
    real: unsafe extern "C" fn(*mut Address, usize, Pool, Stream) -> Status,
    address: *mut Address,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Status {
    let known = process().and_then(|process| process.pools.get(pool as u64));
    // SAFETY: the caller's arguments.
    let real = || unsafe { real(address, bytes, pool, stream) };
    match known.map_or_else(|| owner_of(pool).map(|device| know(pool, device)), |known| Some(Some(known))) {
        Some(known) => from(known, bytes, address, stream, real),
        // Imported, or of host memory: charged elsewhere, or not the GPU's.
        None => real(),
    }
}

/// The device whose default or current pool this is.
fn owner_of(pool: Pool) -> Option<Device> {
    let mut count = 0;
    // SAFETY: writes to where it is told.
    unsafe { driver::cuDeviceGetCount.get().ok()?(&raw mut count) };
    let is_of = |device: &Device| {
        [&driver::cuDeviceGetDefaultMemPool, &driver::cuDeviceGetMemPool].into_iter().any(|function| {
            let mut found = core::ptr::null_mut();
            // SAFETY: as above.
            function
                .get()
                .is_ok_and(|get| unsafe { get(&raw mut found, *device) } == SUCCESS && found == pool)
        })
    };
    (0..count).find(is_of)
}

/// The device that a stream's work runs on: that of its context, which need not be current.
fn device_of(stream: Stream) -> Option<Device> {
    let current = charge::current();
    // The default streams are the current context's.
    if stream as usize <= 2 {
        return current.map(|(_, device)| device);
    }
    let mut context = core::ptr::null_mut();
    // SAFETY: the caller's stream; writes to where it is told.
    if unsafe { driver::cuStreamGetCtx.get().ok()?(stream, &raw mut context) } != SUCCESS {
        return None;
    }
    if let Some((_, device)) = current.filter(|(current, _)| *current == context) {
        return Some(device);
    }
    // SAFETY: a context of this process, popped again.
    unsafe {
        if driver::cuCtxPushCurrent_v2.get().ok()?(context) != SUCCESS {
            return None;
        }
        let pushed = charge::current();
        driver::cuCtxPopCurrent_v2.get().ok()?(&raw mut context);
        pushed.map(|(_, device)| device)
    }
}

/// Allocates from a pool that is `known`, or that could not be remembered.
fn from(
    known: Option<Entry>,
    bytes: usize,
    address: *mut Address,
    stream: Stream,
    real: impl FnOnce() -> Status,
) -> Status {
    let Some((known, place)) = known.and_then(|known| Some((known, Place::charged(known.gpu())?))) else {
        return OUT_OF_MEMORY;
    };
    let pool = known.key as Pool;
    // Held until the pool's new reservation is charged, so that two threads don't take each other's growth for their own.
    let Some(mut opened) = place.open() else { return OUT_OF_MEMORY };
    if let Err(status) = opened.charge_context(bytes as u64) {
        return status;
    }
    let growth = match reserve_growth(&mut opened, pool, bytes as u64) {
        Ok(growth) => growth,
        Err(over) => return opened.refuse(over, bytes as u64),
    };
    let status = real();
    if let Err(over) = settle(place.process(), &mut opened, pool, growth)
        && status == SUCCESS
    {
        // The pool grew by more than was reserved, and that does not fit.
        if let Ok(free) = super::real::cuMemFreeAsync.get() {
            // SAFETY: just allocated, and nobody has seen it.
            unsafe { free(*address, stream) };
        }
        trim(place.process(), &mut opened, pool);
        return opened.refuse(over, bytes as u64);
    }
    status
}

/// Reserves what the pool may have to grow by for `bytes`. What it has idle counts, and is trimmed away if the rest does not fit.
fn reserve_growth(opened: &mut charge::Opened, pool: Pool, bytes: u64) -> Result<u32, Over> {
    let process = opened.process();
    let _ = settle(process, opened, pool, 0);
    let idle = attribute(pool, RESERVED).unwrap_or(0).saturating_sub(attribute(pool, USED).unwrap_or(0));
    if fits(bytes, idle) {
        return Ok(0);
    }
    let growth = growth_granules(bytes);
    if opened.account.reserve(growth).is_err() {
        trim(process, opened, pool);
        opened.account.reserve(growth)?;
    }
    Ok(growth)
}

fn trim(process: &Process, opened: &mut charge::Opened, pool: Pool) {
    if let Ok(trim) = super::real::cuMemPoolTrimTo.get() {
        // SAFETY: a pool of this process.
        unsafe { trim(pool, 0) };
    }
    let _ = settle(process, opened, pool, 0);
}

/// Brings the charge to the pool's reservation. An error is growth that does not fit; it is charged all the same, because it
/// has happened.
///
/// `ahead` was reserved for growth. It becomes part of the charge: given back first, somebody else might take its place.
fn settle(process: &Process, opened: &mut charge::Opened, pool: Pool, ahead: u32) -> Result<(), Over> {
    let (Some(known), Some(reserved)) = (process.pools.get(pool as u64), attribute(pool, RESERVED)) else {
        opened.account.release(ahead);
        return Ok(());
    };
    let (before, now) = (granules_holding(known.bytes()), granules_holding(reserved));
    let settled = opened.account_for(before.saturating_add(ahead), now);
    if before != now {
        process.pools.update(pool as u64, |entry| entry.set_bytes(u64::from(now) * GRANULE_BYTES));
    }
    settled
}

/// Reads all pools again: after what may have made them smaller.
pub(super) fn settle_all() {
    each_pool(|process, opened, pool| {
        let _ = settle(process, opened, pool, 0);
    });
}

/// Makes all pools as small as they can be.
pub(super) fn trim_all() {
    each_pool(trim);
}

fn each_pool(work: impl Fn(&Process, &mut charge::Opened, Pool)) {
    let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) else { return };
    process.pools.each(|entry| {
        if let Some(mut opened) = Place::charged(entry.gpu()).and_then(Place::open) {
            work(process, &mut opened, entry.key as Pool);
        }
    });
}

pub(super) unsafe fn free(
    real: unsafe extern "C" fn(Address, Stream) -> Status,
    address: Address,
    stream: Stream,
) -> Status {
    // Memory that was allocated otherwise may be freed here too.
    let known = process().and_then(|process| process.memory.remove(address));
    // SAFETY: the caller's arguments.
    let status = unsafe { real(address, stream) };
    match known {
        Some(entry) if status == SUCCESS => charge::release(entry.gpu(), entry.bytes()),
        Some(entry) => {
            if let Some(process) = process() {
                // Full can't be: its place has just been left.
                let _ = process.memory.insert(entry);
            }
        }
        None => settle_all(),
    }
    status
}

pub(super) unsafe fn trim_to(
    real: unsafe extern "C" fn(Pool, usize) -> Status,
    pool: Pool,
    keep: usize,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(pool, keep) };
    settle_all();
    status
}

pub(super) unsafe fn set_attribute(
    real: unsafe extern "C" fn(Pool, c_int, *mut c_void) -> Status,
    pool: Pool,
    which: c_int,
    value: *mut c_void,
) -> Status {
    // SAFETY: the caller's arguments.
    let status = unsafe { real(pool, which, value) };
    settle_all();
    status
}

/// The driver destroys a pool only once everything from it has been freed, and then nobody can ask it any more. So what is still
/// in use stays charged until the process ends.
pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Pool) -> Status, pool: Pool) -> Status {
    settle_all();
    let in_use = attribute(pool, USED).unwrap_or(0);
    // SAFETY: the caller's argument.
    let status = unsafe { real(pool) };
    if status == SUCCESS
        && let Some(process) = process()
        && let Some(gone) = process.pools.remove(pool as u64)
        && let Some(mut opened) = Place::charged(gone.gpu()).and_then(Place::open)
    {
        opened.account.release(granules_holding(gone.bytes()).saturating_sub(granules_holding(in_use)));
    }
    status
}

/// A synchronisation: pools give back what they may not keep.
pub(super) unsafe fn synchronize(real: unsafe extern "C" fn() -> Status) -> Status {
    // SAFETY: no arguments.
    let status = unsafe { real() };
    settle_all();
    status
}

/// As [`synchronize`], with a stream or an event.
pub(super) unsafe fn synchronize_with(real: unsafe extern "C" fn(Stream) -> Status, with: Stream) -> Status {
    // SAFETY: the caller's argument.
    let status = unsafe { real(with) };
    settle_all();
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_whole_slots_of_what_is_idle() {
        assert!(fits(1024, 1024) && fits(1, 512) && fits(0, 0));
        assert!(!fits(1001, 1001), "the last slot is not whole");
        assert!(!fits(1, 511) && !fits(513, 1023));
        assert!(!fits(u64::MAX, u64::MAX), "rounded up it is more than there can be");
    }

    #[test]
    fn growth_is_in_whole_steps() {
        assert_eq!(growth_granules(1), 16);
        assert_eq!(growth_granules(STEP_BYTES + 1), 32);
    }
}
