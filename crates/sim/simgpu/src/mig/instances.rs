//! Creating and destroying GPU instances and compute instances.

use super::{ComputeInstanceProfile, GpuInstanceProfile, Names, ProfileTable, memory_mib, table};
use crate::state::{SimComputeInstance, SimGpu, SimGpuInstance, WHOLE_GPU};

/// Why the driver refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MigRefusal {
    /// The GPU has no MIG, or its MIG mode is off.
    #[error("MIG is not supported or off")]
    NotSupported,
    /// No such profile, placement or instance.
    #[error("no such profile, placement or instance")]
    InvalidArgument,
    /// The placement is taken, or there are as many instances as there may be.
    #[error("no space for another instance")]
    InsufficientResources,
    /// Something still uses it.
    #[error("in use")]
    InUse,
}

/// The outcome of a change of MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModeChange {
    /// It is done.
    Done,
    /// It will be done when it is requested again while no process uses the GPU.
    Pending,
}

/// The order in which the driver fills an empty 7-slice GPU with instances of one slice if no placement is given.
const DEFAULT_STARTS_ONE_SLICE: &[u32] = &[6, 4, 5, 0, 1, 2, 3];

impl SimGpu {
    fn mig(&self) -> Result<&'static ProfileTable, MigRefusal> {
        if self.mig_enabled == 0 {
            return Err(MigRefusal::NotSupported);
        }
        table(self.model()).ok_or(MigRefusal::NotSupported)
    }

    /// A profile by id.
    pub fn profile(&self, id: u32) -> Result<&'static GpuInstanceProfile, MigRefusal> {
        let profiles = self.mig()?.profiles;
        profiles.iter().find(|p| p.id == id).ok_or(MigRefusal::InvalidArgument)
    }

    /// The GPU instances, by id.
    pub fn instances(&self) -> impl Iterator<Item = (usize, &'static GpuInstanceProfile, &SimGpuInstance)> {
        let profiles = table(self.model()).map_or(&[][..], |t| t.profiles);
        let existing = self.instances.iter().enumerate();
        existing.filter_map(move |(id, i)| Some((id, profiles.get((i.profile as usize).checked_sub(1)?)?, i)))
    }

    /// One GPU instance.
    pub fn instance(&self, id: usize) -> Result<(&'static GpuInstanceProfile, &SimGpuInstance), MigRefusal> {
        let found = self.instances().find(|(found, ..)| *found == id);
        found.map(|(_, profile, instance)| (profile, instance)).ok_or(MigRefusal::InvalidArgument)
    }

    /// Turns MIG mode on or off, if no process uses the GPU; `opened`: a process has it open.
    pub fn set_mig_mode(&mut self, on: bool, opened: bool) -> Result<ModeChange, MigRefusal> {
        table(self.model()).ok_or(MigRefusal::NotSupported)?;
        self.mig_pending = u32::from(on);
        let busy = self.used_granules.iter().any(|&used| used > 0) || self.instances().next().is_some();
        if (busy || opened) && self.mig_pending != self.mig_enabled {
            return Ok(ModeChange::Pending);
        }
        self.mig_enabled = self.mig_pending;
        Ok(ModeChange::Done)
    }

    /// Does a change of MIG mode reset the GPU? Hopper and newer do without.
    pub fn resets_for_mig(&self) -> bool {
        self.model().capability.0 < 9
    }

    /// The driver is loaded again: there are no instances, and the mode that was requested last is the mode.
    pub fn reload(&mut self) {
        for id in 0..self.instances.len() {
            self.instances[id] = SimGpuInstance::NONE;
            self.capacity_granules[id + 1] = 0;
        }
        self.mig_enabled = self.mig_pending;
    }

    /// Whether an instance of `profile` can start at `start` now.
    fn free_at(&self, profile: &GpuInstanceProfile, start: u32) -> bool {
        self.instances().all(|(_, p, i)| start + profile.size <= i.start || i.start + p.size <= start)
    }

    /// Are the media engines for one more instance of `profile` left? The GPU has as many of each kind as the profile with the most;
    /// where published figures contradict that (as many plain instances as there may be have more), nothing is refused.
    fn has_engines_for(&self, profile: &GpuInstanceProfile) -> bool {
        let profiles = table(self.model()).map_or(&[][..], |t| t.profiles);
        let kinds: [fn(&GpuInstanceProfile) -> u32; 4] =
            [|p| p.decoders, |p| p.encoders, |p| p.jpeg, |p| p.ofa];
        kinds.iter().all(|count| {
            let there = profiles.iter().map(count).max().unwrap_or(0);
            let plain = profiles.iter().filter(|p| !p.name.contains(['+', '-']));
            let is_all = plain.map(|p| count(p) * p.max_instances).all(|all| all <= there);
            let taken: u32 = self.instances().map(|(_, p, _)| count(p)).sum();
            !is_all || taken + count(profile) <= there
        })
    }

    /// How many more instances of a profile fit.
    pub fn remaining(&self, profile: &GpuInstanceProfile) -> u32 {
        let existing = self.instances().filter(|(_, p, _)| p.id == profile.id).count() as u32;
        let mut next = 0;
        let fits = |&&start: &&u32| {
            let fits = start >= next && self.free_at(profile, start);
            if fits {
                next = start + profile.size;
            }
            fits
        };
        (profile.starts.iter().filter(fits).count() as u32)
            .min(profile.max_instances.saturating_sub(existing))
    }

    /// Creates a GPU instance, at a given placement or at the driver's choice; returns its id.
    pub fn create_instance(
        &mut self,
        profile_id: u32,
        start: Option<u32>,
        names: Names,
    ) -> Result<usize, MigRefusal> {
        let table = self.mig()?;
        let profile = self.profile(profile_id)?;
        if start.is_some_and(|start| !profile.starts.contains(&start)) {
            return Err(MigRefusal::InvalidArgument);
        }
        let existing = self.instances().filter(|(_, p, _)| p.id == profile_id).count() as u32;
        let preferred = if profile.starts.len() == 7 { DEFAULT_STARTS_ONE_SLICE } else { profile.starts };
        let place = match start {
            Some(start) => self.free_at(profile, start).then_some(start),
            None => preferred.iter().copied().find(|&start| self.free_at(profile, start)),
        };
        let is_left = existing < profile.max_instances && self.has_engines_for(profile);
        let start = place.filter(|_| is_left).ok_or(MigRefusal::InsufficientResources)?;
        let (id, pipe) = (names.id(table, profile, start), names.pipe(self));
        let number = table.profiles.iter().position(|p| p.id == profile_id).unwrap_or_default() as u32 + 1;
        self.instances[id] = SimGpuInstance { profile: number, start, pipe, ..SimGpuInstance::NONE };
        self.capacity_granules[id + 1] = memory_mib(self.model(), table, profile) / 2;
        Ok(id)
    }

    /// Destroys a GPU instance without compute instances.
    pub fn destroy_instance(&mut self, id: usize) -> Result<(), MigRefusal> {
        let (_, instance) = self.instance(id)?;
        if instance.compute.iter().any(|c| c.profile != 0) || self.used_granules[id + 1] > 0 {
            return Err(MigRefusal::InUse);
        }
        self.instances[id] = SimGpuInstance::NONE;
        self.capacity_granules[id + 1] = 0;
        Ok(())
    }

    /// The compute instances of a GPU instance, by id.
    pub fn compute_instances(
        &self,
        id: usize,
    ) -> Result<
        impl Iterator<Item = (usize, &'static ComputeInstanceProfile, SimComputeInstance)> + '_,
        MigRefusal,
    > {
        let (profile, instance) = self.instance(id)?;
        let existing = instance.compute.iter().enumerate();
        Ok(existing
            .filter_map(|(ci, c)| Some((ci, profile.compute.get((c.profile as usize).checked_sub(1)?)?, *c))))
    }

    /// The start of the next compute instance of a profile in a GPU instance, and the number of instances that still
    /// fit.
    pub fn free_compute(
        &self,
        id: usize,
        profile: &ComputeInstanceProfile,
    ) -> Result<(Option<u32>, u32), MigRefusal> {
        let (gpu_profile, _) = self.instance(id)?;
        let existing: Vec<_> = self.compute_instances(id)?.collect();
        let same = existing.iter().filter(|(_, p, _)| p.id == profile.id).count() as u32;
        let free = |start: &u32| {
            existing.iter().all(|(_, p, c)| start + profile.slices <= c.start || c.start + p.slices <= *start)
        };
        let starts = (0..=gpu_profile.compute_slices - profile.slices).step_by(profile.slices as usize);
        let free: Vec<u32> = starts.filter(free).collect();
        let more = (free.len() as u32).min(profile.max_instances.saturating_sub(same));
        Ok((free.first().copied().filter(|_| more > 0), more))
    }

    /// A compute instance profile of a GPU instance, by id.
    pub fn compute_profile(
        &self,
        id: usize,
        profile_id: u32,
    ) -> Result<(usize, &'static ComputeInstanceProfile), MigRefusal> {
        let (profile, _) = self.instance(id)?;
        profile
            .compute
            .iter()
            .enumerate()
            .find(|(_, c)| c.id == profile_id)
            .ok_or(MigRefusal::InvalidArgument)
    }

    /// Creates a compute instance; returns its id.
    pub fn create_compute(&mut self, id: usize, profile_id: u32) -> Result<usize, MigRefusal> {
        let (number, profile) = self.compute_profile(id, profile_id)?;
        let (start, _) = self.free_compute(id, profile)?;
        let start = start.ok_or(MigRefusal::InsufficientResources)?;
        let slots = &mut self.instances[id].compute;
        let ci = slots.iter().position(|c| c.profile == 0).ok_or(MigRefusal::InsufficientResources)?;
        slots[ci] = SimComputeInstance { profile: number as u32 + 1, start };
        Ok(ci)
    }

    /// Destroys a compute instance that no process uses.
    pub fn destroy_compute(&mut self, id: usize, ci: usize) -> Result<(), MigRefusal> {
        if !self.compute_instances(id)?.any(|(found, ..)| found == ci) {
            return Err(MigRefusal::InvalidArgument);
        }
        if self.used_granules[id + 1] > 0 {
            return Err(MigRefusal::InUse);
        }
        self.instances[id].compute[ci] = SimComputeInstance::NONE;
        Ok(())
    }

    /// MIG devices, that is compute instances, in order: GPU instance, compute instance, and what they are.
    pub fn mig_devices(
        &self,
    ) -> Vec<(usize, usize, &'static GpuInstanceProfile, &'static ComputeInstanceProfile)> {
        let of_instance = |(id, profile, _): (usize, &'static GpuInstanceProfile, &SimGpuInstance)| {
            self.compute_instances(id)
                .into_iter()
                .flatten()
                .map(move |(ci, compute, _)| (id, ci, profile, compute))
        };
        self.instances().flat_map(of_instance).collect()
    }

    /// The memory domain of a GPU instance.
    pub fn domain_of(instance: usize) -> usize {
        WHOLE_GPU + 1 + instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{MODELS, find};
    use crate::spec::{MachineSpec, SpecDevice};
    use crate::state::SimState;
    use crate::wiring::Wiring;

    fn device(key: &str) -> SimGpu {
        let device = SpecDevice { model: find(key).unwrap(), mig: true, reserved: false, hmm: false };
        let spec = MachineSpec { devices: vec![device], wiring: Wiring::default() };
        // Boxed because it is large.
        // SAFETY: `SimState` consists of integers, for which zero bytes are valid.
        let mut state: Box<SimState> = unsafe { Box::new_zeroed().assume_init() };
        state.power_on(&spec);
        state.devices[0]
    }

    #[test]
    fn places_never_overlap_and_ids_are_unique_on_every_model() {
        let mut random = 1_u64;
        for model in MODELS.iter().filter(|m| m.mig.is_some()) {
            let mut d = device(model.key);
            let profiles = table(model).unwrap().profiles;
            let names = Names { backwards: profiles.len().is_multiple_of(2), by_pipe: true };
            for _ in 0..3000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let profile = &profiles[(random >> 33) as usize % profiles.len()];
                let start = profile.starts[(random >> 45) as usize % profile.starts.len()];
                let before = d.remaining(profile);
                let (free, engines) = (d.free_at(profile, start), d.has_engines_for(profile));
                match d.create_instance(profile.id, Some(start), names) {
                    Ok(_) => assert!(free && before > 0 && engines),
                    Err(MigRefusal::InsufficientResources) => {
                        let same = d.instances().filter(|(_, p, _)| p.id == profile.id).count() as u32;
                        assert!(!free || same >= profile.max_instances || !engines);
                        let victim = d.instances().map(|(id, ..)| id).nth((random >> 50) as usize % 3);
                        if let Some(id) = victim {
                            d.destroy_instance(id).unwrap();
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
                let mut taken = [false; 16];
                for (_, p, i) in d.instances() {
                    for unit in i.start..i.start + p.size {
                        assert!(!std::mem::replace(&mut taken[unit as usize], true));
                    }
                }
            }
        }
    }

    #[test]
    fn default_places_are_the_drivers() {
        let mut d = device("A100-40GB");
        let ids: Vec<usize> =
            (0..7).map(|_| d.create_instance(19, None, Names::default()).unwrap()).collect();
        assert_eq!(ids, [13, 11, 12, 7, 8, 9, 10]);
        assert_eq!(d.create_instance(19, None, Names::default()), Err(MigRefusal::InsufficientResources));
    }

    #[test]
    fn ids_and_names_are_the_gpus_own() {
        let (mut one, mut other) = (device("A100-40GB"), device("A100-40GB"));
        let backwards = Names { backwards: true, ..Names::default() };
        assert_eq!(one.create_instance(9, Some(4), Names::default()), Ok(2));
        assert_eq!(other.create_instance(9, Some(4), backwards), Ok(1));
        let by_pipe = Names { by_pipe: true, ..Names::default() };
        let mut gpu = device("A100-40GB");
        let name = |gpu: &SimGpu, id| crate::mig::mig_uuid(0, gpu, id, 0);
        let alone = gpu.create_instance(19, Some(0), by_pipe).map(|id| (id, name(&gpu, id))).unwrap();
        gpu.destroy_instance(alone.0).unwrap();
        gpu.create_instance(19, Some(6), by_pipe).unwrap();
        let beside = gpu.create_instance(19, Some(0), by_pipe).map(|id| (id, name(&gpu, id))).unwrap();
        assert!(alone.0 == beside.0 && alone.1 != beside.1, "one place, two names");
    }

    #[test]
    fn a_driver_that_is_loaded_again_has_the_mode_that_was_asked_for() {
        let mut d = device("A100-40GB");
        d.create_instance(9, Some(4), Names::default()).unwrap();
        assert_eq!(d.set_mig_mode(false, false), Ok(ModeChange::Pending));
        d.reload();
        assert_eq!((d.mig_enabled, d.instances().count()), (0, 0));
        assert_eq!(d.set_mig_mode(true, true), Ok(ModeChange::Pending));
        assert_eq!(d.set_mig_mode(true, false), Ok(ModeChange::Done));
    }

    #[test]
    fn engines_run_out() {
        let mut d = device("RTX-PRO-6000-96GB");
        d.create_instance(14, Some(0), Names::default()).unwrap();
        assert_eq!(
            d.create_instance(65, Some(3), Names::default()),
            Err(MigRefusal::InsufficientResources),
            "all four decoders"
        );
        assert!(d.create_instance(67, Some(3), Names::default()).is_ok(), "it has none");
    }

    #[test]
    fn a_gpu_instance_is_cut_into_compute_instances() {
        let mut d = device("A100-40GB");
        let gi = d.create_instance(9, Some(4), Names::default()).unwrap();
        assert_eq!((d.create_compute(gi, 1), d.create_compute(gi, 0)), (Ok(0), Ok(1)));
        assert_eq!(d.create_compute(gi, 0), Err(MigRefusal::InsufficientResources));
        assert_eq!(d.destroy_instance(gi), Err(MigRefusal::InUse));
        assert_eq!((d.destroy_compute(gi, 0), d.destroy_compute(gi, 1)), (Ok(()), Ok(())));
        assert_eq!(d.create_compute(gi, 2), Ok(0));
        d.used_granules[SimGpu::domain_of(gi)] = 1;
        assert_eq!(d.destroy_compute(gi, 0), Err(MigRefusal::InUse));
        assert_eq!(d.set_mig_mode(false, false), Ok(ModeChange::Pending));
    }
}
