//! Memory that migrates: managed memory, and with HMM what `malloc` gives. Its pages are resident on a GPU while that GPU
//! uses them. They are evicted for another process's migrating pages, or for an allocation, which has precedence over all of
//! them.
//!
//! The driver's figures of a process do not contain them, because NVIDIA's kernel module for unified memory holds them.
//! Only the number of evicted pages is simulated, not their identity.

use super::process::{ConsumeError, Registration};
use super::{Slot, StateGuard};

impl Registration {
    /// Granules of this process that are resident in a domain of a device.
    pub fn migrated(&self, device: usize, domain: usize) -> Result<u64, ConsumeError> {
        Ok(u64::from(self.locked()?.slots[self.slot].migrated_granules[device][domain]))
    }

    /// Makes granules resident: as many as there is room for once others' have been evicted.
    pub fn migrate_in(&self, device: usize, domain: usize, granules: u64) -> Result<(), ConsumeError> {
        let mut state = self.locked()?;
        let wanted = u32::try_from(granules).unwrap_or(u32::MAX);
        state.make_room(self.slot, device, domain, wanted);
        let d = &mut state.devices[device];
        let free = d.capacity_granules[domain].saturating_sub(d.used_granules[domain]);
        let taken = wanted.min(free);
        d.used_granules[domain] += taken;
        state.slots[self.slot].migrated_granules[device][domain] += taken;
        Ok(())
    }

    /// Granules leave a domain of a device: at most what is still resident.
    pub fn migrate_out(&self, device: usize, domain: usize, granules: u64) -> Result<(), ConsumeError> {
        self.locked()?.evict(self.slot, device, domain, u32::try_from(granules).unwrap_or(u32::MAX));
        Ok(())
    }
}

impl StateGuard {
    /// Evicts what is missing for `granules`: what others have resident first, then what `own` has.
    pub(super) fn make_room(&mut self, own: usize, device: usize, domain: usize, granules: u32) {
        let d = &self.devices[device];
        let free = d.capacity_granules[domain].saturating_sub(d.used_granules[domain]);
        let mut missing = granules.saturating_sub(free);
        if missing == 0 {
            return;
        }
        let has_some = |process: &Slot| process.migrated_granules[device][domain] > 0;
        let evictable = self.processes().filter(|(_, process)| has_some(process)).map(|(slot, _)| slot);
        let mut slots: Vec<usize> = evictable.collect();
        slots.sort_by_key(|&slot| slot == own);
        for slot in slots {
            missing -= self.evict(slot, device, domain, missing);
        }
    }

    /// Granules of a domain that cannot be evicted.
    pub(super) fn pinned(&self, device: usize, domain: usize) -> u32 {
        self.processes().map(|(_, process)| process.held_granules[device][domain]).sum()
    }

    /// Evicts at most `granules` of a process, and returns how many.
    fn evict(&mut self, slot: usize, device: usize, domain: usize, granules: u32) -> u32 {
        let resident = &mut self.slots[slot].migrated_granules[device][domain];
        let gone = granules.min(*resident);
        *resident -= gone;
        let used = &mut self.devices[device].used_granules[domain];
        *used = used.saturating_sub(gone);
        gone
    }
}
