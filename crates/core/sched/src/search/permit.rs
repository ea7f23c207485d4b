//! Which running tasks may be stopped for a waiting one.
//!
//! Each task is stopped only while its project may lose it. Capacity that was taken before counts: it leaves less to
//! take of the same project, and more room for the claimant inside a department that they share. A set of tasks is
//! allowed if they can be stopped one after the other in some order.

use super::evict::{Attempt, Claimant, UNITS};
use super::victims::{Unit, Victims};
use crate::Amounts;
use crate::fair::accounts::Accounts;

impl Victims {
    /// For each kind: may a unit of it be stopped for `claimant`, or could it be once others were?
    pub(crate) fn possible(&self, accounts: &mut Accounts, claimant: &Claimant<'_>) -> Vec<bool> {
        let shared: Vec<usize> =
            self.kinds.iter().map(|kind| accounts.shared(kind.project, claimant.project)).collect();
        let mut levels = shared.clone();
        levels.sort_unstable_by(|a, b| b.cmp(a));
        levels.dedup();
        let mut possible = vec![false; self.kinds.len()];
        let mut released: Vec<&Unit> = Vec::new();
        for level in levels {
            for (at, kind) in self.kinds.iter().enumerate().filter(|(at, _)| shared[*at] == level) {
                possible[at] = kind.project != claimant.project
                    && accounts.may_lose_of(kind.project, Amounts(kind.involved), &kind.in_pools, claimant);
            }
            if level > 0 {
                // Its own of lower priority, or inside its department: their end lets the claimant take more from outside.
                let own = |unit: &Unit| unit.project == claimant.project && unit.cost.0 < claimant.priority;
                let helps = |unit: &&Unit| {
                    !unit.settled && shared[unit.kind] == level && (possible[unit.kind] || own(unit))
                };
                let helpers: Vec<&Unit> = self.units.iter().filter(helps).collect();
                helpers.iter().for_each(|unit| release(accounts, unit));
                released.extend(helpers);
            }
        }
        released.iter().for_each(|unit| hold(accounts, unit));
        possible
    }
}

fn release(accounts: &mut Accounts, unit: &Unit) {
    accounts.release(unit.project, unit.amounts);
    accounts.release_in(unit.project, &unit.in_pools);
}

fn hold(accounts: &mut Accounts, unit: &Unit) {
    accounts.hold(unit.project, unit.amounts, false);
    accounts.hold_in(unit.project, &unit.in_pools, false);
}

impl Attempt<'_> {
    /// May this unit be stopped for the claimant at all?
    pub(crate) fn may(&self, unit: usize) -> bool {
        let (unit, claimant) = (&self.victims.units[unit], &self.claimant);
        if unit.settled {
            return false;
        }
        if claimant.moves {
            return !unit.gang;
        }
        if unit.project == claimant.project {
            return unit.cost.0 < claimant.priority;
        }
        self.possible[unit.kind]
    }

    /// Is a unit of the claimant's own project? Its end needs no leave but that of priority.
    fn is_own(&self, unit: usize) -> bool {
        self.victims.units[unit].project == self.claimant.project
    }

    /// Counts a unit as stopped. A task that moves is not given up.
    pub(crate) fn take_off(&mut self, unit: usize) {
        if !self.claimant.moves {
            release(self.accounts, &self.victims.units[unit]);
        }
        self.victims.units[unit].settled = true;
        for place in &self.victims.units[unit].places {
            self.cluster.give_back(place);
        }
    }

    /// Undoes [`Self::take_off`].
    pub(crate) fn put_back(&mut self, unit: usize) {
        if !self.claimant.moves {
            hold(self.accounts, &self.victims.units[unit]);
        }
        self.victims.units[unit].settled = false;
        for place in &self.victims.units[unit].places {
            self.cluster.take(place);
        }
    }

    /// Takes the units off as far as each is still allowed after those before it. Returns those that are not.
    pub(crate) fn refused_of(&mut self, units: &[usize]) -> Vec<usize> {
        let mut taken = Vec::new();
        let mut refused = Vec::new();
        for &unit in units {
            if self.may_be_next(unit) {
                self.take_off(unit);
                taken.push(unit);
            } else {
                refused.push(unit);
            }
        }
        taken.into_iter().rev().for_each(|unit| self.put_back(unit));
        refused
    }

    /// Is a unit allowed after what is counted as stopped?
    pub(crate) fn may_be_next(&self, unit: usize) -> bool {
        if self.claimant.moves || self.is_own(unit) {
            return true;
        }
        let unit = &self.victims.units[unit];
        self.accounts.may_lose_of(unit.project, unit.amounts, &unit.in_pools, &self.claimant)
    }

    /// Are `units`, all counted as stopped, allowed in some order? Sought from the end: the last one is a unit that is allowed
    /// after all others. Which of several is the last makes no difference within a project or a department; those
    /// nearest to the claimant are first, because they help the others and not the other way round; those of its own project
    /// before all.
    pub(crate) fn has_order(&mut self, units: &[usize]) -> bool {
        if self.claimant.moves {
            return true;
        }
        let given_up = self.gives_no_claim(units);
        given_up.iter().for_each(|&unit| hold(self.accounts, &self.victims.units[unit]));
        let mut left: Vec<usize> = units.iter().copied().filter(|unit| !self.is_own(*unit)).collect();
        let key = |unit: &usize| {
            let unit = &self.victims.units[*unit];
            let nearness = self.accounts.shared(unit.project, self.claimant.project);
            (nearness, std::cmp::Reverse(unit.amounts.0))
        };
        left.sort_by_cached_key(key);
        let mut returned = Vec::new();
        while let Some(at) = (0..left.len()).find(|&at| self.may_be_last(left[at])) {
            returned.push(left.remove(at));
        }
        returned.iter().chain(&given_up).for_each(|&unit| release(self.accounts, &self.victims.units[unit]));
        left.is_empty()
    }

    /// The units of the claimant's own project that count as running while those of others are considered. What a project gives
    /// up itself gives it a claim on others only if it is within its quota then, also if no other task stops: nobody takes that from
    /// it. Beyond its quota, or with quotas of pools, the two would take turns forever.
    fn gives_no_claim(&mut self, units: &[usize]) -> Vec<usize> {
        let Claimant { project, wanted, in_pools, .. } = self.claimant;
        if !self.chosen.iter().chain(units).any(|&unit| self.is_own(unit)) {
            return Vec::new();
        }
        let mut stopped = [&self.chosen, units].concat();
        stopped.retain(|&unit| self.victims.units[unit].settled);
        stopped.sort_unstable();
        stopped.dedup();
        let (own, others): (Vec<usize>, Vec<usize>) =
            stopped.into_iter().partition(|&unit| self.is_own(unit));
        if own.is_empty() || !in_pools.is_empty() {
            return own;
        }
        others.iter().for_each(|&unit| hold(self.accounts, &self.victims.units[unit]));
        let within = self.accounts.is_within_quota(&self.accounts.path(project), wanted);
        others.iter().for_each(|&unit| release(self.accounts, &self.victims.units[unit]));
        if within { Vec::new() } else { own }
    }

    /// Is a unit allowed after all others that are counted as stopped? Then it is counted as running again.
    fn may_be_last(&mut self, unit: usize) -> bool {
        hold(self.accounts, &self.victims.units[unit]);
        let may = self.may_be_next(unit);
        if !may {
            release(self.accounts, &self.victims.units[unit]);
        }
        may
    }

    /// May the claimant take its place for all that it gives up and takes from others? Its limits must hold, and it must not get
    /// beyond its share by giving up some of its own for more.
    fn is_within_limits(&mut self, units: &[usize]) -> bool {
        let Claimant { project, wanted, moves, .. } = self.claimant;
        let own = units.iter().map(|&unit| &self.victims.units[unit]).filter(|unit| unit.project == project);
        let given_up = own.map(|unit| unit.amounts).fold(Amounts::default(), Amounts::plus);
        if moves || given_up == Amounts::default() {
            return self.accounts.over_limit(project, wanted).is_none();
        }
        if self.accounts.over_limit(project, wanted).is_some() {
            return false;
        }
        self.accounts.hold(project, given_up, false);
        let grows = self.accounts.grows_over_share(project, wanted, given_up);
        self.accounts.release(project, given_up);
        !grows
    }

    pub(crate) fn is_allowed(&mut self, units: &[usize]) -> bool {
        self.is_within_limits(units) && self.has_order(units)
    }

    /// Are the chosen units allowed? If not, counts more as stopped that make them so: tasks of the claimant's project with lower
    /// priority, and of projects below a department of both. The cheapest first, and none that proves needless.
    pub(crate) fn allow_chosen(&mut self) -> bool {
        let mut chosen = std::mem::take(&mut self.chosen);
        let before = chosen.len();
        let mut allowed = self.is_allowed(&chosen);
        if !allowed && !self.claimant.moves {
            let helpers = self.helpers();
            let few = &helpers[..helpers.len().min(UNITS)];
            allowed = self.help_one_by_one(&mut chosen, &helpers) || self.help(&mut chosen, few);
            for at in (before..chosen.len()).rev() {
                let unit = chosen.remove(at);
                self.put_back(unit);
                if !self.is_allowed(&chosen) {
                    self.take_off(unit);
                    chosen.insert(at, unit);
                }
            }
        }
        self.chosen = chosen;
        allowed
    }

    /// Counts as stopped every helper that has its place in an order, until all are allowed; none of them if that never is.
    fn help_one_by_one(&mut self, chosen: &mut Vec<usize>, helpers: &[usize]) -> bool {
        let before = chosen.len();
        for &unit in helpers {
            if self.steps == 0 {
                break;
            }
            self.steps -= 1;
            self.take_off(unit);
            chosen.push(unit);
            if self.is_allowed(chosen) {
                return true;
            }
            if !self.has_order(chosen) && !self.has_order(&chosen[before..]) {
                self.put_back(unit);
                chosen.pop();
            }
        }
        chosen.drain(before..).for_each(|unit| self.put_back(unit));
        false
    }

    /// Tries all sets of helpers.
    fn help(&mut self, chosen: &mut Vec<usize>, helpers: &[usize]) -> bool {
        for (at, &unit) in helpers.iter().enumerate() {
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            self.take_off(unit);
            chosen.push(unit);
            if self.is_allowed(chosen) || self.help(chosen, &helpers[at + 1..]) {
                return true;
            }
            chosen.pop();
            self.put_back(unit);
        }
        false
    }

    fn helpers(&self) -> Vec<usize> {
        let project = self.claimant.project;
        let helps = |unit: &usize| {
            let of = self.victims.units[*unit].project;
            self.may(*unit) && (of == project || self.accounts.shared(of, project) > 0)
        };
        let mut helpers: Vec<usize> = (0..self.victims.units.len()).filter(helps).collect();
        helpers.sort_unstable_by_key(|&unit| (self.victims.units[unit].cost, unit));
        helpers
    }
}
