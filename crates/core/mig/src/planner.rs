//! Chooses the place of an instance. An instance cannot be moved while it is in use, so every placement is final. The
//! planner chooses the one after which the node will accept the most work (see `layouts`). Measured in `tests/quality.rs` and `tests/one_gpu.rs`.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::layouts::Layouts;
use crate::optimum::busy_places;
use crate::room::Room;
use crate::{Profile, Table};

/// A GPU instance that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// NVML's id of it.
    pub id: u32,
    /// Position of its profile in the table.
    pub profile: usize,
    /// First unit of its place.
    pub start: u32,
    /// Does a task hold it, or is it an instance that cantle may not destroy? Never touched then.
    pub busy: bool,
}

impl Instance {
    /// Is it a busy one of the profile at position `profile`, at `start`?
    pub(crate) const fn is_held_at(&self, profile: usize, start: u32) -> bool {
        self.busy && self.profile == profile && self.start == start
    }
}

/// A GPU in MIG mode and its instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuGeometry {
    /// Its offers.
    pub table: Arc<Table>,
    /// Its instances.
    pub instances: Vec<Instance>,
}

/// The steps to get an instance.
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

/// The placement of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Position of the GPU.
    pub gpu: usize,
    /// Position of the profile in that GPU's table.
    pub profile: usize,
    /// First unit of the place.
    pub start: u32,
    /// The steps to get it.
    pub action: Action,
}

/// Decides where instances go, given how often each profile is requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planner {
    known: Vec<TableFacts>,
}

/// Facts about GPUs with one table.
#[derive(Clone, Debug, PartialEq)]
struct TableFacts {
    table: Arc<Table>,
    /// How often each profile is requested, by position.
    weights: Vec<f64>,
    layouts: Arc<Layouts>,
}

impl Planner {
    /// For GPUs with these tables. `demand` has names of profiles and how often each is requested; one that is not named counts as 0. For a
    /// table of which it names none, [`Table::expected`] applies.
    #[must_use]
    pub fn new<'a>(demand: &BTreeMap<&str, f64>, tables: impl IntoIterator<Item = &'a Arc<Table>>) -> Self {
        let mut planner = Self::default();
        for table in tables {
            if planner.known(table).is_none() {
                let weights = weights(table, demand);
                let layouts = Layouts::of(table, &weights);
                planner.known.push(TableFacts { table: Arc::clone(table), weights, layouts });
            }
        }
        planner
    }

    /// A place for an instance of the profile named `name` on one of `gpus`; `None` if there is none without touching
    /// a busy instance. A GPU whose table has no such profile is passed over.
    ///
    /// On each GPU the place that costs the least represents it; the node's room decides between GPUs. The lost
    /// capacity comes first because a bad place stays for as long as its task, while making an instance takes a second.
    #[must_use]
    pub fn decide(&self, gpus: &[GpuGeometry], name: &str) -> Option<Decision> {
        if let [only] = gpus {
            return self.on_one(0, only, name);
        }
        let known: Vec<Option<&TableFacts>> = gpus.iter().map(|gpu| self.known(&gpu.table)).collect();
        let weight = |at: usize, profile: usize| {
            known[at].map_or_else(|| gpus[at].table.expected(profile), |known| known.weights[profile])
        };
        let room = Room::of(gpus, weight);
        let mut best: Option<(i64, Decision)> = None;
        for (at, gpu) in gpus.iter().enumerate() {
            let Some(decision) = self.on_one(at, gpu, name) else { continue };
            let units = gpu.table.units_at(decision.profile, decision.start);
            let lost = billionths(room.lost(at, decision.profile, units));
            let better = |(least, best): &(i64, Decision)| {
                let preference =
                    || by_preference((decision.start, &decision.action), (best.start, &best.action));
                lost.cmp(least).then_with(preference).is_lt()
            };
            if best.as_ref().is_none_or(better) {
                best = Some((lost, decision));
            }
        }
        best.map(|(_, decision)| decision)
    }

    fn on_one(&self, at: usize, gpu: &GpuGeometry, name: &str) -> Option<Decision> {
        let profile = gpu.table.position(name)?;
        let costs = self.known(&gpu.table).map_or(&[][..], |known| known.layouts.costs(&busy_places(gpu)));
        let lost = |start: u32| {
            let units = gpu.table.units_at(profile, start);
            costs.iter().find(|(place, _)| *place == units).map_or(0.0, |(_, lost)| millionths(*lost))
        };
        let (start, action) = cheapest(gpu, profile, lost)?;
        Some(Decision { gpu: at, profile, start, action })
    }

    fn known(&self, table: &Arc<Table>) -> Option<&TableFacts> {
        self.known.iter().find(|known| Arc::ptr_eq(&known.table, table) || known.table == *table)
    }
}

/// By position of the profile.
fn weights(table: &Table, demand: &BTreeMap<&str, f64>) -> Vec<f64> {
    let named = |profile: &Profile| demand.get(profile.name.as_str()).copied().unwrap_or_default();
    let weights: Vec<f64> = table.profiles.iter().map(named).collect();
    if table.plain().any(|at| weights[at] > 0.0) {
        return weights;
    }
    (0..table.profiles.len()).map(|at| table.expected(at)).collect()
}

/// The way to get an instance of `profile` at the start with the least `lost`.
pub(crate) fn cheapest(
    gpu: &GpuGeometry,
    profile: usize,
    lost: impl Fn(u32) -> f64,
) -> Option<(u32, Action)> {
    let scored = actions(gpu, profile).into_iter().map(|(start, action)| (lost(start), start, action));
    let best = scored.min_by(|a, b| {
        let cheaper = a.0.partial_cmp(&b.0).unwrap_or(Ordering::Equal);
        cheaper.then_with(|| by_preference((a.1, &a.2), (b.1, &b.2)))
    });
    best.map(|(_, start, action)| (start, action))
}

/// Among places that cost the same: an instance that is there, then the fewest destroyed, then the highest start
/// (small instances at the top leave the bottom, where the large ones must start, free).
fn by_preference(a: (u32, &Action), b: (u32, &Action)) -> Ordering {
    let key = |(start, action): (u32, &Action)| match action {
        Action::Reuse { .. } => (false, 0, Reverse(start)),
        Action::Create { destroy } => (true, destroy.len(), Reverse(start)),
    };
    key(a).cmp(&key(b))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates; the room of a node is far below 2^63 billionths"
)]
fn billionths(room: f64) -> i64 {
    (room * 1e9).round() as i64
}

/// Compute slices in millionths, rounded: less than that is the error of the values.
fn millionths(slices: f64) -> f64 {
    (slices * 1e6).round()
}

/// All ways to get an instance of `profile` on one GPU without touching a busy one.
fn actions(gpu: &GpuGeometry, profile: usize) -> Vec<(u32, Action)> {
    let wanted = &gpu.table.profiles[profile];
    let free = || gpu.instances.iter().filter(|instance| !instance.busy);
    let mut actions: Vec<(u32, Action)> = free()
        .filter(|instance| instance.profile == profile)
        .map(|instance| (instance.start, Action::Reuse { id: instance.id }))
        .collect();
    let busy = gpu.busy_units();
    let busy_of_it =
        gpu.instances.iter().filter(|instance| instance.busy && instance.profile == profile).count();
    let engines_of = |destroyed: &[u32]| {
        let stays = |instance: &&Instance| instance.busy || !destroyed.contains(&instance.id);
        let profiles = gpu.instances.iter().filter(stays).map(|instance| instance.profile);
        gpu.table.has_engines_for(profiles.chain([profile]))
    };
    let all_free: Vec<u32> = free().map(|instance| instance.id).collect();
    if !engines_of(&all_free) {
        return actions;
    }
    let Some(kept) = (wanted.max_instances as usize).checked_sub(busy_of_it + 1) else { return actions };
    for &start in &wanted.starts {
        let place = gpu.table.units_at(profile, start);
        if busy & place != 0 {
            continue;
        }
        let overlapping = |instance: &&Instance| gpu.units_of(instance) & place != 0;
        let mut destroy: Vec<u32> = free().filter(overlapping).map(|instance| instance.id).collect();
        // A free one of the same profile elsewhere counts towards the most that there can be: it has to go as well.
        let same = free().filter(|instance| instance.profile == profile && !destroy.contains(&instance.id));
        let same: Vec<u32> = same.map(|instance| instance.id).collect();
        destroy.extend(same.into_iter().skip(kept));
        // So has one whose engines are needed.
        for id in &all_free {
            if engines_of(&destroy) {
                break;
            }
            if !destroy.contains(id) {
                destroy.push(*id);
            }
        }
        actions.push((start, Action::Create { destroy }));
    }
    actions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engines;

    /// As an RTX PRO 6000: four decoders, one for each quarter, and a profile that has them all.
    fn gpu(instances: &[(usize, u32, bool)]) -> GpuGeometry {
        let profile = |name: &str, id, decoders, max_instances| Profile {
            name: name.to_owned(),
            id,
            compute_slices: 1,
            size: 1,
            starts: vec![0, 1, 2, 3],
            max_instances,
            memory_bytes: 1,
            engines: Engines([decoders, 0, 0, 0]),
        };
        let profiles = vec![profile("1g", 1, 1, 4), profile("1g+me.all", 2, 4, 1), profile("1g-me", 3, 0, 4)];
        let table = Arc::new(Table { units: 4, profiles, fixed: false });
        let instance = |(id, (profile, start, busy)): (u32, &(usize, u32, bool))| Instance {
            id,
            profile: *profile,
            start: *start,
            busy: *busy,
        };
        GpuGeometry { table, instances: (0..).zip(instances).map(instance).collect() }
    }

    #[test]
    fn engines_that_others_have_are_waited_for() {
        let planner = Planner::default();
        let beside_busy = gpu(&[(0, 3, true)]);
        assert_eq!(
            planner.decide(std::slice::from_ref(&beside_busy), "1g+me.all"),
            None,
            "one decoder is taken"
        );
        assert!(
            !beside_busy.has_place(1, None)
                && beside_busy.has_place(2, None)
                && beside_busy.has_place(0, None)
        );
        assert_eq!(planner.decide(&[gpu(&[(1, 0, true)])], "1g"), None, "all decoders are taken");
        assert!(planner.decide(&[gpu(&[(2, 3, true)])], "1g+me.all").is_some(), "it has none");
    }

    #[test]
    fn a_free_instance_that_has_the_engines_goes() {
        let found = Planner::default().decide(&[gpu(&[(0, 3, false), (2, 2, false)])], "1g+me.all").unwrap();
        let Action::Create { destroy } = found.action else { panic!("{found:?}") };
        assert!(destroy.contains(&0), "{destroy:?}");
    }

    #[test]
    fn figures_that_contradict_each_other_are_no_limit() {
        let mut wrong = gpu(&[]);
        let table = Arc::make_mut(&mut wrong.table);
        table.profiles.truncate(1);
        assert_eq!(table.engines(), Engines([u32::MAX, 0, 0, 0]));
    }
}
