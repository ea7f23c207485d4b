//! Memory pools: what a pool has reserved of the device, and what of that is in use.
//!
//! A pool packs its allocations (each rounded up to 512 B) and reserves whole granules for their sum. Freed memory stays
//! reserved until the pool is trimmed or, above its release threshold, until the next synchronization.

use super::session::Inner;
use super::{CuError, CuResult};
use crate::{GRANULE_BYTES, granules};

const STEP_BYTES: u64 = 512;

/// Figures of a pool that programs can read.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Figures {
    pub(super) reserved_granules: u64,
    pub(super) reserved_high_granules: u64,
    pub(super) used_bytes: u64,
    pub(super) used_high_bytes: u64,
}

/// A pool of this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pool {
    /// The visible device it reserves memory of, unless it is host memory that it has.
    pub(super) device: usize,
    is_host: bool,
    pub(super) figures: Figures,
    pub(super) release_threshold_bytes: u64,
    /// Reuse policies (follow events, opportunistic, internal dependencies), kept for programs that read them back.
    pub(super) reuse: [i32; 3],
    allocations: u32,
    /// Destroyed by the program; freed with its last allocation.
    destroyed: bool,
}

/// Pools by number. The first are the devices' default pools, then their graph pools, which only trimming shrinks.
pub(super) struct Pools {
    all: Vec<Option<Pool>>,
    /// The pool that `cuMemAllocAsync` uses, per device.
    pub(super) current: Vec<u32>,
}

impl Pools {
    pub(super) fn new(devices: usize) -> Self {
        let default = (0..devices).map(|device| Some(Pool::new(device, 0, false)));
        let graph = (0..devices).map(|device| Some(Pool::new(device, u64::MAX, false)));
        Self { all: default.chain(graph).collect(), current: (0..devices as u32).collect() }
    }

    /// The number of a device's graph pool.
    pub(super) fn graph_pool(&self, device: usize) -> u32 {
        (self.current.len() + device) as u32
    }

    fn is_builtin(&self, pool: u32) -> bool {
        (pool as usize) < 2 * self.current.len()
    }

    pub(super) fn get(&mut self, pool: u32) -> CuResult<&mut Pool> {
        self.all.get_mut(pool as usize).and_then(Option::as_mut).ok_or(CuError::INVALID_VALUE)
    }

    /// The device of a pool.
    pub(super) fn device_of(&self, pool: u32) -> Option<usize> {
        self.all.get(pool as usize).copied().flatten().map(|p| p.device)
    }

    pub(super) fn create(&mut self, device: usize, is_host: bool) -> u32 {
        self.all.push(Some(Pool::new(device, 0, is_host)));
        self.all.len() as u32 - 1
    }

    fn of_device(&self, device: usize) -> Vec<u32> {
        let of_device = |(number, pool): (usize, &Option<Pool>)| {
            pool.filter(|p| p.device == device).map(|_| number as u32)
        };
        self.all.iter().enumerate().filter_map(of_device).collect()
    }
}

impl Pool {
    fn new(device: usize, release_threshold_bytes: u64, is_host: bool) -> Self {
        let figures = Figures::default();
        Self {
            device,
            is_host,
            figures,
            release_threshold_bytes,
            reuse: [1; 3],
            allocations: 0,
            destroyed: false,
        }
    }
}

impl Inner {
    /// Takes what an allocation of `size_bytes` consumes from a pool, which grows if it must.
    pub(super) fn pool_take(&mut self, pool: u32, size_bytes: u64) -> CuResult {
        let p = *self.pools.get(pool)?;
        let size = size_bytes.checked_next_multiple_of(STEP_BYTES).ok_or(CuError::OUT_OF_MEMORY)?;
        let used_bytes = p.figures.used_bytes.checked_add(size).ok_or(CuError::OUT_OF_MEMORY)?;
        let reserved = granules(used_bytes).max(p.figures.reserved_granules);
        if reserved > p.figures.reserved_granules && !p.is_host {
            let (registration, account) = self.account(p.device)?;
            account.take(registration, reserved - p.figures.reserved_granules)?;
        }
        let p = self.pools.get(pool)?;
        p.allocations += 1;
        let f = &mut p.figures;
        (f.used_bytes, f.reserved_granules) = (used_bytes, reserved);
        f.used_high_bytes = f.used_high_bytes.max(used_bytes);
        f.reserved_high_granules = f.reserved_high_granules.max(reserved);
        Ok(())
    }

    /// Returns an allocation to its pool. The pool keeps what it has reserved.
    pub(super) fn pool_return(&mut self, pool: u32, size_bytes: u64) -> CuResult {
        let p = self.pools.get(pool)?;
        p.figures.used_bytes -= size_bytes.next_multiple_of(STEP_BYTES);
        p.allocations -= 1;
        if p.destroyed && p.allocations == 0 { self.drop_pool(pool) } else { Ok(()) }
    }

    /// Gives what is not in use back to the device, but keeps `keep_bytes`.
    pub(super) fn trim(&mut self, pool: u32, keep_bytes: u64) -> CuResult {
        let p = self.pools.get(pool)?;
        let f = &mut p.figures;
        let keep = granules(f.used_bytes).max(granules(keep_bytes)).min(f.reserved_granules);
        let (device, is_host, surplus) = (p.device, p.is_host, f.reserved_granules - keep);
        f.reserved_granules = keep;
        if surplus == 0 || is_host {
            return Ok(());
        }
        let (registration, account) = self.account(device)?;
        account.give(registration, surplus)
    }

    /// A synchronization on a device: its pools shrink to their release thresholds.
    pub(super) fn synchronize(&mut self, device: usize) -> CuResult {
        for pool in self.pools.of_device(device) {
            let threshold = self.pools.get(pool)?.release_threshold_bytes;
            self.trim(pool, threshold)?;
        }
        Ok(())
    }

    /// The last context on a device ends: its pools shrink to nothing.
    pub(super) fn trim_all(&mut self, device: usize) -> CuResult {
        self.pools.of_device(device).into_iter().try_for_each(|pool| self.trim(pool, 0))
    }

    pub(super) fn destroy_pool(&mut self, pool: u32) -> CuResult {
        if self.pools.is_builtin(pool) {
            return Err(CuError::INVALID_VALUE);
        }
        let device = self.pools.get(pool)?.device;
        if self.pools.current[device] == pool {
            self.pools.current[device] = device as u32;
        }
        let p = self.pools.get(pool)?;
        p.destroyed = true;
        if p.allocations == 0 { self.drop_pool(pool) } else { Ok(()) }
    }

    fn drop_pool(&mut self, pool: u32) -> CuResult {
        self.trim(pool, 0)?;
        self.pools.all[pool as usize] = None;
        Ok(())
    }

    /// Makes `pool` the one that `cuMemAllocAsync` uses on its device.
    pub(super) fn set_current_pool(&mut self, device: usize, pool: u32) -> CuResult {
        if self.pools.get(pool)?.device != device {
            return Err(CuError::INVALID_VALUE);
        }
        self.pools.current[device] = pool;
        Ok(())
    }
}

impl Figures {
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_granules * GRANULE_BYTES
    }

    pub(super) fn reserved_high_bytes(&self) -> u64 {
        self.reserved_high_granules * GRANULE_BYTES
    }

    /// Starts a high watermark again; only 0 can be written.
    pub(super) fn reset_reserved_high(&mut self) {
        self.reserved_high_granules = self.reserved_granules;
    }

    pub(super) fn reset_used_high(&mut self) {
        self.used_high_bytes = self.used_bytes;
    }
}
