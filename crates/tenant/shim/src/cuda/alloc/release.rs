//! The way back: each kind of memory gives back what was charged for it.

use super::slab;
use super::slice_gpu::SliceGpu;
use crate::holdings::SMALL_BYTES;
use crate::table::Entry;

/// Gives back what was charged for an allocation of this process.
#[inline]
pub(crate) fn charged(allocation: &Entry) {
    // Without a slot in the ledger nothing is charged, so there is nothing to give back.
    if let Some(gpu) = SliceGpu::charged(allocation.gpu()) {
        gpu.release(allocation.bytes());
    }
}

/// Gives back what was charged for linear memory of this process.
#[inline]
pub(crate) fn linear(allocation: &Entry) {
    if allocation.is_managed() {
        if let Some(gpu) = SliceGpu::charged(allocation.gpu()) {
            gpu.release_managed(allocation.bytes());
        }
    } else if allocation.bytes() <= SMALL_BYTES {
        slab::leave(allocation);
    } else {
        charged(allocation);
    }
}
