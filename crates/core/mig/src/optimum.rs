//! The optimum on one GPU: the placement that accepts the most work in the long run, when tasks come and go at random
//! (Poisson arrivals, exponential times) and everything that fits is accepted.
//!
//! The states are all sets of busy places, some hundreds; value iteration finds what each is worth (Puterman, "Markov
//! Decision Processes", 1994, §8.5). Many GPUs have too many states; [`crate::Planner`] takes the values of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::planner::cheapest;
use crate::{Decision, GpuGeometry, Instance, PLANNED, Table};

/// Value iteration ends when the accepted part is known this well.
const ENOUGH: f64 = 1e-7;
/// ... or after this number of rounds.
const ROUNDS: usize = 100_000;

/// Units of each busy instance, sorted. The profile of an instance decides nothing else.
pub(crate) type Busy = Vec<u32>;

/// All that can happen on one GPU, and what it is worth.
#[derive(Clone, Debug)]
pub struct Optimum {
    table: Arc<Table>,
    states: BTreeMap<Busy, usize>,
    chain: Chain,
    values: Vec<f64>,
    accepted: f64,
}

/// States by number.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// Requested profiles, and the number of requests for each in the mean run time of a task.
    demand: Vec<(usize, f64)>,
    /// Compute slices of each.
    slices: Vec<f64>,
    /// For each state and each of `demand`: the states that accepting one may lead to.
    next: Vec<Vec<Vec<usize>>>,
    /// For each state: those that the end of one task leads to.
    ends: Vec<Vec<usize>>,
}

impl Optimum {
    /// The optimum for profiles requested in these proportions, together so often that they would keep `load` of all
    /// compute slices busy. Profiles that the table does not have are left out.
    #[must_use]
    pub fn new(table: &Arc<Table>, demand: &[(String, f64)], load: f64) -> Self {
        let known = demand.iter().filter_map(|(name, weight)| Some((table.position(name)?, *weight)));
        let known: Vec<(usize, f64)> = known.collect();
        let states = all_states(table);
        let chain = Chain::new(table, &states, rates(table, &known, load));
        let (values, accepted) = chain.solve(ENOUGH);
        Self { table: table.clone(), states, chain, values, accepted }
    }

    /// The part of the work asked for that is accepted at best.
    #[must_use]
    pub const fn accepted(&self) -> f64 {
        self.accepted
    }

    /// The part that is accepted if `rule` chooses the start of each instance.
    #[must_use]
    pub fn accepted_by(&self, rule: impl Fn(&GpuGeometry, &str) -> Option<u32>) -> f64 {
        let mut chain = self.chain.clone();
        for (busy, state) in &self.states {
            let gpu = self.geometry(busy);
            for (at, (profile, _)) in self.chain.demand.iter().enumerate() {
                let start = rule(&gpu, &self.table.profiles[*profile].name);
                let chosen = start.and_then(|start| {
                    self.states.get(&with(busy, self.table.units_at(*profile, start))).copied()
                });
                chain.next[*state][at].retain(|next| Some(*next) == chosen);
            }
        }
        chain.solve(ENOUGH).1
    }

    /// The best place for an instance of the profile named `name`; `None` if there is none without touching a busy
    /// instance.
    #[must_use]
    pub fn decide(&self, gpu: &GpuGeometry, name: &str) -> Option<Decision> {
        let profile = gpu.table.position(name)?;
        let busy = busy_places(gpu);
        let lost = |start: u32| {
            let after = self.states.get(&with(&busy, gpu.table.units_at(profile, start)));
            after.map_or(f64::INFINITY, |after| -self.values[*after])
        };
        let (start, action) = cheapest(gpu, profile, lost)?;
        Some(Decision { gpu: 0, profile, start, action })
    }

    fn geometry(&self, busy: &Busy) -> GpuGeometry {
        let profile_and_start = |units: &u32| {
            let mut places = places(&self.table);
            places.find(|(profile, start)| self.table.units_at(*profile, *start) == *units)
        };
        let instance = |(profile, start)| Instance { id: PLANNED, profile, start, busy: true };
        let instances = busy.iter().filter_map(profile_and_start).map(instance).collect();
        GpuGeometry { table: self.table.clone(), instances }
    }
}

/// For each profile, the number of requests in the mean run time of a task, if they would keep `load` of all compute slices busy.
pub(crate) fn rates(table: &Table, demand: &[(usize, f64)], load: f64) -> Vec<(usize, f64)> {
    let slices = |profile: usize| f64::from(table.profiles[profile].compute_slices);
    let whole = table.plain().map(slices).fold(0.0, f64::max);
    let work: f64 = demand.iter().map(|(profile, weight)| slices(*profile) * weight).sum();
    demand.iter().map(|(profile, weight)| (*profile, weight * load * whole / work)).collect()
}

/// The units of each busy instance.
pub(crate) fn busy_places(gpu: &GpuGeometry) -> Busy {
    let mut busy: Busy = gpu.instances.iter().filter(|i| i.busy).map(|i| gpu.units_of(i)).collect();
    busy.sort_unstable();
    busy
}

/// Every place of every plain profile; the others take the same units.
pub(crate) fn places(table: &Table) -> impl Iterator<Item = (usize, u32)> + '_ {
    table
        .plain()
        .flat_map(|profile| table.profiles[profile].starts.iter().map(move |start| (profile, *start)))
}

pub(crate) fn with(busy: &Busy, units: u32) -> Busy {
    let mut with = busy.clone();
    with.insert(with.partition_point(|known| *known < units), units);
    with
}

pub(crate) fn all_states(table: &Table) -> BTreeMap<Busy, usize> {
    let mut states = BTreeMap::from([(Vec::new(), 0)]);
    let mut new = vec![Vec::new()];
    while let Some(busy) = new.pop() {
        let taken = busy.iter().fold(0, |taken, units| taken | units);
        for (profile, start) in places(table) {
            let units = table.units_at(profile, start);
            let after = with(&busy, units);
            if taken & units == 0 && !states.contains_key(&after) {
                states.insert(after.clone(), states.len());
                new.push(after);
            }
        }
    }
    states
}

impl Chain {
    pub(crate) fn new(table: &Table, states: &BTreeMap<Busy, usize>, demand: Vec<(usize, f64)>) -> Self {
        let slices = demand.iter().map(|(profile, _)| f64::from(table.profiles[*profile].compute_slices));
        let mut chain = Self {
            slices: slices.collect(),
            next: vec![Vec::new(); states.len()],
            ends: vec![Vec::new(); states.len()],
            demand,
        };
        for (busy, state) in states {
            let taken = busy.iter().fold(0, |taken, units| taken | units);
            let after = |profile: usize| {
                let places =
                    table.profiles[profile].starts.iter().map(move |start| table.units_at(profile, *start));
                places.filter(|units| taken & units == 0).map(|units| states[&with(busy, units)]).collect()
            };
            chain.next[*state] = chain.demand.iter().map(|(profile, _)| after(*profile)).collect();
            let without = |at: usize| [&busy[..at], &busy[at + 1..]].concat();
            chain.ends[*state] = (0..busy.len()).map(|at| states[&without(at)]).collect();
        }
        chain
    }

    /// The relative value of each state, and the accepted part of the work, to within `enough`.
    pub(crate) fn solve(&self, enough: f64) -> (Vec<f64>, f64) {
        let most_busy = self.ends.iter().map(Vec::len).max().unwrap_or(0) as f64;
        let rate = most_busy + self.demand.iter().map(|(_, rate)| rate).sum::<f64>();
        let offered: f64 =
            self.demand.iter().zip(&self.slices).map(|((_, rate), slices)| rate * slices).sum();
        let mut values = vec![0.0; self.next.len()];
        let mut accepted = 0.0;
        for _ in 0..ROUNDS {
            let after: Vec<f64> = (0..values.len()).map(|state| self.step(state, &values, rate)).collect();
            let gains = || after.iter().zip(&values).map(|(after, before)| (after - before) * rate / offered);
            let (least, most) = (gains().fold(f64::INFINITY, f64::min), gains().fold(0.0, f64::max));
            accepted = f64::midpoint(least, most);
            values = after.iter().map(|value| value - after[0]).collect();
            if most - least < enough {
                break;
            }
        }
        (values, accepted)
    }

    /// Worth of a state after one more event, which come `rate` times as often as a task ends.
    fn step(&self, state: usize, values: &[f64], rate: f64) -> f64 {
        let here = values[state];
        let mut left = rate;
        let mut sum = 0.0;
        for ((next, (_, comes)), slices) in self.next[state].iter().zip(&self.demand).zip(&self.slices) {
            let best = next.iter().map(|next| slices + values[*next]).reduce(f64::max);
            sum += comes * best.unwrap_or(here);
            left -= comes;
        }
        for end in &self.ends[state] {
            sum += values[*end];
            left -= 1.0;
        }
        (sum + left * here) / rate
    }
}
