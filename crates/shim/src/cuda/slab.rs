//! Small linear memory: the driver packs allocations of up to 1 MiB into slabs of 2 MiB, none across two, and a slab lives as long
//! as one of its allocations.
//!
//! The address shows the slab, so it is charged with its first allocation and given back with its last one, however the driver packs.
//! Before a call, a granule is reserved in case that the driver makes a new slab. In a slice without a granule left, an allocation is tried
//! only if a slab has room for it, and is given up if the driver has made a new one nevertheless.

use cantle_ledger::GRANULE_BYTES;

use super::Address;
use super::charge::{Reservation, SliceGpu};
use crate::function::Status;
use crate::holdings::small_size;
use crate::process::process;
use crate::table::Entry;

/// What `bytes` more of small memory may take. `None`: nothing, because it goes into a slab or is given up.
#[inline]
pub(super) fn reserve(gpu: SliceGpu, bytes: u64) -> Result<Option<Reservation>, Status> {
    match gpu.try_reserve(GRANULE_BYTES) {
        Ok(reservation) => Ok(Some(reservation)),
        Err(_) if has_room(gpu, bytes) => Ok(None),
        Err(_) => gpu.reserve(GRANULE_BYTES).map(Some),
    }
}

#[cold]
fn has_room(gpu: SliceGpu, bytes: u64) -> bool {
    let mut found = false;
    gpu.process().slabs.each(|slab| {
        found |= slab.gpu() == gpu.index && slab.bytes() + small_size(bytes) <= GRANULE_BYTES;
    });
    found
}

/// Charges the slab of an allocation that the driver has just made: false if that can't be charged. Without a reservation, it should be a
/// slab that is charged already; a new one is charged if there is room after all.
#[inline]
pub(super) fn enter(gpu: SliceGpu, address: Address, bytes: u64, reservation: Option<Reservation>) -> bool {
    let slabs = &gpu.process().slabs;
    let join = |slab: &mut Entry| {
        slab.context += 1;
        slab.set_bytes(slab.bytes() + small_size(bytes));
    };
    match reservation {
        None => {
            slabs.update(key(address), join)
                || gpu.reserve(GRANULE_BYTES).is_ok_and(|reserved| enter(gpu, address, bytes, Some(reserved)))
        }
        Some(reservation) => {
            match slabs.join(Entry::new(key(address), 1, gpu.index, small_size(bytes)), join) {
                // The granule is the new slab's.
                Ok(false) => {
                    reservation.keep();
                    true
                }
                Ok(true) => true,
                Err(_) => false,
            }
        }
    }
}

/// An allocation has been freed, and perhaps its slab.
#[inline]
pub(super) fn leave(allocation: &Entry) {
    let Some(process) = process() else { return };
    let last = process.slabs.remove_if(key(allocation.key), |slab| {
        slab.context = slab.context.saturating_sub(1);
        slab.set_bytes(slab.bytes().saturating_sub(small_size(allocation.bytes())));
        slab.context == 0
    });
    if let Some(slab) = last
        && let Some(gpu) = SliceGpu::charged(slab.gpu())
    {
        gpu.release(GRANULE_BYTES);
    }
}

/// The slab of an address; none is the first, which begins at 0.
const fn key(address: Address) -> u64 {
    address / GRANULE_BYTES
}
