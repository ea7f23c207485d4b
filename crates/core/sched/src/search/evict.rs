//! Chooses the running tasks that have to stop so that a waiting one fits. Every choice is first tried on the free
//! amounts. No task is asked to stop unless that makes room.
//!
//! The cheapest units of the cheapest node are tried first, for one member of a gang after the other. If that leads
//! nowhere, all sets of units are tried, the cheapest first, up to [`STEPS`].

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cantle_model::TaskId;

use super::victims::{Cost, Victims};
use crate::fair::accounts::Accounts;
use crate::{Amounts, Cause, Cluster, Cut, GpuFree, Place, PoolMilli, Shape};

/// The task or group that needs capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claimant<'a> {
    pub(crate) project: usize,
    pub(crate) priority: i32,
    /// Its whole demand.
    pub(crate) wanted: Amounts,
    /// The most that it may take of each pool.
    pub(crate) in_pools: &'a PoolMilli,
    /// Only move tasks that fit elsewhere?
    pub(crate) moves: bool,
    /// Take only from projects that hold more than their share, and not also from those that hold more than their quota?
    pub(crate) shares_only: bool,
}

/// The places that are freed, and the task for which they are freed: all of it is counted at once, and undone if it leads
/// nowhere.
pub(crate) struct Attempt<'a> {
    pub(crate) victims: &'a mut Victims,
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) accounts: &'a mut Accounts,
    pub(crate) claimant: Claimant<'a>,
    /// Whether units of each kind could be stopped.
    pub(crate) possible: Vec<bool>,
    /// Units that are counted as stopped.
    pub(crate) chosen: Vec<usize>,
    places: Vec<Place>,
    moved: Vec<Place>,
    /// Was a choice not allowed, so that another one may be?
    again: bool,
    /// Sets that may still be tried.
    pub(crate) steps: usize,
}

/// Room made for a claimant.
#[derive(Debug, Default)]
pub(crate) struct FreedRoom {
    /// A place for each of its shapes.
    pub(crate) places: Vec<Place>,
    /// The new places of tasks that only move.
    pub(crate) moved: Vec<Place>,
    /// Positions among the running tasks, and why.
    pub(crate) victims: Vec<(usize, Cause)>,
}

/// Room that could be made on a node: what it costs, how many units it takes, the node, and the units.
pub(crate) type Offer = (Cost, usize, usize, Vec<usize>);

/// Sets of units tried for one waiting task before it is left waiting.
const STEPS: usize = 10_000;
/// Up to this number of nodes, all of them are tried to spare a unit.
const SMALL: usize = 256;
/// Units of which all sets are tried, on a node and among those that help.
pub(crate) const UNITS: usize = 24;

impl Victims {
    /// Makes room for `shapes` (all of them, or none) in `cluster`, which shows what will be free once all that was
    /// asked to stop has stopped. On success `cluster` and `accounts` count the room as taken.
    pub(crate) fn make_room(
        &mut self,
        cluster: &mut Cluster,
        accounts: &mut Accounts,
        claimant: Claimant<'_>,
        shapes: &[Shape],
    ) -> Option<FreedRoom> {
        let possible = if claimant.moves { Vec::new() } else { self.possible(accounts, &claimant) };
        let steps = STEPS.min(self.steps);
        let mut attempt = Attempt {
            victims: self,
            cluster,
            accounts,
            claimant,
            possible,
            chosen: Vec::new(),
            places: Vec::new(),
            moved: Vec::new(),
            again: shapes.len() > 1,
            steps,
        };
        let may_any = (0..attempt.victims.units.len()).any(|unit| attempt.may(unit));
        let found = may_any
            && (attempt.take_cheapest(shapes, false)
                || attempt.again && (attempt.take_cheapest(shapes, true) || attempt.try_all(shapes)));
        attempt.victims.steps -= steps - attempt.steps;
        if !found {
            return None;
        }
        attempt.leave_shares(shapes);
        attempt.spare(shapes);
        Some(attempt.settle())
    }

    fn cause(&self, unit: usize, claimant: &Claimant<'_>) -> Cause {
        if claimant.moves {
            Cause::Consolidate
        } else if self.units[unit].project == claimant.project {
            Cause::Preempt
        } else {
            Cause::Reclaim
        }
    }
}

impl Attempt<'_> {
    /// One shape after the other takes the cheapest offer that is allowed; with `help`, by the end of more tasks than have to
    /// make room. On failure nothing stays taken.
    fn take_cheapest(&mut self, shapes: &[Shape], help: bool) -> bool {
        let (mut offers, mut offers_for, mut refused) = (BTreeSet::new(), None, BTreeSet::new());
        for shape in shapes {
            if offers_for != Some(shape) {
                refused.clear();
                offers = self.offers(shape);
                offers_for = Some(shape);
            }
            let Some(node) = self.take_next(shape, help, &mut offers, &mut refused) else {
                self.give_up(0);
                return false;
            };
            offers.extend(self.offer(shape, node, &refused));
        }
        let allowed = if help { self.allow_chosen() } else { self.is_allowed(&self.chosen.clone()) };
        if !allowed {
            self.again = true;
            self.give_up(0);
        }
        allowed
    }

    /// Takes the best offer that is still valid and allowed, and returns its node. It and those that are not are used up;
    /// a node whose offer is not allowed makes another one, without the units that are in the way of it.
    fn take_next(
        &mut self,
        shape: &Shape,
        help: bool,
        offers: &mut BTreeSet<Offer>,
        refused: &mut BTreeSet<usize>,
    ) -> Option<usize> {
        while let Some((_, _, node, units)) = offers.pop_first() {
            if units.iter().any(|&unit| self.victims.units[unit].settled) {
                offers.extend(self.offer(shape, node, refused));
                continue;
            }
            let before = self.chosen.len();
            if !self.take(shape, node, &units) {
                self.again = true;
                continue;
            }
            if self.has_order(&units) || help && self.allow_chosen() {
                return Some(node);
            }
            self.give_up_last(before);
            let more = self.refused_of(&units);
            self.again = true;
            if !more.is_empty() {
                refused.extend(more);
                offers.extend(self.offer(shape, node, refused));
            }
        }
        None
    }

    pub(crate) fn offer(&self, shape: &Shape, node: usize, refused: &BTreeSet<usize>) -> Option<Offer> {
        let units = self.cheapest_on(shape, node, refused)?;
        Some((self.victims.cost_of(&units), units.len(), node, units))
    }

    /// Counts the units as stopped and a place for `shape` on their node as taken; if they only move, new places for all of
    /// them too. Undoes everything if any of it fails.
    fn take(&mut self, shape: &Shape, node: usize, units: &[usize]) -> bool {
        let before = self.chosen.len();
        for &unit in units {
            self.take_off(unit);
            self.chosen.push(unit);
        }
        let gpus = self.cluster.fullest_on(node, shape);
        let place = gpus.map(|gpus| Place { node, gpus, host: shape.host() });
        if let Some(place) = place {
            self.cluster.take(&place);
            if !self.claimant.moves || self.move_all(units) {
                self.places.push(place);
                return true;
            }
            self.cluster.give_back(&place);
        }
        for unit in self.chosen.split_off(before) {
            self.put_back(unit);
        }
        false
    }

    /// Undoes the last [`Self::take`], before which this number of units was chosen.
    fn give_up_last(&mut self, chosen: usize) {
        if let Some(place) = self.places.pop() {
            self.cluster.give_back(&place);
        }
        let units = self.chosen.split_off(chosen);
        let moved: usize = units.iter().map(|&unit| self.victims.units[unit].places.len()).sum();
        let first = if self.claimant.moves { self.moved.len() - moved } else { self.moved.len() };
        self.moved.split_off(first).iter().for_each(|place| self.cluster.give_back(place));
        units.into_iter().for_each(|unit| self.put_back(unit));
    }

    /// Undoes everything after the first `places`.
    fn give_up(&mut self, places: usize) {
        for place in self.places.split_off(places).iter().chain(&std::mem::take(&mut self.moved)) {
            self.cluster.give_back(place);
        }
        for unit in std::mem::take(&mut self.chosen) {
            self.put_back(unit);
        }
    }

    /// If a project falls below its share by the choice, it may reclaim from the next one in turn, and so on. Another choice without
    /// that is taken instead, unless it stops more units or a higher priority.
    fn leave_shares(&mut self, shapes: &[Shape]) {
        if self.claimant.moves || self.keeps_shares() {
            return;
        }
        let (chosen, places) = (self.chosen.clone(), self.places.clone());
        let worst = |victims: &Victims, units: &[usize]| (victims.cost_of(units).0, units.len());
        let (priority, count) = worst(self.victims, &chosen);
        self.give_up(0);
        self.claimant.shares_only = true;
        let found = self.take_cheapest(shapes, false);
        self.claimant.shares_only = false;
        let (other_priority, other_count) = worst(self.victims, &self.chosen);
        if found && other_priority <= priority && other_count <= count {
            return;
        }
        self.give_up(0);
        chosen.iter().for_each(|&unit| self.take_off(unit));
        places.iter().for_each(|place| self.cluster.take(place));
        (self.chosen, self.places) = (chosen, places);
    }

    /// Is the choice allowed if only shares count?
    fn keeps_shares(&mut self) -> bool {
        self.claimant.shares_only = true;
        let keeps = self.has_order(&self.chosen.clone());
        self.claimant.shares_only = false;
        keeps
    }

    /// Puts back what proves needless once all are known: the end of a gang, or of a task that a limit is in the way of, may
    /// make room for which another one was to stop.
    fn spare(&mut self, shapes: &[Shape]) {
        if self.claimant.moves || !(2..=UNITS).contains(&self.chosen.len()) {
            return;
        }
        let places = self.chosen.iter().flat_map(|&unit| &self.victims.units[unit].places);
        let mut nodes: BTreeSet<usize> = places.chain(&self.places).map(|place| place.node).collect();
        if self.cluster.len() <= SMALL {
            nodes = (0..self.cluster.len()).collect();
        }
        let mut by_cost = self.chosen.clone();
        by_cost.sort_unstable_by_key(|&unit| Reverse((self.victims.units[unit].cost, unit)));
        while let Some(at) = by_cost.iter().position(|&unit| self.is_spared(unit, shapes, &nodes)) {
            by_cost.remove(at);
        }
    }

    /// Puts a unit back if it is needless.
    fn is_spared(&mut self, unit: usize, shapes: &[Shape], nodes: &BTreeSet<usize>) -> bool {
        let fewer: Vec<usize> = self.chosen.iter().copied().filter(|other| *other != unit).collect();
        let before = std::mem::take(&mut self.places);
        before.iter().for_each(|place| self.cluster.give_back(place));
        self.put_back(unit);
        if self.is_allowed(&fewer) && self.fill(shapes, nodes) {
            self.chosen = fewer;
            return true;
        }
        self.take_off(unit);
        before.iter().for_each(|place| self.cluster.take(place));
        self.places = before;
        false
    }

    /// Takes places for all shapes on these nodes; nothing, and `false`, if they do not fit.
    fn fill(&mut self, shapes: &[Shape], nodes: &BTreeSet<usize>) -> bool {
        if nodes.len() == self.cluster.len() {
            self.places = self.cluster.fill_places(shapes).unwrap_or_default();
            return self.places.len() == shapes.len();
        }
        for shape in shapes {
            let on = |node: &usize| Some((*node, self.cluster.fullest_on(*node, shape)?));
            let Some((node, gpus)) = nodes.iter().find_map(on) else {
                self.places.drain(..).for_each(|place| self.cluster.give_back(&place));
                return false;
            };
            let place = Place { node, gpus, host: shape.host() };
            self.cluster.take(&place);
            self.places.push(place);
        }
        true
    }

    /// Enters the result into the accounts.
    fn settle(self) -> FreedRoom {
        let Self { victims, cluster, accounts, claimant, chosen, places, moved, .. } = self;
        let mut room = FreedRoom { places, moved, victims: Vec::new() };
        for unit in chosen {
            let cause = victims.cause(unit, &claimant);
            room.victims.extend(victims.units[unit].tasks.iter().map(|&task| (task, cause)));
        }
        accounts.hold(claimant.project, claimant.wanted, false);
        for place in &room.places {
            accounts.hold_in(claimant.project, &cluster.in_pools(place), false);
        }
        room
    }

    /// Tries all sets of units, those on the cheapest nodes first.
    fn try_all(&mut self, shapes: &[Shape]) -> bool {
        let Some((shape, rest)) = shapes.split_first() else {
            let before = self.chosen.len();
            if self.allow_chosen() {
                return true;
            }
            debug_assert_eq!(before, self.chosen.len(), "nothing stays taken");
            return false;
        };
        let mut offers: Vec<Offer> = Vec::new();
        for node in 0..self.cluster.len() {
            self.sets_on(shape, node, &mut offers);
        }
        offers.sort_unstable();
        for (_, _, node, units) in offers {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            let before = self.chosen.len();
            if self.take(shape, node, &units) {
                if self.try_all(rest) {
                    return true;
                }
                self.give_up_last(before);
            }
        }
        false
    }

    /// A new place for each of `units`; nothing, and `false`, if one has nowhere to go.
    fn move_all(&mut self, units: &[usize]) -> bool {
        let places = units.iter().flat_map(|&unit| &self.victims.units[unit].places);
        let mut moved = Vec::new();
        for place in places {
            let Some(new) = elsewhere(self.cluster, place) else {
                moved.iter().for_each(|place| self.cluster.give_back(place));
                return false;
            };
            self.cluster.take(&new);
            moved.push(new);
        }
        self.moved.extend(moved);
        true
    }
}

/// A place like `place` on any node, of GPUs of the same kind.
pub(crate) fn elsewhere(cluster: &Cluster, place: &Place) -> Option<Place> {
    let class = |gpu: usize| cluster.node(place.node).gpus[gpu].class;
    (0..cluster.len()).find_map(|node| {
        let free = cluster.node(node);
        let mut gpus: Vec<(usize, Cut)> = Vec::new();
        for (gpu, share) in &place.gpus {
            let fits = |(at, free): &(usize, &GpuFree)| {
                let same = free.class == class(*gpu) && free.fits(share.anywhere());
                same && !gpus.iter().any(|(taken, _)| taken == at)
            };
            let found = free.gpus.iter().enumerate().filter(fits).min_by_key(|(_, free)| free.milli);
            let (at, gpu) = found?;
            gpus.push((at, gpu.placed(share.anywhere(), &free.planner)?));
        }
        place.host.fits_in(free.host).then_some(Place { node, gpus, host: place.host })
    })
}

/// The task that has to stop, and the one for which it stops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The task to stop. It goes back to the front of its queue.
    pub task: TaskId,
    /// Its lease.
    pub lease: cantle_model::LeaseId,
    /// Its node.
    pub node: String,
    /// The waiting task that gets the room.
    pub for_task: TaskId,
    /// Why.
    pub cause: Cause,
}
