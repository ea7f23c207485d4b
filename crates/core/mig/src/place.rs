//! Places on one GPU: which are free, and how taking or returning one changes the instances.

use crate::{GpuGeometry, Instance};

/// NVML's id of an instance that does not exist yet.
pub const PLANNED: u32 = u32::MAX;

impl GpuGeometry {
    /// Is there a place for an instance of the profile at position `profile`, free instances counting as room: at `start`,
    /// or anywhere if none is given?
    #[must_use]
    pub fn has_place(&self, profile: usize, start: Option<u32>) -> bool {
        let wanted = &self.table.profiles[profile];
        let busy = || self.instances.iter().filter(|instance| instance.busy);
        let same = busy().filter(|instance| instance.profile == profile).count();
        let taken = busy().fold(0, |taken, instance| taken | self.units_of(instance));
        same < wanted.max_instances as usize
            && self.has_engines(profile)
            && wanted.starts.iter().any(|at| {
                start.is_none_or(|start| start == *at) && taken & self.table.units_at(profile, *at) == 0
            })
    }

    /// Are the media engines for an instance of the profile at position `profile` left, free instances counting as room?
    #[must_use]
    pub fn has_engines(&self, profile: usize) -> bool {
        let busy = self.instances.iter().filter(|instance| instance.busy);
        self.table.has_engines_for(busy.map(|instance| instance.profile).chain([profile]))
    }

    /// Takes a place. Free instances that are in its way are gone, one that is just right is busy. A busy one at the same place
    /// is the same instance: it must not count twice towards the most of its profile and of the media engines.
    pub fn occupy(&mut self, profile: usize, start: u32) {
        if self.instances.iter().any(|instance| instance.is_held_at(profile, start)) {
            return;
        }
        let place = self.table.units_at(profile, start);
        let table = &self.table;
        self.instances.retain(|instance| {
            instance.busy || table.units_at(instance.profile, instance.start) & place == 0
        });
        self.instances.push(Instance { id: PLANNED, profile, start, busy: true });
    }

    /// Gives a taken place back.
    pub fn release(&mut self, profile: usize, start: u32) {
        if let Some(at) = self.instances.iter().position(|instance| instance.is_held_at(profile, start)) {
            self.instances.remove(at);
        }
    }

    /// Units that busy instances hold.
    #[must_use]
    pub fn busy_units(&self) -> u32 {
        let busy = self.instances.iter().filter(|instance| instance.busy);
        busy.fold(0, |taken, instance| taken | self.units_of(instance))
    }

    /// The units of an instance, as a bit mask.
    #[must_use]
    pub fn units_of(&self, instance: &Instance) -> u32 {
        self.table.units_at(instance.profile, instance.start)
    }
}
