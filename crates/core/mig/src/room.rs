//! Measures the room that a node has for future requests, and how much of it a placement would take.
//!
//! For each profile, room is the number `K` of places for it on the whole node, and `K` places are worth `1 − 2^−K`:
//! losing the last one costs far more than losing one of many. A place that busy instances block counts a little too,
//! because they will end: it is better to block a place that others block already.

use std::collections::BTreeMap;

use crate::GpuGeometry;

/// The factor of a place for each busy instance that blocks it. Any value from 0.05 to 0.2 does as well.
const LEAVES: f64 = 0.125;

/// Room of a node.
pub(crate) struct Room {
    /// For each GPU, its room for each requested profile.
    gpus: Vec<Vec<Places>>,
}

/// Places for one profile on one GPU.
struct Places {
    profile: usize,
    /// The value of a place: how often it is requested, times its compute slices.
    weight: f64,
    /// Units of each place, and how much it counts.
    counts: Vec<(u32, f64)>,
    /// The maximum, independent of what is free.
    most: f64,
    /// Places on the whole node.
    on_node: f64,
}

impl Places {
    fn of(gpu: &GpuGeometry, profile: usize, weight: f64) -> Self {
        let wanted = &gpu.table.profiles[profile];
        let busy = || gpu.instances.iter().filter(|instance| instance.busy);
        let count = |start: &u32| {
            let place = gpu.table.units_at(profile, *start);
            let in_the_way = busy().filter(|instance| gpu.units_of(instance) & place != 0);
            (place, in_the_way.fold(1.0, |count, _| count * LEAVES))
        };
        let same = busy().filter(|instance| instance.profile == profile).count();
        Self {
            profile,
            weight: weight * f64::from(wanted.compute_slices),
            counts: wanted.starts.iter().map(count).collect(),
            most: f64::from(wanted.max_instances) - same as f64,
            on_node: 0.0,
        }
    }

    fn here(&self) -> f64 {
        self.counts.iter().map(|(_, count)| count).sum::<f64>().min(self.most)
    }

    /// The same with one more busy instance, of `profile` on `units`.
    fn here_after(&self, profile: usize, units: u32) -> f64 {
        let count = |(place, count): &(u32, f64)| if place & units == 0 { *count } else { count * LEAVES };
        let most = self.most - f64::from(u8::from(profile == self.profile));
        self.counts.iter().map(count).sum::<f64>().min(most)
    }
}

impl Room {
    /// Room on `gpus` when the profiles of each are requested as often as `weight` says, by positions. Free instances are room.
    pub(crate) fn of(gpus: &[GpuGeometry], weight: impl Fn(usize, usize) -> f64) -> Self {
        let mut on_node: BTreeMap<&str, f64> = BTreeMap::new();
        let mut rooms = Vec::with_capacity(gpus.len());
        for (at, gpu) in gpus.iter().enumerate() {
            let name = |profile: usize| gpu.table.profiles[profile].name.as_str();
            let places = gpu.table.plain().map(|profile| Places::of(gpu, profile, weight(at, profile)));
            let places: Vec<Places> = places.filter(|places| places.weight > 0.0).collect();
            for places in &places {
                *on_node.entry(name(places.profile)).or_default() += places.here();
            }
            rooms.push(places);
        }
        for (gpu, room) in gpus.iter().zip(&mut rooms) {
            for places in room {
                places.on_node = on_node[gpu.table.profiles[places.profile].name.as_str()];
            }
        }
        Self { gpus: rooms }
    }

    /// Worth that the node loses if one more instance is busy: of `profile` on `units` of the GPU at `gpu`.
    pub(crate) fn lost(&self, gpu: usize, profile: usize, units: u32) -> f64 {
        let lost = |places: &Places| {
            let fewer = places.here() - places.here_after(profile, units);
            places.weight * (unmet(places.on_node - fewer) - unmet(places.on_node))
        };
        self.gpus[gpu].iter().map(lost).sum()
    }
}

/// `2^−places`, straight between whole numbers: so it comes out the same on every machine.
fn unmet(places: f64) -> f64 {
    let whole = places.floor();
    (1.0 - (places - whole) / 2.0) / whole.min(1023.0).exp2()
}
