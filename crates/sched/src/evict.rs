//! Chooses the running tasks that have to stop so that a waiting one fits. Every choice is first tried on the free
//! amounts. No task is asked to stop unless that makes room.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::TaskId;

use crate::accounts::Accounts;
use crate::binpack::{choose, fullest_first};
use crate::cut::rivals;
use crate::pool::add;
use crate::snapshot::weighed;
use crate::{Amounts, Cause, Cluster, Cut, GpuFree, Host, NodeFree, Place, PoolMilli, Running, Shape};

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
}

/// The place that is freed, and the task for which it is freed: all of it is counted at once, and undone if it leads
/// nowhere.
struct Attempt<'a> {
    cluster: &'a mut Cluster,
    accounts: &'a mut Accounts,
    claimant: Claimant<'a>,
}

/// Room made for a claimant.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// A place for each of its shapes.
    pub(crate) places: Vec<Place>,
    /// The new places of tasks that only move.
    pub(crate) moved: Vec<Place>,
    /// Positions among the running tasks, and why.
    pub(crate) victims: Vec<(usize, Cause)>,
}

/// Running tasks that stop together: one, or a gang.
#[derive(Clone, Debug)]
struct Unit {
    tasks: Vec<usize>,
    places: Vec<Place>,
    project: usize,
    amounts: Amounts,
    in_pools: PoolMilli,
    cost: Cost,
    /// Is it already chosen, or must it not be?
    settled: bool,
    gang: bool,
}

/// The cost of stopping: priority first, then the work that is lost, in thousandths of a GPU times milliseconds.
type Cost = (i32, u128);

/// Room that could be made on a node: what it costs, how many units it takes, the node, and the units.
type Offer = (Cost, usize, usize, Vec<usize>);

/// Whether units of a project may be taken, by what they hold in addition to GPUs (CPU, memory) and by the pools of their
/// GPUs; the same for all of them as long as the accounts don't change.
type Allowed = BTreeMap<(usize, bool, bool, Vec<String>), bool>;

/// The running tasks as victims.
#[derive(Clone, Debug)]
pub(crate) struct Victims {
    units: Vec<Unit>,
    /// Units on each GPU of each node.
    on_gpu: Vec<Vec<Vec<usize>>>,
}

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
        let mut victims = Self { units: Vec::new(), on_gpu: gpus };
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
            let min_run_ms = accounts.account(victims.units[unit].project).min_run_ms;
            victims.units[unit].add(at, task, place, now_ms, min_run_ms);
            add(&mut victims.units[unit].in_pools, &cluster.in_pools(place));
        }
        victims
    }

    /// Makes room for `shapes` (all of them, or none) in `cluster`, which shows what will be free once all that was
    /// asked to stop has stopped. On success `cluster` and `accounts` count the room as taken.
    pub(crate) fn make_room(
        &mut self,
        cluster: &mut Cluster,
        accounts: &mut Accounts,
        claimant: Claimant<'_>,
        shapes: &[Shape],
    ) -> Option<Room> {
        let mut room = Room::default();
        let mut attempt = Attempt { cluster, accounts, claimant };
        let (mut chosen, mut offers, mut offers_for) = (Vec::new(), BTreeSet::new(), None);
        for shape in shapes {
            if offers_for != Some(shape) {
                let mut allowed = BTreeMap::new();
                let offer = |node| self.offer(&attempt, shape, node, &mut allowed);
                offers = (0..attempt.cluster.len()).filter_map(offer).collect();
                offers_for = Some(shape);
            }
            let Some((place, units, moved)) = self.next_place(&mut attempt, shape, &mut offers) else {
                self.undo(&mut attempt, &room, chosen);
                return None;
            };
            attempt.cluster.take(&place);
            offers.extend(self.offer(&attempt, shape, place.node, &mut BTreeMap::new()));
            room.places.push(place);
            room.moved.extend(moved);
            chosen.extend(units);
        }
        if self.grows_by_its_own(&attempt, &chosen) {
            self.undo(&mut attempt, &room, chosen);
            return None;
        }
        for unit in chosen {
            if self.units[unit].project == claimant.project {
                attempt.accounts.release(claimant.project, self.units[unit].amounts);
                attempt.accounts.release_in(claimant.project, &self.units[unit].in_pools);
            }
            let cause = self.cause(unit, claimant);
            room.victims.extend(self.units[unit].tasks.iter().map(|&task| (task, cause)));
        }
        attempt.accounts.hold(claimant.project, claimant.wanted, false);
        for place in &room.places {
            attempt.accounts.hold_in(claimant.project, &attempt.cluster.in_pools(place), false);
        }
        Some(room)
    }

    /// Would the claimant's project get beyond its share by giving up some of its own for more?
    fn grows_by_its_own(&self, attempt: &Attempt<'_>, chosen: &[usize]) -> bool {
        let Claimant { project, wanted, .. } = attempt.claimant;
        let own = chosen.iter().map(|&unit| &self.units[unit]).filter(|unit| unit.project == project);
        let own: Vec<Amounts> = own.map(|unit| unit.amounts).collect();
        let given_up = own.iter().fold(Amounts::default(), |sum, amounts| sum.plus(*amounts));
        !own.is_empty() && attempt.accounts.grows_over_share(project, wanted, given_up)
    }

    fn undo(&mut self, attempt: &mut Attempt<'_>, room: &Room, chosen: Vec<usize>) {
        for place in room.places.iter().chain(&room.moved) {
            attempt.cluster.give_back(place);
        }
        for unit in chosen {
            self.put_back(attempt, unit);
        }
    }

    /// The best offer that is still valid; it and those that are not are used up.
    fn next_place(
        &mut self,
        attempt: &mut Attempt<'_>,
        shape: &Shape,
        offers: &mut BTreeSet<Offer>,
    ) -> Option<(Place, Vec<usize>, Vec<Place>)> {
        while let Some((_, _, node, units)) = offers.pop_first() {
            if units.iter().any(|&unit| self.units[unit].settled) {
                offers.extend(self.offer(attempt, shape, node, &mut BTreeMap::new()));
            } else if let Some((place, moved)) = self.try_out(attempt, shape, node, &units) {
                return Some((place, units, moved));
            }
        }
        None
    }

    fn offer(
        &self,
        attempt: &Attempt<'_>,
        shape: &Shape,
        node: usize,
        allowed: &mut Allowed,
    ) -> Option<Offer> {
        let units = self.cheapest_on(attempt, shape, node, allowed)?;
        Some((self.cost_of(&units), units.len(), node, units))
    }

    /// The highest priority among the units and all the work that is lost.
    fn cost_of(&self, units: &[usize]) -> Cost {
        let costs = units.iter().map(|&unit| self.units[unit].cost);
        costs.fold((i32::MIN, 0), |sum, (priority, work)| (sum.0.max(priority), sum.1 + work))
    }

    /// The cheapest units whose end makes room for `shape` on a node; empty if there is room.
    fn cheapest_on(
        &self,
        attempt: &Attempt<'_>,
        shape: &Shape,
        node: usize,
        allowed: &mut Allowed,
    ) -> Option<Vec<usize>> {
        let free = attempt.cluster.node(node);
        let mut may = |unit: usize| {
            let unit = &self.units[unit];
            !unit.settled && self.allowed(unit, attempt, allowed)
        };
        let mut gpus: Vec<(Cost, usize, Vec<usize>)> = Vec::new();
        for (at, gpu) in free.gpus.iter().enumerate() {
            let Some(share) = shape.share(gpu.class) else { continue };
            let mut candidates: Vec<usize> =
                if gpu.fits(share) { Vec::new() } else { self.on_gpu[node][at].clone() };
            candidates.retain(|unit| may(*unit));
            candidates.sort_unstable_by_key(|&unit| (self.units[unit].cost, unit));
            // In MIG mode each place has others in its way.
            let cuts = if gpu.fits(share) { vec![share] } else { gpu.places(share) };
            let enough = |cut| {
                let mut in_the_way = candidates.clone();
                in_the_way.retain(|&unit| {
                    cut == share || self.units[unit].on(node, at).any(|held| rivals(gpu, cut, held))
                });
                self.enough(gpu, cut, node, at, in_the_way)
            };
            let offers = cuts.into_iter().filter_map(enough).map(|units| (self.cost_of(&units), at, units));
            gpus.extend(offers.min_by_key(|(cost, _, units)| (cost.0, units.len(), cost.1)));
        }
        let wanted = shape.devices().0 as usize;
        if gpus.len() < wanted {
            return None;
        }
        gpus.sort_unstable_by_key(|(cost, at, units)| (*cost, units.len(), *at));
        let mut units: Vec<usize> = gpus.into_iter().take(wanted).flat_map(|(_, _, units)| units).collect();
        units.sort_unstable();
        units.dedup();
        let left = self.without(free, node, &units);
        if choose(&left, shape, |_, _| ()).is_some() {
            return Some(units);
        }
        // GPUs have room, the host has not: stop more on the node, the cheapest first.
        let mut more: Vec<usize> = self.on_gpu[node].iter().flatten().copied().collect();
        more.retain(|unit| !units.contains(unit) && may(*unit));
        more.sort_unstable_by_key(|&unit| (self.units[unit].cost, unit));
        more.dedup();
        for unit in more {
            units.push(unit);
            if choose(&self.without(free, node, &units), shape, |_, _| ()).is_some() {
                return Some(units);
            }
        }
        None
    }

    /// The first of `candidates` (cheapest first) that make room on one GPU, without those that then prove needless.
    fn enough(
        &self,
        gpu: &GpuFree,
        share: Cut,
        node: usize,
        at: usize,
        candidates: Vec<usize>,
    ) -> Option<Vec<usize>> {
        let fits = |units: &[usize]| {
            let mut free = gpu.clone();
            units.iter().flat_map(|&unit| self.units[unit].on(node, at)).for_each(|held| free.put_back(held));
            free.fits(share)
        };
        let mut units = Vec::new();
        let mut rest = candidates.into_iter();
        while !fits(&units) {
            units.push(rest.next()?);
        }
        for drop in (0..units.len()).rev() {
            let fewer: Vec<usize> =
                units.iter().enumerate().filter(|(i, _)| *i != drop).map(|(_, u)| *u).collect();
            if fits(&fewer) {
                units = fewer;
            }
        }
        Some(units)
    }

    /// A node without these units.
    fn without(&self, free: &NodeFree, node: usize, units: &[usize]) -> NodeFree {
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

    /// Takes the units off, one after the other, each still allowed after those before it; then the place for
    /// `shape`, and, if they only move, new places for all. Undoes everything if any of it fails.
    fn try_out(
        &mut self,
        attempt: &mut Attempt<'_>,
        shape: &Shape,
        node: usize,
        units: &[usize],
    ) -> Option<(Place, Vec<Place>)> {
        let mut off = Vec::new();
        for &unit in units {
            if !self.allowed(&self.units[unit], attempt, &mut BTreeMap::new()) {
                break;
            }
            self.units[unit].settled = true;
            self.count_off(attempt, unit);
            for place in &self.units[unit].places {
                attempt.cluster.give_back(place);
            }
            off.push(unit);
        }
        let gpus =
            choose(attempt.cluster.node(node), shape, fullest_first).filter(|_| off.len() == units.len());
        let place = gpus.map(|gpus| Place { node, gpus, host: shape.host() });
        let room = place.and_then(|place| {
            let moves = attempt.claimant.moves;
            let moved = if moves { self.move_all(attempt.cluster, &place, units)? } else { Vec::new() };
            Some((place, moved))
        });
        if room.is_none() {
            for unit in off {
                self.put_back(attempt, unit);
            }
        }
        room
    }

    /// Tasks of the claimant's own project still count while tasks of others are considered: what it gives up itself
    /// gives it no claim on others, or the two would take turns forever.
    fn count_off(&self, attempt: &mut Attempt<'_>, unit: usize) {
        if self.units[unit].project != attempt.claimant.project {
            attempt.accounts.release(self.units[unit].project, self.units[unit].amounts);
            attempt.accounts.release_in(self.units[unit].project, &self.units[unit].in_pools);
        }
    }

    fn put_back(&mut self, attempt: &mut Attempt<'_>, unit: usize) {
        self.units[unit].settled = false;
        if self.units[unit].project != attempt.claimant.project {
            attempt.accounts.hold(self.units[unit].project, self.units[unit].amounts, false);
            attempt.accounts.hold_in(self.units[unit].project, &self.units[unit].in_pools, false);
        }
        for place in &self.units[unit].places {
            attempt.cluster.take(place);
        }
    }

    /// A new place for each of `units`, with `claimed` counted as taken; `None` if one has nowhere to go.
    fn move_all(&self, cluster: &mut Cluster, claimed: &Place, units: &[usize]) -> Option<Vec<Place>> {
        cluster.take(claimed);
        let places = units.iter().flat_map(|&unit| &self.units[unit].places);
        let (mut moved, mut all) = (Vec::new(), true);
        for place in places {
            let Some(new) = elsewhere(cluster, place) else {
                all = false;
                break;
            };
            cluster.take(&new);
            moved.push(new);
        }
        if !all {
            moved.iter().for_each(|place| cluster.give_back(place));
        }
        cluster.give_back(claimed);
        all.then_some(moved)
    }

    fn allowed(&self, unit: &Unit, attempt: &Attempt<'_>, known: &mut Allowed) -> bool {
        let claimant = attempt.claimant;
        if claimant.moves {
            return !unit.gang;
        }
        if unit.project == claimant.project {
            return unit.cost.0 < claimant.priority;
        }
        let pools = unit.in_pools.keys().cloned().collect();
        let key = (unit.project, unit.amounts.0[1] > 0, unit.amounts.0[2] > 0, pools);
        *known.entry(key).or_insert_with(|| {
            attempt.accounts.may_lose_of(unit.project, unit.amounts, &unit.in_pools, &claimant)
        })
    }

    fn cause(&self, unit: usize, claimant: Claimant<'_>) -> Cause {
        if claimant.moves {
            Cause::Consolidate
        } else if self.units[unit].project == claimant.project {
            Cause::Preempt
        } else {
            Cause::Reclaim
        }
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

impl Unit {
    const fn new(project: usize, gang: bool) -> Self {
        Self {
            tasks: Vec::new(),
            places: Vec::new(),
            project,
            amounts: Amounts([0; 3]),
            in_pools: PoolMilli::new(),
            cost: (i32::MIN, 0),
            settled: false,
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
        self.cost.1 += u128::from(amounts.0[0]) * u128::from(ran_ms.unsigned_abs());
        self.settled |= !task.preemptible || task.stopping.is_some() || ran_ms < min_run_ms;
    }

    fn on(&self, node: usize, gpu: usize) -> impl Iterator<Item = Cut> + '_ {
        let places = self.places.iter().filter(move |place| place.node == node);
        places.flat_map(|place| &place.gpus).filter(move |(at, _)| *at == gpu).map(|(_, share)| *share)
    }
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
