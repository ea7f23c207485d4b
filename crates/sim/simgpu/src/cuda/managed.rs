//! Memory that migrates: managed memory, and on GPUs with HMM all of the host's. It migrates to a GPU when that GPU uses it.
//! Of the calls that use it, prefetches and fills of linear memory are simulated: a kernel does nothing here, so it touches
//! nothing.
//!
//! A program may use more of it than the GPU has: what does not fit stays on the host. See `state::migration` for what the
//! driver evicts.

use std::collections::BTreeMap;

use super::address_space::Kind;
use super::async_memory::Location;
use super::session::{Inner, session};
use super::{CuError, CuResult, driver_api};
use crate::{GRANULE_BYTES, granules};

/// `CU_DEVICE_CPU`.
const HOST: i32 = -1;

/// Granules of this process that were brought to a device, by number, with the device's ordinal. Some may have been evicted.
#[derive(Default)]
pub(super) struct Migrating(BTreeMap<u64, usize>);

impl Inner {
    /// Moves the pages of a range to a device, or to the host.
    pub(super) fn migrate(&mut self, address: u64, size_bytes: u64, to: Option<usize>) -> CuResult {
        let end = address.checked_add(size_bytes).ok_or(CuError::INVALID_VALUE)?;
        let range = address / GRANULE_BYTES..end.div_ceil(GRANULE_BYTES);
        let mut left = vec![0; self.accounts.len()];
        for (_, &device) in self.migrating.0.range(range.clone()).filter(|(_, device)| Some(**device) != to) {
            left[device] += 1;
        }
        for (device, &count) in left.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (registration, account) = self.account(device)?;
            registration.migrate_out(account.device, account.domain, count)?;
        }
        let Some(device) = to else {
            self.migrating.0.retain(|granule, _| !range.contains(granule));
            return Ok(());
        };
        self.migrating.0.extend(range.map(|granule| (granule, device)));
        let brought = self.migrating.0.values().filter(|on| **on == device).count() as u64;
        let (registration, account) = self.account(device)?;
        // Pages that were resident before and have been evicted come back with the rest.
        let absent = brought.saturating_sub(registration.migrated(account.device, account.domain)?);
        registration.migrate_in(account.device, account.domain, absent.min(granules(size_bytes) + 1))?;
        Ok(())
    }

    /// Whether the range is managed memory; none if it is the driver's and of another kind.
    fn is_managed(&self, address: u64, size_bytes: u64) -> Option<bool> {
        if let Some((start, allocation)) = self.addresses.containing(address) {
            let is_within = address - start + size_bytes <= allocation.size_bytes;
            return (allocation.kind == Kind::Managed && is_within).then_some(true);
        }
        let is_driver_s = self.vmm.mapped(address).is_some() || self.host.size_of(address).is_some();
        (!is_driver_s).then_some(false)
    }

    /// Whether a range may be prefetched to or from a device: managed memory, and with HMM what is no memory of the driver's.
    fn may_migrate(&self, address: u64, size_bytes: u64, hmm: bool) -> bool {
        self.is_managed(address, size_bytes).is_some_and(|managed| managed || hmm)
    }
}

/// `device` is an ordinal or [`HOST`].
fn prefetch(address: u64, size_bytes: u64, device: i32) -> CuResult {
    let session = session()?;
    let mut inner = session.lock();
    let (_, current) = inner.current_device()?;
    let to = if device == HOST { None } else { Some(device as usize) };
    let hmm = match to {
        Some(_) => session.device(device)?.hmm,
        None => session.devices[current].hmm,
    };
    if size_bytes == 0 || !inner.may_migrate(address, size_bytes, hmm) {
        return Err(CuError::INVALID_VALUE);
    }
    inner.migrate(address, size_bytes, to)
}

fn prefetch_to(address: u64, size_bytes: u64, location: Location) -> CuResult {
    let device = if location.is_host() { HOST } else { location.device()? as i32 };
    prefetch(address, size_bytes, device)
}

/// A fill by the current device.
fn fill(address: u64, count: usize, bytes_each: u64) -> CuResult {
    let session = session()?;
    let mut inner = session.lock();
    let (_, device) = inner.current_device()?;
    let size_bytes = (count as u64).saturating_mul(bytes_each);
    if size_bytes > 0 && inner.may_migrate(address, size_bytes, session.devices[device].hmm) {
        inner.migrate(address, size_bytes, Some(device))?;
    }
    Ok(())
}

driver_api! {
    fn cuMemPrefetchAsync(address: u64, size_bytes: usize, device: i32, _stream: u64) {
        prefetch(address, size_bytes as u64, device)
    }
    fn cuMemPrefetchAsync_ptsz(address: u64, size_bytes: usize, device: i32, _stream: u64) {
        prefetch(address, size_bytes as u64, device)
    }
    fn cuMemPrefetchAsync_v2(address: u64, size_bytes: usize, location: Location, _flags: u32, _stream: u64) {
        prefetch_to(address, size_bytes as u64, location)
    }
    fn cuMemPrefetchAsync_v2_ptsz(address: u64, size_bytes: usize, location: Location, _flags: u32, _stream: u64) {
        prefetch_to(address, size_bytes as u64, location)
    }
}

/// Fills of linear memory by the size of their elements. Those that are asynchronous have a stream after the count, which is
/// ignored.
macro_rules! fills {
    ($(fn $name:ident($bytes_each:literal);)*) => {driver_api! {
        $(fn $name(address: u64, _value: u32, count: usize) { fill(address, count, $bytes_each) })*
    }};
}

fills! {
    fn cuMemsetD8Async(1);
    fn cuMemsetD8Async_ptsz(1);
    fn cuMemsetD8_v2(1);
    fn cuMemsetD8_v2_ptds(1);
    fn cuMemsetD16Async(2);
    fn cuMemsetD16Async_ptsz(2);
    fn cuMemsetD16_v2(2);
    fn cuMemsetD16_v2_ptds(2);
    fn cuMemsetD32Async(4);
    fn cuMemsetD32Async_ptsz(4);
    fn cuMemsetD32_v2(4);
    fn cuMemsetD32_v2_ptds(4);
}
