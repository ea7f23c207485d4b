//! The decision of one moment.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{Slice, TaskId};

use crate::turns::turns;
use crate::{Cluster, Demand, Host, Order, Picker, Place, Policy, Reason, Shape, Standard, State, reserve};

/// What to do now. Every waiting task is in `starts` or in `waits`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Tasks to start, in this order.
    pub starts: Vec<Start>,
    /// Tasks that wait, by queue and place in it.
    pub waits: Vec<Wait>,
}

/// Start this task there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The task.
    pub task: TaskId,
    /// Name of the queue it is taken from.
    pub queue: String,
    /// Name of the node.
    pub node: String,
    /// What it gets.
    pub slices: Vec<Slice>,
    /// What it takes of the host.
    pub host: Host,
}

/// This task waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The task.
    pub task: TaskId,
    /// Name of its queue.
    pub queue: String,
    /// Why.
    pub reason: Reason,
}

impl Plan {
    /// Name of the queue served last, to be put into [`State::last_served`] of the next round.
    #[must_use]
    pub fn last_served(&self) -> Option<&str> {
        self.starts.last().map(|start| start.queue.as_str())
    }
}

/// Decides what starts at `now_ms` (milliseconds since the epoch) and why the rest waits.
#[must_use]
pub fn plan(state: &State, policy: &Policy, now_ms: i64) -> Plan {
    let mut round = Round::new(state, policy, now_ms);
    for (queue, task) in turns(state, policy.order) {
        round.consider(queue, task);
    }
    round.finish()
}

/// The first task that could not start; those behind it wait for it or are served past its reservation.
struct Blocked {
    queue: usize,
    task: usize,
    needs: String,
}

/// Free amounts and what finds places among them.
#[derive(Clone)]
struct Board {
    cluster: Cluster,
    picker: Picker<Standard>,
}

impl Board {
    fn new(cluster: Cluster, state: &State, policy: &Policy) -> Self {
        let picker = Standard::picker(policy.placement, &state.expected, &cluster);
        Self { cluster, picker }
    }

    fn find(&mut self, shape: &Shape) -> Option<Place> {
        self.picker.find(&self.cluster, shape)
    }
}

struct Round<'a> {
    state: &'a State,
    policy: &'a Policy,
    now_ms: i64,
    /// What is free.
    open: Board,
    /// What is free and not reserved; `None` while nothing is reserved.
    unreserved: Option<Board>,
    /// When the reserved place will be free at the latest.
    reserved_from_ms: i64,
    /// The idle cluster.
    idle: Cluster,
    /// Shapes that found no room: they need not be tried again, because a round only makes room less.
    full: BTreeSet<Shape>,
    blocked: Vec<Blocked>,
    starts: Vec<Start>,
    waits: BTreeMap<(usize, usize), Reason>,
}

impl<'a> Round<'a> {
    fn new(state: &'a State, policy: &'a Policy, now_ms: i64) -> Self {
        Self {
            state,
            policy,
            now_ms,
            open: Board::new(Cluster::of(state), state, policy),
            unreserved: None,
            reserved_from_ms: i64::MIN,
            idle: Cluster::nominal(&state.nodes),
            full: BTreeSet::new(),
            blocked: Vec::new(),
            starts: Vec::new(),
            waits: BTreeMap::new(),
        }
    }

    fn consider(&mut self, queue: usize, task: usize) {
        let (from, waiting) = (&self.state.queues[queue], &self.state.queues[queue].waiting[task]);
        if let Some(head) = self.blocked_by(queue) {
            let ahead = &self.state.queues[head.queue];
            let reason = Reason::Behind {
                task: ahead.waiting[head.task].task.clone(),
                queue: ahead.spec.name.clone(),
                needs: head.needs.clone(),
            };
            self.waits.insert((queue, task), reason);
            return;
        }
        let demand = Demand::of(from, waiting);
        let shape = self.open.cluster.shape(&demand);
        match self.find(&shape, waiting.max_run_ms) {
            Some(place) => self.start(queue, task, &place),
            None => self.block(queue, task, &demand, &shape),
        }
    }

    /// The blocked task that `queue` may not overtake.
    fn blocked_by(&self, queue: usize) -> Option<&Blocked> {
        if self.policy.backfill {
            return None;
        }
        self.blocked.iter().find(|head| self.policy.order == Order::Strict || head.queue == queue)
    }

    fn find(&mut self, shape: &Shape, max_run_ms: Option<i64>) -> Option<Place> {
        if self.full.contains(shape) {
            return None;
        }
        let ends_in_time =
            max_run_ms.is_some_and(|run_ms| self.now_ms.saturating_add(run_ms) <= self.reserved_from_ms);
        match &mut self.unreserved {
            Some(unreserved) if !ends_in_time => unreserved.find(shape),
            _ => self.open.find(shape),
        }
    }

    fn start(&mut self, queue: usize, task: usize, place: &Place) {
        let from = &self.state.queues[queue];
        self.starts.push(Start {
            task: from.waiting[task].task.clone(),
            queue: from.spec.name.clone(),
            node: self.open.cluster.node_name(place.node).to_owned(),
            slices: self.open.cluster.slices(place),
            host: place.host,
        });
        self.open.cluster.take(place);
        if let Some(unreserved) = &mut self.unreserved {
            unreserved.cluster.take(place);
        }
    }

    fn block(&mut self, queue: usize, task: usize, demand: &Demand, shape: &Shape) {
        let needs = demand.ask.to_string();
        if !self.idle.has_room(shape) {
            // It must not hold up those that can run.
            let reason = Reason::Never { needs, largest: self.idle.largest(demand) };
            self.waits.insert((queue, task), reason);
            return;
        }
        let reason = self.no_room(demand, shape);
        self.waits.insert((queue, task), reason);
        let first = self.blocked.is_empty();
        self.blocked.push(Blocked { queue, task, needs });
        if first && self.policy.backfill {
            let mut unreserved = self.open.clone();
            if let Some(from_ms) = reserve::hold(&mut unreserved.cluster, self.state, shape) {
                self.reserved_from_ms = from_ms;
                self.unreserved = Some(unreserved);
            }
        }
    }

    fn no_room(&mut self, demand: &Demand, shape: &Shape) -> Reason {
        let needs = demand.ask.to_string();
        if !self.full.contains(shape) && self.open.cluster.has_room(shape) {
            let head = &self.blocked[0];
            return Reason::Reserved {
                needs,
                task: self.state.queues[head.queue].waiting[head.task].task.clone(),
            };
        }
        self.full.insert(shape.clone());
        let gpus_alone = Demand { host: Host::default(), ..demand.clone() };
        if self.open.cluster.has_room(&self.open.cluster.shape(&gpus_alone)) {
            let Host { cpu_milli, memory_bytes } = demand.host;
            return Reason::NoHost { needs, cpu_milli, memory_bytes };
        }
        Reason::NoRoom {
            needs,
            free: self.open.cluster.free_parts(shape),
            in_use: self.open.cluster.in_use(),
        }
    }

    fn finish(self) -> Plan {
        let wait = |((queue, task), reason): ((usize, usize), Reason)| Wait {
            task: self.state.queues[queue].waiting[task].task.clone(),
            queue: self.state.queues[queue].spec.name.clone(),
            reason,
        };
        Plan { starts: self.starts, waits: self.waits.into_iter().map(wait).collect() }
    }
}
