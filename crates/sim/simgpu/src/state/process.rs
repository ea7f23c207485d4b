//! Processes that hold device memory.

use super::file::{Sim, StateGuard};
use super::groups;
use super::layout::{MAX_PROCESSES, Slot};
use super::pids;

/// Why memory could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConsumeError {
    /// The free memory of the domain does not suffice; nothing was taken.
    #[error("out of device memory")]
    OutOfMemory,
    /// The machine was started again while the process ran.
    #[error("the process's registration is gone")]
    Lost,
    /// Every slot is held by a living process.
    #[error("more than {MAX_PROCESSES} processes hold contexts")]
    TooManyProcesses,
}

/// This process's slot in the state. It ends with the process; what it holds is then given back by [`Sim::swept`].
pub struct Registration {
    sim: &'static Sim,
    pub(super) slot: usize,
    generation: u64,
}

impl Sim {
    /// Gives this process a slot.
    pub fn register(&'static self) -> Result<Registration, ConsumeError> {
        let registered = self.try_register().or_else(|| {
            self.sweep(None);
            self.try_register()
        });
        let registration = registered.ok_or(ConsumeError::TooManyProcesses)?;
        crate::time::inherit_nothing(self, registration.slot);
        Ok(registration)
    }

    fn try_register(&'static self) -> Option<Registration> {
        let mut state = self.lock();
        let slot = self.take_free_slot(&state)?;
        self.liveness_of(slot).hold().ok()?;
        self.orders_of(slot).reset();
        let generation = state.next_generation;
        state.next_generation += 1;
        state.slot_end = state.slot_end.max(slot as u32 + 1);
        let (pid, start_ticks) = (std::process::id(), pids::own_start_ticks());
        let pid_namespace = pids::own_namespace();
        // A limit that is set later counts it too.
        let groups = if state.has_limits() { groups::own_groups() } else { Default::default() };
        state.slots[slot] = Slot { generation, pid, start_ticks, pid_namespace, groups, ..Slot::FREE };
        Some(Registration { sim: self, slot, generation })
    }

    fn take_free_slot(&self, state: &StateGuard) -> Option<usize> {
        let mut free = (0..MAX_PROCESSES).filter(|&slot| state.slots[slot].generation == 0);
        free.find(|&slot| !self.liveness_of(slot).is_held())
    }
}

impl Registration {
    /// Takes memory in a domain of a device, all or nothing.
    pub fn consume(&self, device: usize, domain: usize, granules: u64) -> Result<(), ConsumeError> {
        if self.locked()?.try_take(self.slot, device, domain, granules) {
            return Ok(());
        }
        self.sim.sweep(None);
        if self.locked()?.try_take(self.slot, device, domain, granules) {
            Ok(())
        } else {
            Err(ConsumeError::OutOfMemory)
        }
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

    /// Changes which part of the memory that this process holds is the driver's own for its contexts.
    pub fn set_unattributed(
        &self,
        device: usize,
        domain: usize,
        change: impl FnOnce(u32) -> u32,
    ) -> Result<(), ConsumeError> {
        let mut state = self.locked()?;
        let known = &mut state.slots[self.slot].unattributed_granules[device][domain];
        *known = change(*known);
        Ok(())
    }

    /// The slot and its generation: this process, for as long as it lives.
    pub fn identity(&self) -> (usize, u64) {
        (self.slot, self.generation)
    }

    /// Granules in use in a domain of a device. Other processes' deaths are noticed; for this one no question is needed.
    pub fn used(&self, device: usize, domain: usize) -> u64 {
        self.sim.sweep(Some(self.slot));
        u64::from(self.sim.lock().devices[device].used_granules[domain])
    }

    pub(super) fn sim(&self) -> &'static Sim {
        self.sim
    }

    pub(super) fn locked(&self) -> Result<StateGuard, ConsumeError> {
        let state = self.sim.lock();
        if state.slots[self.slot].generation == self.generation { Ok(state) } else { Err(ConsumeError::Lost) }
    }
}

impl Sim {
    /// Whether the process that a [`Registration::identity`] names still lives.
    pub fn is_alive(&'static self, slot: usize, generation: u64) -> bool {
        slot < MAX_PROCESSES
            && self.lock().slots[slot].generation == generation
            && self.liveness_of(slot).is_held()
    }

    /// Gives back what dead processes hold, and takes the lock. Liveness is asked under the lock: a witness must not report a
    /// process that has died meanwhile together with the one that already uses its memory.
    pub fn swept(&'static self) -> StateGuard {
        let mut state = self.lock();
        for (slot, _) in state.in_use(None) {
            if !self.liveness_of(slot).is_held() {
                state.release_slot(slot);
            }
        }
        state
    }

    /// Gives back what dead processes hold; `own` is a slot known to be alive. For callers that need memory and no consistent
    /// picture: the kernel is asked without the lock, since with many processes that takes a while, and a slot that changes hands
    /// meanwhile is recognized by its generation.
    fn sweep(&'static self, own: Option<usize>) {
        let in_use = self.lock().in_use(own);
        let dead: Vec<_> =
            in_use.into_iter().filter(|(slot, _)| !self.liveness_of(*slot).is_held()).collect();
        if dead.is_empty() {
            return;
        }
        let mut state = self.lock();
        for (slot, generation) in dead {
            if state.slots[slot].generation == generation {
                state.release_slot(slot);
            }
        }
    }
}

impl StateGuard {
    /// Slots in use, but for `own`, with their generations.
    fn in_use(&self, own: Option<usize>) -> Vec<(usize, u64)> {
        let others = self.processes().filter(|(slot, _)| Some(*slot) != own);
        others.map(|(slot, process)| (slot, process.generation)).collect()
    }

    /// The pid of the process in `slot`, as seen from this process's pid namespace where possible.
    pub fn pid_of(&self, slot: usize) -> u32 {
        pids::pid_from_here(&self.slots[slot])
    }

    fn try_take(&mut self, slot: usize, device: usize, domain: usize, granules: u64) -> bool {
        if !self.is_within_limits(slot, device, granules) {
            return false;
        }
        let Ok(granules) = u32::try_from(granules) else { return false };
        let d = &self.devices[device];
        let free = d.capacity_granules[domain].saturating_sub(d.used_granules[domain]);
        if granules > free {
            if granules > d.capacity_granules[domain].saturating_sub(self.pinned(device, domain)) {
                return false;
            }
            self.make_room(slot, device, domain, granules);
        }
        let d = &mut self.devices[device];
        d.used_granules[domain] += granules;
        self.slots[slot].held_granules[device][domain] += granules;
        true
    }
}
