//! One round of decisions: each waiting task in turn starts, waits, or has other tasks stopped for it.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{Milli, TaskId};

use super::evict::Claimant;
use super::reserve;
use super::turns::{Position, Turns};
use super::victims::Victims;
use crate::explain::lack::Lacks;
use crate::fair::accounts::Binding;
use crate::fair::tally::Tally;
use crate::shape::board::Boards;
use crate::shape::group::{Group, Index};
use crate::{
    Cause, Cluster, Eviction, Order, Place, Plan, Policy, Reason, Shape, Snapshot, Start, Use, Wait, Waiting,
};

/// A task that could not start; those behind it wait for it or are served past its reservation.
struct Blocked {
    position: Position,
    project: usize,
    needs: String,
}

/// A claim to room: project, priority, shapes and amounts. A decision about one of them is the decision about all that
/// are equal.
type Hopeless = (usize, i32, Vec<Shape>, [u64; 3]);

pub(crate) struct Round<'a> {
    state: &'a Snapshot,
    policy: &'a Policy,
    now_ms: i64,
    boards: Boards,
    /// The idle cluster.
    idle: Cluster,
    tally: Tally,
    /// Running tasks as victims; made when first needed.
    victims: Option<Victims>,
    /// When the reserved place will be free at the latest.
    reserved_from_ms: i64,
    /// Shapes that found no room: they need not be tried again, because a round only makes room less.
    full: BTreeSet<Shape>,
    /// Whether shapes fit the idle cluster.
    possible: BTreeMap<Vec<Shape>, bool>,
    /// Claims for which no room could be made. Later decisions in this round may change that; the next plan tries them
    /// again.
    hopeless: BTreeSet<Hopeless>,
    lacks: Lacks,
    index: Index<'a>,
    blocked: Vec<Blocked>,
    /// Positions in the order in which they were considered.
    considered: Vec<Position>,
    starts: Vec<Start>,
    evictions: Vec<Eviction>,
    /// Positions of the running tasks that stop, those of this round too, by node.
    stopping: BTreeMap<&'a str, BTreeSet<usize>>,
    decided: BTreeMap<Position, Option<Reason>>,
}

impl<'a> Round<'a> {
    /// The plan, and the order in which tasks got their chance.
    pub(crate) fn decide(state: &'a Snapshot, policy: &'a Policy, now_ms: i64) -> (Plan, Vec<Position>) {
        let mut round = Self::new(state, policy, now_ms);
        let mut turns = Turns::new(state, policy.order, &round.tally.now);
        for position in round.index.promised() {
            round.give_turn(position);
        }
        while let Some(position) = turns.next(&round.tally.now, &round.tally.needs) {
            round.give_turn(position);
        }
        round.finish()
    }

    fn new(state: &'a Snapshot, policy: &'a Policy, now_ms: i64) -> Self {
        let idle = Cluster::nominal(&state.nodes);
        let mut stopping: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        let running = state.running.iter().enumerate();
        for (at, task) in running.filter(|(_, running)| running.stopping.is_some()) {
            stopping.entry(&task.node).or_default().insert(at);
        }
        Self {
            state,
            policy,
            now_ms,
            boards: Boards::new(state, policy),
            tally: Tally::new(state, policy, &idle),
            idle,
            victims: None,
            reserved_from_ms: i64::MIN,
            full: BTreeSet::new(),
            possible: BTreeMap::new(),
            hopeless: BTreeSet::new(),
            lacks: Lacks::default(),
            index: Index::new(state),
            blocked: Vec::new(),
            considered: Vec::new(),
            starts: Vec::new(),
            evictions: Vec::new(),
            stopping,
            decided: BTreeMap::new(),
        }
    }

    fn waiting(&self, (queue, task): Position) -> &'a Waiting {
        &self.state.queues[queue].waiting[task]
    }

    fn consider(&mut self, position: Position) {
        let task = self.waiting(position);
        let group = self.index.group(position, &self.idle, &self.tally);
        if let Some(gang) = &task.gang {
            let present = group.members.len() + self.index.started(gang);
            let present = u32::try_from(present).unwrap_or(u32::MAX);
            if present < gang.size {
                let reason = Reason::GangIncomplete { gang: gang.name.clone(), present, size: gang.size };
                return self.wait(&group, &reason);
            }
        }
        if let Some(node) = &task.freeing_on {
            self.tally.now.hold(group.project, group.amounts, false);
            self.tally.later.hold(group.project, group.amounts, false);
            return self.wait(&group, &Reason::FreeingOn { needs: group.needs.clone(), node: node.clone() });
        }
        if let Some(head) = self.blocked_by(position.0, group.project) {
            let reason = Reason::Behind {
                task: self.waiting(head.position).task.clone(),
                queue: self.state.queues[head.position.0].spec.name.clone(),
                needs: head.needs.clone(),
            };
            return self.wait(&group, &reason);
        }
        if let Some(reason) = self.refused_by_quota(&group, task) {
            let freeing = match reason {
                Reason::OverLimit { .. } => self.make_room(&group),
                _ => None,
            };
            return self.wait(&group, &freeing.unwrap_or(reason));
        }
        if let Some(used) = group.used_up.first()
            && group.shapes.iter().any(|shape| shape.classes().next().is_none())
        {
            return self.wait(&group, &Reason::OverPool { needs: group.needs.clone(), used: used.clone() });
        }
        if let Some(most) = self.state.at_once
            && self.state.running.len() + self.starts.len() + group.members.len() > most
        {
            return self.wait(&group, &Reason::EnoughAtOnce { most });
        }
        match self.find(&group, task.max_run_ms) {
            Some(places) => self.start(&group, &places),
            None => self.block(&group),
        }
    }

    fn give_turn(&mut self, position: Position) {
        for position in self.index.with_those_yielded_to(position) {
            if !self.decided.contains_key(&position) {
                self.considered.push(position);
                self.consider(position);
            }
        }
    }

    /// The blocked task that must not be overtaken.
    fn blocked_by(&self, queue: usize, project: usize) -> Option<&Blocked> {
        if self.policy.backfill {
            return None;
        }
        self.blocked.iter().find(|head| match self.policy.order {
            Order::Strict => true,
            Order::Fair => head.position.0 == queue,
            Order::Share => head.project == project,
        })
    }

    fn refused_by_quota(&self, group: &Group, task: &Waiting) -> Option<Reason> {
        let needs = || group.needs.clone();
        if let Some(Binding { project, resource, most, held, asked }) =
            self.tally.now.over_limit(group.project, group.amounts)
        {
            return Some(Reason::OverLimit { needs: needs(), project, resource, limit: most, held, asked });
        }
        if task.preemptible {
            return None;
        }
        let over = self.tally.now.over_quota_for_good(group.project, group.amounts);
        over.map(|Binding { project, resource, most, held, asked }| Reason::OverQuota {
            needs: needs(),
            project,
            resource,
            quota: most,
            held,
            asked,
        })
    }

    fn find(&mut self, group: &Group, max_run_ms: Option<i64>) -> Option<Vec<Place>> {
        if group.shapes.iter().any(|shape| self.full.contains(shape)) {
            return None;
        }
        let in_time =
            max_run_ms.is_some_and(|run_ms| self.now_ms.saturating_add(run_ms) <= self.reserved_from_ms);
        self.boards.find_all(&group.shapes, in_time)
    }

    fn start(&mut self, group: &Group, places: &[Place]) {
        for (&position, place) in group.members.iter().zip(places) {
            let (from, task) = (&self.state.queues[position.0], self.waiting(position));
            self.starts.push(Start {
                task: task.task.clone(),
                queue: from.spec.name.clone(),
                node: self.idle.node_name(place.node).to_owned(),
                slices: self.idle.slices(place),
                host: place.host,
            });
            self.boards.take(place);
            let in_pools = self.idle.in_pools(place);
            self.tally.now.hold_in(group.project, &in_pools, !task.preemptible);
            self.tally.later.hold_in(group.project, &in_pools, !task.preemptible);
            let amounts = task.counts(place.amounts());
            self.tally.now.hold(group.project, amounts, !task.preemptible);
            self.tally.later.hold(group.project, amounts, !task.preemptible);
            self.decided.insert(position, None);
        }
    }

    fn wait(&mut self, group: &Group, reason: &Reason) {
        for &member in &group.members {
            self.decided.insert(member, Some(reason.clone()));
        }
    }

    fn block(&mut self, group: &Group) {
        if !self.is_possible(group) {
            // It must not delay tasks that can run.
            return self.wait(group, &self.never(group));
        }
        let reason = self.make_room(group).unwrap_or_else(|| self.no_room(group));
        self.wait(group, &reason);
        if matches!(reason, Reason::Freeing { .. }) {
            // Its room is kept already; those behind it need not wait for it.
            return;
        }
        let reserves = self.blocked.is_empty() && self.policy.backfill;
        self.blocked.push(Blocked {
            position: group.members[0],
            project: group.project,
            needs: group.needs.clone(),
        });
        if reserves && let [shape] = group.shapes.as_slice() {
            self.reserved_from_ms =
                reserve::hold(self.boards.reservable(), self.state, shape).unwrap_or(i64::MIN);
        }
    }

    /// Does the group fit the idle cluster?
    fn is_possible(&mut self, group: &Group) -> bool {
        if let Some(known) = self.possible.get(&group.shapes) {
            return *known;
        }
        let possible = self.idle.clone().fill(&group.shapes);
        self.possible.insert(group.shapes.clone(), possible);
        possible
    }

    /// Why not even the idle cluster could run it now.
    fn never(&self, group: &Group) -> Reason {
        let (needs, rules) = (group.needs.clone(), &group.demand.pools);
        if let Some(used) = group.used_up.first() {
            return Reason::OverPool { needs, used: used.clone() };
        }
        if !rules.is_empty() && !self.idle.classes().iter().any(|class| class.is_allowed(rules)) {
            return Reason::OutsidePools { needs, rules: rules.clone() };
        }
        Reason::Never { needs, largest: self.idle.largest(&group.demand) }
    }

    /// Waits for those that were asked to stop, or asks some to; `None` if that is not allowed or does not help.
    fn make_room(&mut self, group: &Group) -> Option<Reason> {
        if !self.policy.reclaim && !self.policy.consolidate {
            return None;
        }
        let priority = self.waiting(group.members[0]).priority;
        let claim = (group.project, priority, group.shapes.clone(), group.amounts.0);
        if self.hopeless.contains(&claim) {
            return None;
        }
        let made = self.try_to_make_room(group);
        if made.is_none() {
            self.hopeless.insert(claim);
        }
        made
    }

    fn try_to_make_room(&mut self, group: &Group) -> Option<Reason> {
        // Where a limit is reached, tasks of the project have to stop even if there is room.
        let over_limit = self.tally.later.over_limit(group.project, group.amounts).is_some();
        let free = if over_limit { None } else { self.boards.later.fill_places(&group.shapes) };
        let (places, tasks) = match free {
            Some(places) => {
                let tasks = self.stopping_for(group, &places);
                if tasks.is_empty() {
                    // The room is reserved for a task ahead of it.
                    places.iter().for_each(|place| self.boards.later.give_back(place));
                    return None;
                }
                // Or its project could ask for more than its share while others still have their grace.
                self.tally.later.hold(group.project, group.amounts, false);
                for place in &places {
                    self.tally.later.hold_in(group.project, &self.idle.in_pools(place), false);
                }
                (places, tasks)
            }
            None => self.evict(group)?,
        };
        places.iter().for_each(|place| self.boards.keep(place));
        Some(Reason::Freeing { needs: group.needs.clone(), tasks })
    }

    /// Tasks that stop: on the nodes of these places, and of a project that is at its limit.
    fn stopping_for(&self, group: &Group, places: &[Place]) -> Vec<TaskId> {
        let now = &self.tally.now;
        let on = |place: &Place| self.stopping.get(self.idle.node_name(place.node));
        let mut found: BTreeSet<usize> = places.iter().filter_map(on).flatten().copied().collect();
        if let Some(limited) = now.over_limit(group.project, group.amounts) {
            let limited = now.position(Some(&limited.project));
            found.extend(self.stopping.values().flatten().copied().filter(|&at| {
                let of = now.position(self.state.running[at].project.as_deref());
                now.path(of).contains(&limited)
            }));
        }
        found.into_iter().map(|at| self.state.running[at].task.clone()).collect()
    }

    /// Chooses the tasks that have to stop for `group`. Tries to take before it tries to move. A move is made alone:
    /// a moving task must get the place that was found for it, so no other task is stopped until it has.
    fn evict(&mut self, group: &Group) -> Option<(Vec<Place>, Vec<TaskId>)> {
        let asked_now = self.evictions.iter().map(|eviction| eviction.cause);
        let asked_before = self.state.running.iter().filter_map(|running| running.stopping);
        let asked: Vec<Cause> = asked_now.chain(asked_before).collect();
        if asked.contains(&Cause::Consolidate) {
            return None;
        }
        let (state, later) = (self.state, &mut self.boards.later);
        let victims = self.victims.get_or_insert_with(|| {
            let by_name = later.by_name();
            let places: Vec<Option<Place>> =
                state.running.iter().map(|running| later.place_of(&by_name, running)).collect();
            Victims::new(later, &self.tally.now, &state.running, &places, self.now_ms)
        });
        let head = &state.queues[group.members[0].0].waiting[group.members[0].1];
        let accounts = &mut self.tally.later;
        let claimant = Claimant {
            project: group.project,
            priority: head.priority,
            wanted: group.amounts,
            in_pools: &group.in_pools,
            moves: false,
            shares_only: false,
        };
        let mut room = None;
        if self.policy.reclaim {
            room = victims.make_room(later, accounts, claimant, &group.shapes);
        }
        if room.is_none() && self.policy.consolidate && asked.is_empty() {
            room = victims.make_room(later, accounts, Claimant { moves: true, ..claimant }, &group.shapes);
        }
        let room = room?;
        room.moved.iter().for_each(|place| self.boards.keep(place));
        let asked = room.victims.iter().map(|(victim, _)| state.running[*victim].task.clone()).collect();
        self.evictions.extend(room.victims.iter().map(|&(victim, cause)| {
            let running = &state.running[victim];
            self.stopping.entry(&running.node).or_default().insert(victim);
            Eviction {
                task: running.task.clone(),
                lease: running.lease.clone(),
                node: running.node.clone(),
                for_task: head.task.clone(),
                cause,
            }
        }));
        Some((room.places, asked))
    }

    fn no_room(&mut self, group: &Group) -> Reason {
        let needs = group.needs.clone();
        let known_full = group.shapes.iter().any(|shape| self.full.contains(shape));
        if !known_full
            && let Some(head) = self.blocked.first()
            // Counting what is kept for others.
            && self.boards.find_all(&group.shapes, true).is_some()
        {
            return Reason::Reserved { needs, task: self.waiting(head.position).task.clone() };
        }
        let accounts = &self.tally.later;
        let share = accounts.over_share(group.project, group.amounts);
        let path = accounts.path(group.project);
        let in_quota = !path.is_empty() && accounts.is_within_quota(&path, group.amounts);
        let priority = in_quota.then(|| self.waiting(group.members[0]).priority);
        self.lacks.note(&self.idle, group, priority);
        let rules = group.demand.pools.iter().map(ToString::to_string);
        let pools = rules.chain(group.used_up.iter().map(ToString::to_string)).collect();
        if let [shape] = group.shapes.as_slice() {
            self.full.insert(shape.clone());
        }
        Reason::NoRoom {
            needs,
            free: Vec::new(),
            more: 0,
            in_use: Use { used: Milli(0), total: Milli(0) },
            share,
            quota: None,
            pools,
        }
    }

    fn finish(mut self) -> (Plan, Vec<Position>) {
        let (cluster, accounts) = (&self.boards.open.cluster, &mut self.tally.later);
        self.lacks.explain(cluster, accounts, self.victims.as_ref(), self.policy);
        let lacks = &self.lacks;
        let wait = |((queue, task), reason): (Position, Option<Reason>)| {
            Some(Wait {
                task: self.state.queues[queue].waiting[task].task.clone(),
                queue: self.state.queues[queue].spec.name.clone(),
                reason: lacks.in_full((queue, task), reason?),
            })
        };
        let waits = self.decided.into_iter().filter_map(wait).collect();
        (Plan { starts: self.starts, evictions: self.evictions, waits }, self.considered)
    }
}
