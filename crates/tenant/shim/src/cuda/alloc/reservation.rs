//! From the charge to the allocation: memory is charged first, and allocated then.

use super::slice_gpu::{Balance, SliceGpu};
use crate::cuda::OUT_OF_MEMORY;
use crate::function::Status;

/// Memory that is charged and not allocated yet. Given back on drop, unless it was kept.
pub(crate) struct Reservation {
    gpu: SliceGpu,
    bytes: u64,
}

impl Reservation {
    /// For `bytes` that are charged to the GPU.
    #[inline]
    pub(super) const fn new(gpu: SliceGpu, bytes: u64) -> Self {
        Self { gpu, bytes }
    }

    /// Changes the reservation to what the driver really took.
    #[inline]
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), Status> {
        if bytes == self.bytes {
            return Ok(());
        }
        let mut balance = self.gpu.lock().ok_or(OUT_OF_MEMORY)?;
        let Balance { holdings, account, .. } = &mut balance;
        let resized = holdings.resize(account, self.bytes, bytes);
        resized.map_err(|over| balance.refuse(over, bytes))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Index of the GPU in the slice.
    pub(crate) const fn gpu(&self) -> usize {
        self.gpu.index
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The allocation has been made: from now on it is charged until it is freed.
    pub(crate) fn keep(self) -> (usize, u64) {
        let kept = (self.gpu.index, self.bytes);
        core::mem::forget(self);
        kept
    }
}

impl Drop for Reservation {
    #[inline]
    fn drop(&mut self) {
        self.gpu.release(self.bytes);
    }
}
