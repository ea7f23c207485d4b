//! Where an instance goes. Instances can't be moved while somebody uses them, so every placement is there to stay: the
//! one is chosen that leaves the most room for what may come.
//!
//! Room is counted over the whole node with diminishing returns: losing the last place for a profile costs far more
//! than losing one of many. With `K` places left for a profile, they are worth `1 − 2^−K`, weighted by how often the
//! profile is asked for and by its size; the placement that loses least wins, then the highest start (small instances
//! at the top leave the bottom, where the large ones must start, free). Measured in `tests/quality.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Table;
use crate::table::mask;

/// A GPU instance that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// NVML's id of it.
    pub id: u32,
    /// Position of its profile in the table.
    pub profile: usize,
    /// First unit of its place.
    pub start: u32,
    /// Does a task hold it, or is it not ours to destroy? Never touched then.
    pub busy: bool,
}

/// A GPU in MIG mode and its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGeometry {
    /// What it offers.
    pub table: Arc<Table>,
    /// What it has.
    pub instances: Vec<Instance>,
}

impl GpuGeometry {
    fn taken(&self, of: impl Fn(&Instance) -> bool) -> u32 {
        let of = self.instances.iter().filter(|instance| of(instance));
        of.fold(0, |taken, instance| taken | self.mask_of(instance))
    }

    fn mask_of(&self, instance: &Instance) -> u32 {
        mask(instance.start, self.table.profiles[instance.profile].size)
    }

    fn busy_of(&self, profile: usize) -> u32 {
        let busy = self.instances.iter().filter(|instance| instance.busy && instance.profile == profile);
        u32::try_from(busy.count()).unwrap_or(u32::MAX)
    }

    /// How many more instances of each profile could be made with these units taken, if nothing else were.
    fn places(&self, taken: u32, profile: usize, busy_of_it: u32) -> u32 {
        let profile = &self.table.profiles[profile];
        let mut taken = taken;
        let mut count = 0;
        // The starts of one profile are its size apart or more, so taking them in order is taking the most.
        for start in &profile.starts {
            let place = mask(*start, profile.size);
            if taken & place == 0 {
                taken |= place;
                count += 1;
            }
        }
        count.min(profile.max_instances.saturating_sub(busy_of_it))
    }
}

/// What to do to get an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take the free instance with this id: it is just right.
    Reuse {
        /// Its id.
        id: u32,
    },
    /// Make a new one.
    Create {
        /// Ids of free instances that are in the way and are destroyed first.
        destroy: Vec<u32>,
    },
}

/// Where an instance goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Position of the GPU.
    pub gpu: usize,
    /// Position of the profile in that GPU's table.
    pub profile: usize,
    /// First unit of the place.
    pub start: u32,
    /// How to get it.
    pub action: Action,
}

/// Decides where instances go, given how often each profile is asked for.
#[derive(Clone, Debug, Default)]
pub struct Planner {
    /// Names of profiles and how often each is asked for; a profile that is not named counts as 1 if none is, else 0.
    pub demand: Vec<(String, f64)>,
}

/// Compared from the left, the lowest wins: room lost, made anew, instances destroyed, the highest start, the first GPU.
/// Room comes first because a bad place stays for as long as its task, while making an instance takes a second: taking
/// any free instance that is just right before looking at the room costs 2 to 3 % of the work that 8 GPUs accept.
type Score = (f64, bool, usize, std::cmp::Reverse<u32>, usize);

impl Planner {
    /// A place for an instance of the profile named `name` on one of `gpus`; `None` if there is none without touching
    /// a busy instance. A GPU whose table has no such profile is passed over.
    #[must_use]
    pub fn decide(&self, gpus: &[GpuGeometry], name: &str) -> Option<Decision> {
        let room = Room::of(gpus);
        let mut best: Option<(Score, Decision)> = None;
        for (at, gpu) in gpus.iter().enumerate() {
            let Some(profile) = gpu.table.position(name) else { continue };
            for (start, action) in actions(gpu, profile) {
                let (made, destroyed) = match &action {
                    Action::Reuse { .. } => (false, 0),
                    Action::Create { destroy } => (true, destroy.len()),
                };
                let lost = self.room_lost(&room, gpu, profile, start);
                let score = (lost, made, destroyed, std::cmp::Reverse(start), at);
                if best.as_ref().is_none_or(|(best, _)| by_score(&score, best).is_lt()) {
                    best = Some((score, Decision { gpu: at, profile, start, action }));
                }
            }
        }
        best.map(|(_, decision)| decision)
    }

    /// Room that the node loses if an instance of `profile` is busy at `start` of `gpu`. Free instances are room.
    fn room_lost(&self, room: &Room<'_>, gpu: &GpuGeometry, profile: usize, start: u32) -> f64 {
        let before = gpu.taken(|instance| instance.busy);
        let after = before | mask(start, gpu.table.profiles[profile].size);
        let mut lost = 0.0;
        for wanted in gpu.table.plain() {
            let (name, size) = (&gpu.table.profiles[wanted].name, gpu.table.profiles[wanted].size);
            let busy = gpu.busy_of(wanted);
            let fewer = gpu.places(before, wanted, busy)
                - gpu.places(after, wanted, busy + u32::from(wanted == profile));
            if fewer > 0 {
                let places = room.places.get(name.as_str()).copied().unwrap_or(fewer);
                lost += self.weight(name) * f64::from(size) * (worth(places) - worth(places - fewer));
            }
        }
        lost
    }

    fn weight(&self, name: &str) -> f64 {
        if self.demand.is_empty() {
            return 1.0;
        }
        self.demand.iter().find(|(known, _)| known == name).map_or(0.0, |(_, weight)| *weight)
    }
}

/// Places left on the whole node, by name of the profile.
struct Room<'a> {
    places: BTreeMap<&'a str, u32>,
}

impl<'a> Room<'a> {
    fn of(gpus: &'a [GpuGeometry]) -> Self {
        let mut places = BTreeMap::new();
        for gpu in gpus {
            let taken = gpu.taken(|instance| instance.busy);
            for profile in gpu.table.plain() {
                let here = gpu.places(taken, profile, gpu.busy_of(profile));
                *places.entry(gpu.table.profiles[profile].name.as_str()).or_insert(0) += here;
            }
        }
        Self { places }
    }
}

/// `1 − 2^−places`.
fn worth(places: u32) -> f64 {
    1.0 - 1.0 / f64::from(places.min(1023)).exp2()
}

fn by_score(a: &Score, b: &Score) -> std::cmp::Ordering {
    a.0.total_cmp(&b.0).then_with(|| (a.1, a.2, a.3, a.4).cmp(&(b.1, b.2, b.3, b.4)))
}

/// All ways to get an instance of `profile` on one GPU without touching a busy one.
fn actions(gpu: &GpuGeometry, profile: usize) -> Vec<(u32, Action)> {
    let wanted = &gpu.table.profiles[profile];
    let free = || gpu.instances.iter().filter(|instance| !instance.busy);
    let mut actions: Vec<(u32, Action)> = free()
        .filter(|instance| instance.profile == profile)
        .map(|instance| (instance.start, Action::Reuse { id: instance.id }))
        .collect();
    let busy = gpu.taken(|instance| instance.busy);
    if gpu.busy_of(profile) >= wanted.max_instances {
        return actions;
    }
    for &start in &wanted.starts {
        let place = mask(start, wanted.size);
        if busy & place != 0 {
            continue;
        }
        let overlapping = |instance: &&Instance| gpu.mask_of(instance) & place != 0;
        let mut destroy: Vec<u32> = free().filter(overlapping).map(|instance| instance.id).collect();
        // A free one of the same profile elsewhere counts towards the most that there can be: it has to go as well.
        let same = free().filter(|instance| instance.profile == profile && !destroy.contains(&instance.id));
        let same: Vec<u32> = same.map(|instance| instance.id).collect();
        let kept = (wanted.max_instances - gpu.busy_of(profile) - 1) as usize;
        destroy.extend(same.into_iter().skip(kept));
        actions.push((start, Action::Create { destroy }));
    }
    actions
}
