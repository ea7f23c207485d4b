//! The end of a pool.
//!
//! The driver frees a destroyed pool once everything from it has been freed, and until then the pool can no longer be queried: its memory would
//! stay charged until the process ends. So a pool with memory in use is destroyed by the first synchronization that finds it
//! empty. The program sees no difference: to it, the pool is gone, and its memory is free at the same time.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Release;

use cantle_ledger::granules_holding;

use super::question::{Guest, is_left_to_guests};
use super::reserved::{LEAVING, settle_all};
use super::{Pool, owner_of};
use crate::capture_mode::RelaxedMode;
use crate::cuda::alloc::slice_gpu::SliceGpu;
use crate::cuda::{INVALID_VALUE, SUCCESS};
use crate::function::Status;
use crate::process::{Process, process};
use crate::table::Entry;

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: c_int = 4;

pub(crate) unsafe fn destroy(real: unsafe extern "C" fn(Pool) -> Status, pool: Pool) -> Status {
    settle_all();
    let known = process().and_then(|process| Some((process, process.pools.get(pool as u64)?)));
    let Some((process, known, gpu)) =
        known.and_then(|(process, known)| Some((process, known, SliceGpu::charged(known.gpu())?)))
    else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(pool) };
    };
    if known.context == LEAVING {
        return INVALID_VALUE;
    }
    process.pool_changes.fetch_add(1, Release);
    let in_use = Guest::enter(process, pool).and_then(|guest| guest.used_bytes()).unwrap_or(0);
    let status = if in_use > 0 && leave(process, pool) {
        SUCCESS
    } else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        destroy_now(process, gpu, pool, in_use, |_| true, || unsafe { real(pool) })
    };
    process.pool_changes.fetch_add(1, Release);
    status
}

/// Keeps a pool until it is empty. Not a device's default pool, which cannot be destroyed, nor its current one, because the driver chooses another one in
/// its place.
fn leave(process: &Process, pool: Pool) -> bool {
    let Ok(set) = crate::cuda::real::cuMemPoolSetAttribute.get() else { return false };
    if owner_of(pool).is_some() {
        return false;
    }
    let _relaxed = RelaxedMode::enter();
    let mut kept_bytes = 0_u64;
    // SAFETY: the call contract: the program has not destroyed the pool before. The attribute has 64 bits, which `kept_bytes` is.
    let status = unsafe { set(pool, RELEASE_THRESHOLD, (&raw mut kept_bytes).cast()) };
    status == SUCCESS && process.pools.update(pool as u64, |entry| entry.context = LEAVING)
}

/// Destroys a pool that the program has destroyed, if nothing of it is in use any more.
pub(crate) fn destroy_if_left_and_empty(gpu: SliceGpu, pool: Pool) {
    let process = gpu.process();
    let is_left = |entry: &mut Entry| entry.context == LEAVING;
    if !process.pools.get(pool as u64).is_some_and(|mut known| is_left(&mut known)) {
        return;
    }
    let in_use = Guest::enter(process, pool).and_then(|guest| guest.used_bytes());
    if in_use == Some(0)
        && let Ok(real) = crate::cuda::real::cuMemPoolDestroy.get()
    {
        let _relaxed = RelaxedMode::enter();
        // SAFETY: the program has destroyed it, and its call has succeeded; only the thread that takes it off the table
        // calls this.
        destroy_now(process, gpu, pool, 0, is_left, || unsafe { real(pool) });
    }
}

/// Destroys a pool if it is on the table and `is_meant`. Memory that is still in use stays charged until the process
/// ends.
fn destroy_now(
    process: &Process,
    gpu: SliceGpu,
    pool: Pool,
    in_use: u64,
    is_meant: impl FnOnce(&mut Entry) -> bool,
    real: impl FnOnce() -> Status,
) -> Status {
    // Off the table before the driver is asked: afterwards it must not be asked about this pool.
    let Some(taken) = process.pools.remove_if(pool as u64, is_meant) else { return INVALID_VALUE };
    let status = if is_left_to_guests(process, pool) { SUCCESS } else { real() };
    if let Some(mut balance) = gpu.lock() {
        let charged = granules_holding(taken.bytes());
        let surplus = if status == SUCCESS {
            charged.saturating_sub(granules_holding(in_use))
        } else {
            // It is not destroyed. Another thread may have met it meanwhile, and charged it once more.
            let other = process.pools.insert(taken).ok().flatten();
            other.map_or(0, |other| granules_holding(other.bytes()))
        };
        balance.account.release(surplus);
    }
    status
}
