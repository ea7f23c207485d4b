//! Counts what this process consumes of one device, by the rule in the crate's documentation.

use super::CuResult;
use super::slab::SMALL_BYTES;
use crate::state::Registration;
use crate::{GRANULE_BYTES, granules};

const SMALL_STEP_BYTES: u64 = 512;

/// The account of one visible device.
#[derive(Debug)]
pub(super) struct Account {
    /// Index of the device in the machine.
    pub(super) device: usize,
    /// The memory of the device that this process may use.
    pub(super) domain: usize,
    /// Sum of the small allocations, each rounded up to 512 B.
    small_bytes: u64,
}

impl Account {
    pub(super) fn new(device: usize, domain: usize) -> Self {
        Self { device, domain, small_bytes: 0 }
    }

    /// Takes whole granules.
    pub(super) fn take(&self, registration: &Registration, granules: u64) -> CuResult {
        Ok(registration.consume(self.device, self.domain, granules)?)
    }

    /// Gives whole granules back.
    pub(super) fn give(&self, registration: &Registration, granules: u64) -> CuResult {
        Ok(registration.give_back(self.device, self.domain, granules)?)
    }

    /// Takes what a context consumes: its own memory, and the driver's for it, which no process has in NVML's list.
    pub(super) fn take_context(&self, registration: &Registration, own: u64, unattributed: u64) -> CuResult {
        self.take(registration, own + unattributed)?;
        Ok(registration
            .set_unattributed(self.device, self.domain, |known| known.saturating_add(unattributed as u32))?)
    }

    /// Gives back what [`Account::take_context`] took.
    pub(super) fn give_context(&self, registration: &Registration, own: u64, unattributed: u64) -> CuResult {
        self.give(registration, own + unattributed)?;
        Ok(registration
            .set_unattributed(self.device, self.domain, |known| known.saturating_sub(unattributed as u32))?)
    }

    /// Bytes in use on the device, by all processes.
    pub(super) fn used_bytes(&self, registration: &Registration) -> u64 {
        registration.used(self.device, self.domain) * GRANULE_BYTES
    }

    /// Takes what an allocation of `bytes` consumes.
    pub(super) fn allocate(&mut self, registration: &Registration, bytes: u64) -> CuResult {
        if bytes > SMALL_BYTES {
            return self.take(registration, granules(bytes));
        }
        let sum = self.small_bytes + bytes.next_multiple_of(SMALL_STEP_BYTES);
        let more = granules(sum) - granules(self.small_bytes);
        if more > 0 {
            self.take(registration, more)?;
        }
        self.small_bytes = sum;
        Ok(())
    }

    /// Gives back what an allocation of `bytes` consumed.
    pub(super) fn free(&mut self, registration: &Registration, bytes: u64) -> CuResult {
        if bytes > SMALL_BYTES {
            return self.give(registration, granules(bytes));
        }
        let sum = self.small_bytes - bytes.next_multiple_of(SMALL_STEP_BYTES);
        let less = granules(self.small_bytes) - granules(sum);
        self.small_bytes = sum;
        if less > 0 { self.give(registration, less) } else { Ok(()) }
    }
}
