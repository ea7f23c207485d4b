//! Stream-ordered memory: charged by what its pool has reserved, not by what was requested.
//!
//! A pool takes physical memory when it must grow and keeps it beyond a free, until a trim or a synchronization releases it. So
//! each pool's reservation is charged as the driver reports it, and read again whenever it may have changed. Before an
//! allocation that may make the pool grow, the growth is reserved.
//!
//! No lock is held while the driver allocates: it may wait for work that another thread has to finish, and that thread may free
//! memory first. So the sum of what concurrent calls rely on is kept ([`PoolCalls`]).
//!
//! Pools are queried by handle at times that the program does not choose: see [`crate::cuda::pool::question`]. A pool that may have been
//! destroyed with its context is queried again only when the program uses it.

pub(crate) mod current;
pub(crate) mod end;
pub(crate) mod question;
pub(crate) mod reserved;

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::{Address, Context, Device, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, SUCCESS, driver, graph};
use crate::capture_mode::RelaxedMode;
use crate::cuda::alloc::location::{Location, LocationKind};
use crate::cuda::alloc::release;
use crate::cuda::alloc::slice_gpu;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::pool::reserved::{LEAVING, UNSURE, reserve_growth, settle_all, trim};
use crate::function::Status;
use crate::gate;
use crate::process::process;
use crate::table::Entry;

/// `CUmemoryPool`.
pub(super) type Pool = *mut c_void;
/// `CUstream`.
pub(super) type Stream = *mut c_void;

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub(super) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
}

impl Properties {
    pub(super) const fn place(&self) -> LocationKind {
        self.location.place_of(self.kind)
    }
}

/// Creation takes no memory, but shows which GPU the pool's memory will be on.
pub(super) unsafe fn create(
    real: unsafe extern "C" fn(*mut Pool, *const Properties) -> Status,
    pool: *mut Pool,
    properties: *const Properties,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(pool, properties) };
    if status == SUCCESS {
        // SAFETY: the out-parameter contract for `pool`; the driver has read `properties` and returned success, so that is valid
        // to read too.
        let (pool, location, kind) = unsafe { (*pool, (*properties).location, (*properties).kind) };
        learn(pool, location, kind);
    }
    status
}

/// A pool by its location, default or current.
pub(super) unsafe fn of_location(
    real: unsafe extern "C" fn(*mut Pool, *const Location, c_int) -> Status,
    pool: *mut Pool,
    location: *const Location,
    kind: c_int,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(pool, location, kind) };
    if status == SUCCESS {
        // SAFETY: the out-parameter contract for `pool`; the driver has read `location` and returned success, so that is valid to
        // read too.
        let (pool, location) = unsafe { (*pool, *location) };
        learn(pool, location, kind);
    }
    status
}

/// Remembers where a pool's memory is. One of managed memory stays unknown, and nothing is allocated from it.
pub(super) fn learn(pool: Pool, location: Location, kind: c_int) {
    match location.place_of(kind) {
        // If there is no room, its first allocation tries again.
        LocationKind::Gpu(device) => drop(know(pool, device)),
        LocationKind::Host => {
            if let Some(process) = process() {
                let _full = process.host_pools.insert(Entry::new(pool as u64, 0, 0, 0));
            }
        }
        LocationKind::Nowhere | LocationKind::Unknown => {}
    }
}

/// Enters a pool into the table. If there is no room, its first allocation tries again.
pub(super) fn know(pool: Pool, device: Device) -> Option<Entry> {
    let gpu = SliceGpu::of(device).ok()?;
    let pools = &gpu.process().pools;
    if let Some(known) = pools.get(pool as u64) {
        if known.context == UNSURE {
            // The program uses it, so it exists.
            pools.update(pool as u64, |entry| entry.context = 0);
        }
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
    let Some(process) = process() else { return OUT_OF_MEMORY };
    let changes = process.pool_changes.load(Acquire);
    let pool = match current::of(process, stream, changes) {
        Ok(Some(pool)) => pool,
        // SAFETY: the call contract; the arguments are passed unchanged.
        Ok(None) => return unsafe { real(address, bytes, stream) },
        Err(status) => return status,
    };
    // SAFETY: the call contract, the arguments are passed unchanged; the out-parameter contract for `address`.
    let status = unsafe { from(Some(pool), bytes, address, stream, || real(address, bytes, stream)) };
    if process.pool_changes.load(Acquire) != changes {
        // Perhaps it came from another one.
        settle_all();
    }
    status
}

pub(super) unsafe fn alloc_from(
    real: unsafe extern "C" fn(*mut Address, usize, Pool, Stream) -> Status,
    address: *mut Address,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(address, bytes, pool, stream) };
    let Some(process) = process() else { return OUT_OF_MEMORY };
    let known = match process.pools.get(pool as u64) {
        Some(known) if known.context == LEAVING => return INVALID_VALUE,
        Some(known) if known.context != UNSURE => Some(known),
        _ if process.host_pools.get(pool as u64).is_some() => return real(),
        Some(unsure) => {
            process.pools.update(pool as u64, |entry| entry.context = 0);
            Some(unsure)
        }
        None => match owner_of(pool) {
            Some(device) => know(pool, device),
            // Of managed memory, or made where no hook saw it: it cannot be accounted for.
            None => return NOT_SUPPORTED,
        },
    };
    // SAFETY: the call contract for `stream`; the out-parameter contract for `address`.
    unsafe { from(known, bytes, address, stream, real) }
}

/// The device whose default or current pool this is.
pub(super) fn owner_of(pool: Pool) -> Option<Device> {
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

/// Allocates from a pool that is `known`, or that could not be remembered.
///
/// # Safety
/// The call contract for `stream`. If `real` returns success, the driver has allocated memory for `stream` and has written its
/// address to `address`.
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
    let Some(mut balance) = gpu.lock() else { return OUT_OF_MEMORY };
    if let Err(status) = balance.charge_context(bytes as u64) {
        return status;
    }
    drop(balance);
    let refuse = |over| gpu.lock().map_or(OUT_OF_MEMORY, |balance| balance.refuse(over, bytes as u64));
    let share = match reserve_growth(gpu, pool, bytes as u64) {
        Ok(share) => share,
        // A call that is recorded into a graph takes no memory now. SAFETY: this function's condition.
        Err(_) if unsafe { is_capturing(stream) } => return real(),
        Err(over) => return refuse(over),
    };
    let status = real();
    if let Err(over) = share.settle(gpu, pool)
        && status == SUCCESS
    {
        // The pool grew by more than was reserved, and that exceeds the limit.
        let _relaxed = RelaxedMode::enter();
        if let (Ok(free), Ok(wait)) =
            (super::real::cuMemFreeAsync.get(), super::real::cuStreamSynchronize.get())
        {
            // SAFETY: by this function's condition `address` holds what the driver has just allocated. The program gets an
            // error, so it never uses that memory. The call contract for `stream`. The pool cannot shrink before the
            // stream has reached the release, and this thread may wait there: a call that runs out of memory does so in
            // the driver, too.
            unsafe {
                free(*address, stream);
                wait(stream);
            }
        }
        trim(gpu, pool);
        return refuse(over);
    }
    status
}

/// # Safety
/// The call contract for `stream`.
pub(super) unsafe fn is_capturing(stream: Stream) -> bool {
    let mut state = 0;
    // SAFETY: this function's condition; `state` is a live local of the type that the function writes.
    let asked = driver::cuStreamIsCapturing.get().map(|get| unsafe { get(stream, &raw mut state) });
    asked == Ok(SUCCESS) && state != 0
}

pub(super) unsafe fn free<const PER_THREAD: bool>(
    real: unsafe extern "C" fn(Address, Stream) -> Status,
    address: Address,
    stream: Stream,
) -> Status {
    // Memory that was allocated otherwise may be freed here too.
    let known = process().and_then(|process| process.memory.remove(address));
    let left = graph::is_no_longer_left(address);
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, stream) };
    if let Some(left) = left.filter(|_| status != SUCCESS) {
        graph::is_left(&left);
    }
    match known {
        Some(entry) if status == SUCCESS => release::linear(&entry),
        Some(entry) => {
            if let Some(process) = process() {
                // If another thread has filled the table meanwhile, the memory stays charged: too much is safe, too little is
                // not.
                let _full = process.memory.insert(entry);
            }
        }
        // Its pool keeps the memory until a synchronization.
        None => note_free(stream, PER_THREAD),
    }
    status
}

pub(super) unsafe fn trim_to(
    real: unsafe extern "C" fn(Pool, usize) -> Status,
    pool: Pool,
    keep: usize,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
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
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(pool, which, value) };
    note_any_free();
    settle_all();
    status
}

/// Memory of more than one stream was freed, or nothing tells which one it was.
const SEVERAL: u64 = u64::MAX;

/// The value of [`Process::freed_on`] for a stream. Each thread has a default stream of its own, so that one is not
/// distinguished from others.
fn mark_of(stream: Stream, per_thread: bool) -> u64 {
    match stream as u64 {
        0 if per_thread => SEVERAL,
        0 => 1,
        2 => SEVERAL,
        other => other,
    }
}

/// Memory of pools was freed otherwise than on a stream, or pools may keep less than before.
pub(super) fn note_any_free() {
    if let Some(process) = process().filter(|process| process.uses_pools.load(Relaxed)) {
        process.freed_on.store(SEVERAL, Release);
    }
}

/// Memory of a pool was freed on a stream: the pool may become smaller at the synchronizations that follow.
fn note_free(stream: Stream, per_thread: bool) {
    let (Some(process), mark) = (process(), mark_of(stream, per_thread)) else { return };
    let other = process.freed_on.compare_exchange(0, mark, AcqRel, Relaxed).err();
    if other.is_some_and(|other| other != mark) {
        process.freed_on.store(SEVERAL, Release);
    }
}

/// A synchronization: pools give back what they may not keep.
pub(super) unsafe fn synchronize(real: unsafe extern "C" fn() -> Status) -> Status {
    // SAFETY: the call contract; the function takes no arguments.
    let real = || unsafe { real() };
    settled(SEVERAL, || if cfg!(feature = "gate") { gate::synchronized_context(real) } else { real() })
}

/// A synchronization with a context.
pub(super) unsafe fn synchronize_context(
    real: unsafe extern "C" fn(Context) -> Status,
    context: Context,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged. Not known to be the one that this thread launches in, so to the
    // gate it is as good as an event.
    let real = || unsafe { real(context) };
    settled(0, || if cfg!(feature = "gate") { gate::synchronized_event(real) } else { real() })
}

/// A synchronization with a stream.
pub(super) unsafe fn synchronize_stream<const PER_THREAD: bool>(
    real: unsafe extern "C" fn(Stream) -> Status,
    stream: Stream,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(stream) };
    let ends = match mark_of(stream, PER_THREAD) {
        SEVERAL => 0,
        mark => mark,
    };
    settled(ends, || {
        if cfg!(feature = "gate") { gate::synchronized_stream(stream, PER_THREAD, real) } else { real() }
    })
}

/// A synchronization with an event.
pub(super) unsafe fn synchronize_event(
    real: unsafe extern "C" fn(*mut c_void) -> Status,
    event: *mut c_void,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(event) };
    settled(0, || if cfg!(feature = "gate") { gate::synchronized_event(real) } else { real() })
}

/// Pools are asked after a synchronization if memory of theirs was freed. With `ends`, the stream that the synchronization waits for (or
/// all of them), what was freed there is over then, and later ones need not ask again.
fn settled(ends: u64, real: impl FnOnce() -> Status) -> Status {
    let freed_on = process().map_or(0, |process| {
        let freed_on = process.freed_on.load(Acquire);
        if freed_on != 0 && (freed_on == ends || ends == SEVERAL) {
            // Before the driver is called: what is freed during the call counts for the next one.
            let _other = process.freed_on.compare_exchange(freed_on, 0, AcqRel, Relaxed);
        }
        freed_on
    });
    let status = real();
    slice_gpu::notice_context();
    if freed_on != 0 {
        settle_all();
    }
    status
}
