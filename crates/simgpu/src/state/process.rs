//! Processes that hold device memory.

use super::file::{Guard, Sim};
use super::layout::{MAX_PROCESSES, Slot};

/// Why memory could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConsumeError {
    /// The free memory of the domain does not suffice; nothing was taken.
    #[error("out of device memory")]
    OutOfMemory,
    /// The process closed the driver's descriptors and with them lost everything it held.
    #[error("the process's registration is gone")]
    Lost,
    /// Every slot is held by a living process.
    #[error("more than {MAX_PROCESSES} processes hold contexts")]
    TooManyProcesses,
}

/// This process's place in the state. It ends with the process; what it holds is then given back by [`Guard::sweep`].
pub struct Registration {
    sim: &'static Sim,
    slot: usize,
    generation: u64,
}

impl Sim {
    /// Gives this process a slot.
    pub fn register(&'static self) -> Result<Registration, ConsumeError> {
        let mut state = self.lock();
        let slot = match self.take_free_slot(&state) {
            Some(slot) => slot,
            None => {
                state.sweep();
                self.take_free_slot(&state).ok_or(ConsumeError::TooManyProcesses)?
            }
        };
        let generation = state.next_generation;
        state.next_generation += 1;
        state.slot_end = state.slot_end.max(slot as u32 + 1);
        state.slots[slot] = Slot { generation, pid: std::process::id(), ..Slot::FREE };
        Ok(Registration { sim: self, slot, generation })
    }

    /// A free slot whose lock byte this process now holds.
    fn take_free_slot(&self, state: &Guard) -> Option<usize> {
        let mut free = (0..MAX_PROCESSES).filter(|&slot| state.slots[slot].generation == 0);
        free.find(|&slot| self.locks.take(slot).is_ok())
    }
}

impl Registration {
    /// Takes memory in a domain of a device, all or nothing.
    pub fn consume(&self, device: usize, domain: usize, granules: u64) -> Result<(), ConsumeError> {
        let mut state = self.locked()?;
        if !state.try_take(self.slot, device, domain, granules) {
            state.sweep();
            if !state.try_take(self.slot, device, domain, granules) {
                return Err(ConsumeError::OutOfMemory);
            }
        }
        Ok(())
    }

    /// Gives back memory taken with [`Registration::consume`].
    pub fn give_back(&self, device: usize, domain: usize, granules: u64) -> Result<(), ConsumeError> {
        let mut state = self.locked()?;
        let held = &mut state.slots[self.slot].held_granules[device][domain];
        let given = u32::try_from(granules).unwrap_or(u32::MAX).min(*held);
        *held -= given;
        state.devices[device].used_granules[domain] -= given;
        Ok(())
    }

    /// Granules in use in a domain of a device. Other processes' deaths are noticed; for this one no question is needed.
    pub fn used(&self, device: usize, domain: usize) -> u64 {
        let mut state = self.sim.lock();
        state.sweep_all_but(Some(self.slot));
        u64::from(state.devices[device].used_granules[domain])
    }

    fn locked(&self) -> Result<Guard, ConsumeError> {
        let state = self.sim.lock();
        if state.slots[self.slot].generation == self.generation { Ok(state) } else { Err(ConsumeError::Lost) }
    }
}

impl Guard {
    /// Gives back what dead processes hold.
    pub fn sweep(&mut self) {
        self.sweep_all_but(None);
    }

    fn sweep_all_but(&mut self, own: Option<usize>) {
        for slot in (0..(self.slot_end as usize).min(MAX_PROCESSES)).filter(|&slot| Some(slot) != own) {
            if self.slots[slot].generation != 0 && self.sim.locks.holder(slot).is_none() {
                self.release_slot(slot);
            }
        }
    }

    /// The pid of the process in `slot`, as seen from this process's pid namespace where possible.
    pub fn pid_of(&self, slot: usize) -> u32 {
        self.sim.locks.holder(slot).filter(|&pid| pid != 0).unwrap_or(self.slots[slot].pid)
    }

    fn try_take(&mut self, slot: usize, device: usize, domain: usize, granules: u64) -> bool {
        let d = &mut self.devices[device];
        let free = d.capacity_granules[domain].saturating_sub(d.used_granules[domain]);
        let Ok(granules) = u32::try_from(granules) else { return false };
        if granules > free {
            return false;
        }
        d.used_granules[domain] += granules;
        self.slots[slot].held_granules[device][domain] += granules;
        true
    }
}
