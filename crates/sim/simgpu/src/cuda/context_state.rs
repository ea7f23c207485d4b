//! Settings of the current context. As with the real driver, some limits cost device memory that no allocation function
//! shows. The other settings are not stored: each call answers as for a fresh context.

use super::session::{Inner, session};
use super::stream::synchronize_context;
use super::{CuError, CuResult, driver_api};
use crate::ffi::Out;
use crate::granules;

/// Stack per thread, printf buffer, malloc heap, sync depth, pending launches, L2 fetch granularity, persisting L2. The
/// cost of a context includes the memory of the defaults.
pub(super) const DEFAULT_LIMITS: Limits = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];
pub(super) type Limits = [u64; 7];
const STACK_SIZE: usize = 0;
const PRINTF_BUFFER: usize = 1;
const MALLOC_HEAP: usize = 2;

/// Granules that limits take beyond those of a fresh context.
pub(super) fn extra_granules(limits: &Limits, resident_threads: u64) -> u64 {
    let extra = |limit: usize, times: u64| {
        granules(limits[limit].saturating_sub(DEFAULT_LIMITS[limit]).saturating_mul(times))
    };
    extra(STACK_SIZE, resident_threads) + extra(PRINTF_BUFFER, 1) + extra(MALLOC_HEAP, 1)
}

impl Inner {
    /// Changes a limit of the current context, and with it what the context holds.
    fn set_limit(&mut self, limit: usize, value: u64, resident_threads: impl Fn(usize) -> u64) -> CuResult {
        let (context, device) = self.current_device()?;
        let mut limits = *self.contexts.limits(context);
        let before = extra_granules(&limits, resident_threads(device));
        limits[limit] = value;
        let after = extra_granules(&limits, resident_threads(device));
        let (registration, account) = self.account(device)?;
        match after.checked_sub(before) {
            Some(more) => account.take(registration, more)?,
            None => account.give(registration, before - after)?,
        }
        *self.contexts.limits(context) = limits;
        Ok(())
    }
}

fn with_context() -> CuResult {
    session()?.lock().current_device().map(|_| ())
}

fn known(limit: i32) -> CuResult<usize> {
    usize::try_from(limit).ok().filter(|&i| i < DEFAULT_LIMITS.len()).ok_or(CuError::INVALID_VALUE)
}

driver_api! {
    fn cuCtxSynchronize() { synchronize_context() }

    fn cuCtxGetLimit(value: Out<usize>, limit: i32) {
        let mut inner = session()?.lock();
        let (context, _) = inner.current_device()?;
        Ok(value.set(inner.contexts.limits(context)[known(limit)?] as usize)?)
    }

    fn cuCtxSetLimit(limit: i32, value: usize) {
        let session = session()?;
        let mut inner = session.lock();
        inner.forbid_unsafe()?;
        inner.set_limit(known(limit)?, value as u64, |device| session.devices[device].resident_threads())
    }

    fn cuCtxGetCacheConfig(config: Out<i32>) { with_context().and(Ok(config.set(0)?)) }

    fn cuCtxSetCacheConfig(_config: i32) { with_context() }

    fn cuCtxGetSharedMemConfig(config: Out<i32>) { with_context().and(Ok(config.set(0)?)) }

    fn cuCtxSetSharedMemConfig(_config: i32) { with_context() }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        with_context()?;
        least.set_if_asked(0);
        greatest.set_if_asked(-5);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() { with_context() }

    fn cuCtxEnablePeerAccess(_peer: usize, _flags: u32) { with_context() }

    fn cuCtxDisablePeerAccess(_peer: usize) { with_context() }
}
