//! Tasks that start together, and where waiting tasks are found.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::TaskId;

use crate::fair::pool::add;
use crate::fair::tally::Tally;
use crate::search::turns::Position;
use crate::{Amounts, Cluster, Demand, Gang, PoolMilli, Shape, Snapshot, UsedPool, Waiting};

/// Tasks that start together: one, or a gang.
pub(crate) struct Group {
    pub(crate) members: Vec<Position>,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) demand: Demand,
    pub(crate) project: usize,
    pub(crate) amounts: Amounts,
    /// The most that they may take of each pool.
    pub(crate) in_pools: PoolMilli,
    /// Quotas of pools that they would exceed: none of these pools' GPUs is in their shapes.
    pub(crate) used_up: Vec<UsedPool>,
    /// Their demand, as text.
    pub(crate) needs: String,
}

/// The positions of waiting tasks by gang and by id.
pub(crate) struct Index<'a> {
    state: &'a Snapshot,
    /// By name and size.
    gangs: BTreeMap<(&'a str, u32), Vec<Position>>,
    /// The number of members that run, and were not asked to stop.
    started: BTreeMap<(&'a str, u32), usize>,
    /// Tasks that others were stopped for.
    yielded_to: BTreeMap<&'a TaskId, Position>,
}

impl<'a> Index<'a> {
    pub(crate) fn new(state: &'a Snapshot) -> Self {
        let (gangs, mut started) = (BTreeMap::new(), BTreeMap::new());
        let running = state.running.iter().filter(|running| running.stopping.is_none());
        for gang in running.filter_map(|running| running.gang.as_ref()) {
            *started.entry((gang.name.as_str(), gang.size)).or_default() += 1;
        }
        let mut index = Self { state, gangs, started, yielded_to: BTreeMap::new() };
        let sought: BTreeSet<&TaskId> =
            index.all().filter_map(|(_, task)| task.yielded_to.as_ref()).collect();
        for (position, task) in all(state) {
            if let Some(gang) = &task.gang {
                index.gangs.entry((&gang.name, gang.size)).or_default().push(position);
            }
            if sought.contains(&task.task) {
                index.yielded_to.entry(&task.task).or_insert(position);
            }
        }
        index
    }

    fn all(&self) -> impl Iterator<Item = (Position, &'a Waiting)> {
        all(self.state)
    }

    pub(crate) fn waiting(&self, (queue, task): Position) -> &'a Waiting {
        &self.state.queues[queue].waiting[task]
    }

    /// Tasks for which others were stopped, then tasks that were stopped to start again elsewhere: all of them are
    /// considered before any other task, or one stopped task would take the place that was freed by another.
    pub(crate) fn promised(&self) -> Vec<Position> {
        let claims = self.all().filter(|(_, task)| self.yielded_to.contains_key(&task.task));
        let moved = self.all().filter(|(_, task)| task.moved);
        claims.chain(moved).map(|(position, _)| position).collect()
    }

    /// A task and those it was stopped for, the last of them first.
    pub(crate) fn with_those_yielded_to(&self, position: Position) -> Vec<Position> {
        let mut chain = vec![position];
        let next = |task: &Waiting| self.yielded_to.get(task.yielded_to.as_ref()?).copied();
        while let Some(next) = next(self.waiting(chain[chain.len() - 1])) {
            if chain.contains(&next) {
                break;
            }
            chain.push(next);
        }
        chain.reverse();
        chain
    }

    /// How many tasks of a gang run. Those that wait join them.
    pub(crate) fn started(&self, gang: &Gang) -> usize {
        self.started.get(&(gang.name.as_str(), gang.size)).copied().unwrap_or(0)
    }

    /// The task itself, or all waiting members of its gang. `idle` is the idle cluster.
    pub(crate) fn group(&self, position: Position, idle: &Cluster, tally: &Tally) -> Group {
        let task = self.waiting(position);
        let members = match &task.gang {
            None => vec![position],
            Some(gang) => self.gangs[&(gang.name.as_str(), gang.size)].clone(),
        };
        let demand = |&(queue, at): &Position| {
            Demand::of(&self.state.queues[queue], &self.state.queues[queue].waiting[at])
        };
        let mut shapes: Vec<Shape> = members.iter().map(|member| idle.shape(&demand(member))).collect();
        let project = tally.now.position(task.project.as_deref());
        let mut in_pools = PoolMilli::new();
        shapes.iter().for_each(|shape| add(&mut in_pools, &idle.most_in_pools(shape)));
        let used_up = tally.now.used_up(project, &in_pools, !task.preemptible);
        let names: Vec<String> = used_up.iter().map(|used| used.pool.clone()).collect();
        let demand_of = |position: &Position| Demand { used_up: names.clone(), ..demand(position) };
        let demand = demand_of(&position);
        let needs = match members.len() {
            1 => demand.words(idle.classes()),
            count => format!("{} for each of {count} tasks at once", demand.words(idle.classes())),
        };
        let counted =
            members.iter().zip(&shapes).map(|(member, shape)| self.waiting(*member).counts(shape.amounts()));
        let amounts = counted.fold(Amounts::default(), Amounts::plus);
        if !used_up.is_empty() {
            shapes = members.iter().map(|member| idle.shape(&demand_of(member))).collect();
        }
        Group { members, shapes, demand, project, amounts, in_pools, used_up, needs }
    }
}

fn all(state: &Snapshot) -> impl Iterator<Item = (Position, &Waiting)> {
    let queues = state.queues.iter().enumerate();
    queues.flat_map(|(at, queue)| queue.waiting.iter().enumerate().map(move |(task, w)| ((at, task), w)))
}
