//! Settings of the current context. Kept nowhere: each answers what a fresh context answers.

use super::driver_api;
use super::execution::synchronize;
use super::session::session;
use super::{CuError, CuResult};
use crate::ffi::Out;

/// Stack size, printf buffer, malloc heap, sync depth, pending launches, L2 fetch granularity, persisting L2.
const LIMITS: [usize; 7] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0];

fn with_context() -> CuResult {
    session()?.lock().current_device().map(|_| ())
}

driver_api! {
    fn cuCtxSynchronize() { synchronize() }

    fn cuCtxGetLimit(value: Out<usize>, limit: i32) {
        with_context()?;
        let found = usize::try_from(limit).ok().and_then(|i| LIMITS.get(i));
        Ok(value.set(*found.ok_or(CuError::INVALID_VALUE)?)?)
    }

    fn cuCtxSetLimit(_limit: i32, _value: usize) { with_context() }

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
