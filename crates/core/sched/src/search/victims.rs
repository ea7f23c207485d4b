//! The running tasks as victims: what each would free, what stopping it costs, and which project it belongs to.

use std::collections::BTreeMap;

use super::offers::Offers;
use crate::fair::accounts::Accounts;
use crate::fair::pool::add;
use crate::snapshot::weighed;
use crate::{Amounts, Cluster, Cut, Host, NodeFree, Place, PoolMilli, Running};

/// Running tasks that stop together: one, or a gang.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    /// Positions among the running tasks.
    pub(crate) tasks: Vec<usize>,
    pub(crate) places: Vec<Place>,
    pub(crate) project: usize,
    /// Position of its kind.
    pub(crate) kind: usize,
    pub(crate) amounts: Amounts,
    pub(crate) in_pools: PoolMilli,
    pub(crate) cost: Cost,
    /// Is it already chosen, or must it not be?
    pub(crate) settled: bool,
    /// Why it must not be stopped.
    pub(crate) bar: Option<Bar>,
    pub(crate) gang: bool,
}

/// Why a task must not be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Bar {
    /// It was asked to already.
    Stopping,
    /// It has not run for its project's minimum time.
    MinimumTime,
    /// It is not preemptible.
    NotPreemptible,
}

/// The cost of stopping: priority first, then the work that is lost, in thousandths of a GPU times milliseconds.
pub(crate) type Cost = (i32, u128);

/// Units about which quotas decide alike: of one project, with the same resources and pools.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kind {
    pub(crate) project: usize,
    /// One of each resource that a unit of this kind holds.
    pub(crate) involved: [u64; 3],
    /// The pools of its GPUs; only the names count.
    pub(crate) in_pools: PoolMilli,
}

/// The running tasks as victims.
#[derive(Clone, Debug)]
pub(crate) struct Victims {
    pub(crate) units: Vec<Unit>,
    pub(crate) kinds: Vec<Kind>,
    /// Units on each GPU of each node.
    pub(crate) on_gpu: Vec<Vec<Vec<usize>>>,
    /// Units that hold CPU and memory of each node, and none of its GPUs.
    on_host: Vec<Vec<usize>>,
    /// Sets of units that may still be tried in this round.
    pub(crate) steps: usize,
    /// The offers of nodes in this round.
    pub(crate) offers: Offers,
}

/// Sets of units tried in a round.
const STEPS: usize = 100_000;

impl Victims {
    /// `places` has the holdings of each running task.
    pub(crate) fn new(
        cluster: &Cluster,
        accounts: &Accounts,
        running: &[Running],
        places: &[Option<Place>],
        now_ms: i64,
    ) -> Self {
        let gpus = cluster.nodes().iter().map(|node| vec![Vec::new(); node.gpus.len()]).collect();
        let on_host = vec![Vec::new(); cluster.len()];
        let (units, kinds, offers) = (Vec::new(), Vec::new(), Offers::default());
        let mut victims = Self { units, kinds, on_gpu: gpus, on_host, steps: STEPS, offers };
        let mut gangs: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, (task, place)) in running.iter().zip(places).enumerate() {
            let Some(place) = place else { continue };
            let gang = task.gang.as_ref().map(|gang| gang.name.as_str());
            let unit = match gang.and_then(|name| gangs.get(name)) {
                Some(&unit) => unit,
                None => {
                    victims.units.push(Unit::new(accounts.position(task.project.as_deref()), gang.is_some()));
                    victims.units.len() - 1
                }
            };
            gangs.extend(gang.map(|name| (name, unit)));
            for (gpu, _) in &place.gpus {
                victims.on_gpu[place.node][*gpu].push(unit);
            }
            if place.gpus.is_empty() {
                victims.on_host[place.node].push(unit);
            }
            let min_run_ms = accounts.account(victims.units[unit].project).min_run_ms;
            victims.units[unit].add(at, task, place, now_ms, min_run_ms);
            add(&mut victims.units[unit].in_pools, &cluster.in_pools(place));
        }
        victims.find_kinds();
        victims
    }

    fn find_kinds(&mut self) {
        let mut known: BTreeMap<Kind, usize> = BTreeMap::new();
        for unit in &mut self.units {
            let involved = unit.amounts.0.map(|amount| amount.min(1));
            let in_pools = unit.in_pools.keys().map(|pool| (pool.clone(), 1)).collect();
            let kind = Kind { project: unit.project, involved, in_pools };
            let next = known.len();
            unit.kind = *known.entry(kind).or_insert(next);
        }
        let mut kinds: Vec<(usize, Kind)> = known.into_iter().map(|(kind, at)| (at, kind)).collect();
        kinds.sort_unstable();
        self.kinds = kinds.into_iter().map(|(_, kind)| kind).collect();
    }

    /// Units on a node, each of them once, the cheapest first.
    pub(crate) fn on_node(&self, node: usize) -> Vec<usize> {
        let mut units: Vec<usize> =
            self.on_gpu[node].iter().flatten().chain(&self.on_host[node]).copied().collect();
        units.sort_unstable_by_key(|&unit| (self.units[unit].cost, unit));
        units.dedup();
        units
    }

    /// The highest priority among the units and all the work that is lost.
    pub(crate) fn cost_of(&self, units: &[usize]) -> Cost {
        let costs = units.iter().map(|&unit| self.units[unit].cost);
        costs.fold((i32::MIN, 0), |sum, (priority, work)| (sum.0.max(priority), sum.1 + work))
    }

    /// A node without these units.
    pub(crate) fn without(&self, free: &NodeFree, node: usize, units: &[usize]) -> NodeFree {
        let mut left = free.clone();
        for place in
            units.iter().flat_map(|&unit| &self.units[unit].places).filter(|place| place.node == node)
        {
            place.gpus.iter().for_each(|(gpu, cut)| left.gpus[*gpu].put_back(*cut));
            if left.host != Host::UNCOUNTED {
                left.host.cpu_milli += place.host.cpu_milli;
                left.host.memory_bytes += place.host.memory_bytes;
            }
        }
        left
    }
}

impl Unit {
    const fn new(project: usize, gang: bool) -> Self {
        Self {
            tasks: Vec::new(),
            places: Vec::new(),
            project,
            kind: 0,
            amounts: Amounts([0; 3]),
            in_pools: PoolMilli::new(),
            cost: (i32::MIN, 0),
            settled: false,
            bar: None,
            gang,
        }
    }

    fn add(&mut self, at: usize, task: &Running, place: &Place, now_ms: i64, min_run_ms: i64) {
        let ran_ms = now_ms.saturating_sub(task.started_at_ms).max(0);
        let amounts = weighed(place.amounts(), task.quota_milli);
        self.tasks.push(at);
        self.places.push(place.clone());
        self.amounts = self.amounts.plus(amounts);
        self.cost.0 = self.cost.0.max(task.priority);
        // A task without GPUs counts as the least part of one: the youngest of them is the cheapest, too.
        self.cost.1 += u128::from(amounts.0[0].max(1)) * u128::from(ran_ms.unsigned_abs());
        let bar = match task {
            _ if !task.preemptible => Some(Bar::NotPreemptible),
            _ if ran_ms < min_run_ms => Some(Bar::MinimumTime),
            _ => task.stopping.map(|_| Bar::Stopping),
        };
        self.bar = self.bar.max(bar);
        self.settled |= bar.is_some();
    }

    pub(crate) fn on(&self, node: usize, gpu: usize) -> impl Iterator<Item = Cut> + '_ {
        let places = self.places.iter().filter(move |place| place.node == node);
        places.flat_map(|place| &place.gpus).filter(move |(at, _)| *at == gpu).map(|(_, share)| *share)
    }
}
