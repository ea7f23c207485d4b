//! Stream-ordered memory: charged by what its pool has reserved, not by what was asked for.
//!
//! A pool takes physical memory when it must grow and keeps it beyond a free, until a trim or a synchronisation releases it. So
//! each pool's reservation is charged as the driver reports it, and read again whenever it may have changed. Before an
//! allocation that may make the pool grow, the growth is reserved.
//!
//! Pools are asked by handle at times that the program does not choose, so a pool must not be destroyed meanwhile: the hook of
//! `cuMemPoolDestroy` holds the balance of the pool's GPU, and a pool is asked only while that is locked and the pool is in the
//! table ([`known_to`]).

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;

use cantle_ledger::{GRANULE_BYTES, Over, granules_holding};

use super::charge::{self, Balance, SliceGpu};
use super::vmm::Location;
use super::{Address, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::function::Status;
use crate::process::process;
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

/// Whether a pool has enough idle memory for a request. The end of the idle memory may be too small to be given out.
fn fits(bytes: u64, idle_bytes: u64) -> bool {
    bytes.checked_next_multiple_of(SLOT_BYTES).is_some_and(|taken| taken <= idle_bytes)
}

/// # Safety
/// `pool` is not destroyed during the call, and `which` is [`RESERVED`] or [`USED`].
unsafe fn attribute(pool: Pool, which: c_int) -> Option<u64> {
    let mut bytes = 0_u64;
    // SAFETY: by this function's condition the handle is valid and the driver writes 64 bits, which `bytes` is.
    let status = unsafe { driver::cuMemPoolGetAttribute.get().ok()?(pool, which, (&raw mut bytes).cast()) };
    (status == SUCCESS).then_some(bytes)
}

/// The entry of a pool that is on the balance's GPU. While the balance is locked, such a pool is not destroyed ([`destroy`]).
fn known_to(balance: &Balance, pool: Pool) -> Option<Entry> {
    balance.process().pools.get(pool as u64).filter(|entry| entry.gpu() == balance.gpu())
}

/// Creation takes no memory, but shows which GPU the pool's memory will be on.
pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Pool, *const Properties) -> Status,
    pool: *mut Pool,
    properties: *const Properties,
) -> Status {
    // SAFETY: the call contract; the arguments go on unchanged.
    let status = unsafe { real(pool, properties) };
    if status == SUCCESS {
        // SAFETY: the out-parameter contract for `pool`; the driver has read `properties` and returned success, so that is valid
        // to read too.
        let (pool, location) = unsafe { (*pool, (*properties).location) };
        if location.kind == Location::DEVICE {
            know(pool, location.id);
        }
    }
    status
}

/// Enters a pool into the table. If there is no room, its first allocation tries again.
fn know(pool: Pool, device: Device) -> Option<Entry> {
    let gpu = SliceGpu::of(device).ok()?;
    let pools = &gpu.process().pools;
    if let Some(known) = pools.get(pool as u64) {
        return Some(known);
    }
    let entry = Entry::new(pool as u64, 0, gpu.index, 0);
    pools.insert(entry).ok()?;
    gpu.process().uses_pools.store(true, Relaxed);
    Some(entry)
}

pub(super) unsafe fn alloc(
    real: unsafe extern "C" fn(*mut Address, usize, Stream) -> Status,
    address: *mut Address,
    bytes: usize,
    stream: Stream,
) -> Status {
    let Some(device) = device_of(stream) else {
        // SAFETY: the call contract; the arguments go on unchanged.
        return unsafe { real(address, bytes, stream) };
    };
    let mut pool = core::ptr::null_mut();
    // SAFETY: `pool` is a live local of the type that the function writes.
    let found = driver::cuDeviceGetMemPool
        .get()
        .map_or_else(|status| status, |get| unsafe { get(&raw mut pool, device) });
    if found != SUCCESS {
        // Without a pool there is no such memory; the driver's status says why.
        return found;
    }
    // SAFETY: the call contract, the arguments go on unchanged; the out-parameter contract for `address`.
    unsafe { from(know(pool, device), bytes, address, stream, || real(address, bytes, stream)) }
}

pub(super) unsafe fn alloc_from(
    real: unsafe extern "C" fn(*mut Address, usize, Pool, Stream) -> Status,
    address: *mut Address,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Status {
    let known = process().and_then(|process| process.pools.get(pool as u64));
    // SAFETY: the call contract; the arguments go on unchanged.
    let real = || unsafe { real(address, bytes, pool, stream) };
    match known.map_or_else(|| owner_of(pool).map(|device| know(pool, device)), |known| Some(Some(known))) {
        // SAFETY: the call contract for `stream`; the out-parameter contract for `address`.
        Some(known) => unsafe { from(known, bytes, address, stream, real) },
        // Imported, or of host memory: charged elsewhere, or not the GPU's.
        None => real(),
    }
}

/// The device whose default or current pool this is.
fn owner_of(pool: Pool) -> Option<Device> {
    let mut count = 0;
    // SAFETY: `count` is a live local of the type that the function writes.
    unsafe { driver::cuDeviceGetCount.get().ok()?(&raw mut count) };
    let is_of = |device: &Device| {
        [&driver::cuDeviceGetDefaultMemPool, &driver::cuDeviceGetMemPool].into_iter().any(|function| {
            let mut found = core::ptr::null_mut();
            // SAFETY: `found` is a live local of the type that both functions write. The handle is only compared.
            function
                .get()
                .is_ok_and(|get| unsafe { get(&raw mut found, *device) } == SUCCESS && found == pool)
        })
    };
    (0..count).find(is_of)
}

/// The device of a stream that the program passed to the current call: that of its context, which need not be current.
fn device_of(stream: Stream) -> Option<Device> {
    let current = charge::current();
    // The default streams are the current context's.
    if stream as usize <= 2 {
        return current.map(|(_, device)| device);
    }
    let mut context = core::ptr::null_mut();
    // SAFETY: the call contract for `stream`; `context` is a live local of the type that the function writes.
    if unsafe { driver::cuStreamGetCtx.get().ok()?(stream, &raw mut context) } != SUCCESS {
        return None;
    }
    if let Some((_, device)) = current.filter(|(current, _)| *current == context) {
        return Some(device);
    }
    // SAFETY: `context` is that of a stream in use, so it exists until the stream is destroyed, which the call contract excludes.
    // It is popped again, so the thread's stack of contexts is as before; the pop writes to a live local.
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
///
/// # Safety
/// If `real` returns success, the driver has allocated memory for `stream` and has written its address to `address`.
unsafe fn from(
    known: Option<Entry>,
    bytes: usize,
    address: *mut Address,
    stream: Stream,
    real: impl FnOnce() -> Status,
) -> Status {
    let Some((known, gpu)) = known.and_then(|known| Some((known, SliceGpu::charged(known.gpu())?))) else {
        return OUT_OF_MEMORY;
    };
    let pool = known.key as Pool;
    // Locked until the pool's new reservation is charged, so that no thread takes another one's growth for its own.
    let Some(mut balance) = gpu.lock() else { return OUT_OF_MEMORY };
    if let Err(status) = balance.charge_context(bytes as u64) {
        return status;
    }
    let growth = match reserve_growth(&mut balance, pool, bytes as u64) {
        Ok(growth) => growth,
        Err(over) => return balance.refuse(over, bytes as u64),
    };
    let status = real();
    if let Err(over) = settle(&mut balance, pool, growth)
        && status == SUCCESS
    {
        // The pool grew by more than was reserved, and that exceeds the limit.
        if let Ok(free) = super::real::cuMemFreeAsync.get() {
            // SAFETY: by this function's condition `address` holds what the driver has just allocated. The program gets an
            // error, so it never uses that memory.
            unsafe { free(*address, stream) };
        }
        trim(&mut balance, pool);
        return balance.refuse(over, bytes as u64);
    }
    status
}

/// Reserves what the pool may have to grow by for `bytes`. Its idle memory counts, and is trimmed if the growth is refused.
fn reserve_growth(balance: &mut Balance, pool: Pool, bytes: u64) -> Result<u32, Over> {
    let _over = settle(balance, pool, 0);
    if fits(bytes, idle_bytes(balance, pool)) {
        return Ok(0);
    }
    let growth = growth_granules(bytes);
    if balance.account.reserve(growth).is_err() {
        trim(balance, pool);
        balance.account.reserve(growth)?;
    }
    Ok(growth)
}

/// What a pool has reserved and not given out.
fn idle_bytes(balance: &Balance, pool: Pool) -> u64 {
    if known_to(balance, pool).is_none() {
        return 0;
    }
    // SAFETY: a pool in the table is not destroyed while the balance is locked.
    let [reserved, used] = [RESERVED, USED].map(|which| unsafe { attribute(pool, which) }.unwrap_or(0));
    reserved.saturating_sub(used)
}

fn trim(balance: &mut Balance, pool: Pool) {
    if known_to(balance, pool).is_some()
        && let Ok(trim) = super::real::cuMemPoolTrimTo.get()
    {
        // SAFETY: a pool in the table is not destroyed while the balance is locked.
        unsafe { trim(pool, 0) };
    }
    let _over = settle(balance, pool, 0);
}

/// Sets the charge to the pool's reservation. An error is growth that exceeds the limit; it is charged all the same, because it
/// has happened.
///
/// `ahead` was reserved for growth. It becomes part of the charge: if it were given back first, another process could take it.
fn settle(balance: &mut Balance, pool: Pool, ahead: u32) -> Result<(), Over> {
    let known = known_to(balance, pool);
    // SAFETY: a pool in the table is not destroyed while the balance is locked.
    let reserved = known.and_then(|_| unsafe { attribute(pool, RESERVED) });
    let Some((known, reserved)) = known.zip(reserved) else {
        balance.account.release(ahead);
        return Ok(());
    };
    let (before, now) = (granules_holding(known.bytes()), granules_holding(reserved));
    let settled = balance.account_for(before.saturating_add(ahead), now);
    if before != now {
        let now_bytes = u64::from(now) * GRANULE_BYTES;
        balance.process().pools.update(pool as u64, |entry| entry.set_bytes(now_bytes));
    }
    settled
}

/// Reads all pools again, after a call that may have made them smaller.
pub(super) fn settle_all() {
    each_pool(|balance, pool| {
        let _over = settle(balance, pool, 0);
    });
}

/// Makes all pools as small as they can be.
pub(super) fn trim_all() {
    each_pool(trim);
}

fn each_pool(work: impl Fn(&mut Balance, Pool)) {
    let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) else { return };
    process.pools.each(|entry| {
        if let Some(mut balance) = SliceGpu::charged(entry.gpu()).and_then(SliceGpu::lock) {
            work(&mut balance, entry.key as Pool);
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
    // SAFETY: the call contract; the arguments go on unchanged.
    let status = unsafe { real(address, stream) };
    match known {
        Some(entry) if status == SUCCESS => charge::release(&entry),
        Some(entry) => {
            if let Some(process) = process() {
                // If another thread has filled the table meanwhile, the memory stays charged: too much is safe, too little is
                // not.
                let _full = process.memory.insert(entry);
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
    // SAFETY: the call contract; the arguments go on unchanged.
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
    // SAFETY: the call contract; the arguments go on unchanged.
    let status = unsafe { real(pool, which, value) };
    settle_all();
    status
}

/// The driver frees a destroyed pool only once everything from it has been freed, and until then nobody can ask the pool any
/// more. So what is still in use stays charged until the process ends.
pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Pool) -> Status, pool: Pool) -> Status {
    settle_all();
    let known = process().and_then(|process| process.pools.get(pool as u64));
    // Locked until the pool is out of the table, so that no other thread asks it after its end.
    let Some(mut balance) = known.and_then(|known| SliceGpu::charged(known.gpu())).and_then(SliceGpu::lock)
    else {
        // SAFETY: the call contract; the arguments go on unchanged.
        return unsafe { real(pool) };
    };
    // SAFETY: the call contract: no other thread destroys the pool during this call.
    let in_use = unsafe { attribute(pool, USED) }.unwrap_or(0);
    // SAFETY: the call contract; the arguments go on unchanged.
    let status = unsafe { real(pool) };
    if status == SUCCESS
        && let Some(gone) = balance.process().pools.remove(pool as u64)
    {
        let granules = granules_holding(gone.bytes()).saturating_sub(granules_holding(in_use));
        balance.account.release(granules);
    }
    status
}

/// A synchronisation: pools give back what they may not keep.
pub(super) unsafe fn synchronize(real: unsafe extern "C" fn() -> Status) -> Status {
    // SAFETY: the call contract; the function takes no arguments.
    let status = unsafe { real() };
    charge::notice_context();
    settle_all();
    status
}

/// A synchronisation with a stream, an event or a context.
pub(super) unsafe fn synchronize_with(real: unsafe extern "C" fn(Stream) -> Status, with: Stream) -> Status {
    // SAFETY: the call contract; the arguments go on unchanged.
    let status = unsafe { real(with) };
    charge::notice_context();
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
