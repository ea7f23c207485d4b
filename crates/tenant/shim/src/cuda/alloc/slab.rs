//! Small linear memory: the driver packs allocations of up to 1 MiB into slabs of 2 MiB, none across two, and a slab lives as long
//! as one of its allocations.
//!
//! The address shows the slab, so it is charged with its first allocation and given back with its last one, however the driver packs.
//! Before each call, a granule is reserved in case that the driver makes a new slab: only afterwards is it known whether it has.

use cantle_ledger::GRANULE_BYTES;

use super::release;
use super::reservation::Reservation;
use super::slice_gpu::SliceGpu;
use crate::cuda::Address;
use crate::process::process;
use crate::table::Entry;

/// Charges the slab of an allocation that the driver has just made: false if that cannot be recorded. A new slab gets
/// `granule`, which was reserved for it.
#[inline]
pub(crate) fn enter(gpu: SliceGpu, address: Address, granule: Reservation) -> bool {
    let one_more = |slab: &mut Entry| slab.context += 1;
    match gpu.process().slabs.join(Entry::new(key(address), 1, gpu.index, GRANULE_BYTES), one_more) {
        Ok(false) => {
            granule.keep();
            true
        }
        Ok(true) => true,
        Err(_) => false,
    }
}

/// An allocation has been freed, and perhaps its slab.
#[inline]
pub(crate) fn leave(allocation: &Entry) {
    let Some(process) = process() else { return };
    let last = process.slabs.remove_if(key(allocation.key), |slab| {
        slab.context = slab.context.saturating_sub(1);
        slab.context == 0
    });
    if let Some(slab) = last {
        release::charged(&slab);
    }
}

/// The slab of an address; none is the first, which begins at 0.
const fn key(address: Address) -> u64 {
    address / GRANULE_BYTES
}
