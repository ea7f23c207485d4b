//! A project gets its quota back whenever there is a set of tasks whose end makes room and that may be stopped. On
//! small clusters all sets are tried, by rules written independently of the planner.

#![expect(clippy::disallowed_methods, reason = "the planner itself is what is tested here")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{Gpu, GpuRequest, GpuUuid, LeaseId, Milli, QueueSpec, QueueWant, Slice, TaskId};
use cantle_sched::{
    Cause, Gang, GpuState, Node, Order, Placement, Plan, Policy, Project, Queue, Running, Snapshot, Waiting,
    audit, plan, shares,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Cases of each property, unless `PROPTEST_CASES` requests another number.
const CASES: u32 = 10_000;
const GIB: u64 = 1 << 30;
/// Units of which all sets are tried.
const UNITS: usize = 9;

fn cases() -> u32 {
    let asked = std::env::var_os("PROPTEST_CASES");
    asked.and_then(|cases| cases.to_str()?.parse().ok()).unwrap_or(CASES)
}

/// A running task: GPUs, project, priority, and whether it is of a gang with the one before it.
type Task = (u32, usize, i32, bool);

#[derive(Clone, Debug)]
struct World {
    /// GPUs of each node.
    nodes: Vec<usize>,
    /// Quota and limit of each project, in GPUs.
    quotas: Vec<(u64, Option<u64>)>,
    /// Are projects 1 and 2 below project 3, and 0 below 4?
    departments: bool,
    running: Vec<Task>,
    /// GPUs of each member.
    claimant: Vec<u32>,
    project: usize,
    priority: i32,
}

fn world() -> impl Strategy<Value = World> {
    let quota = (0u64..5, prop::option::weighted(0.2, 1u64..6));
    let task = (
        prop_oneof![5 => Just(1u32), 2 => Just(2), 1 => 3u32..5],
        0..3usize,
        0..2i32,
        prop::bool::weighted(0.15),
    );
    (
        prop::collection::vec(1usize..5, 1..4),
        prop::collection::vec(quota, 5),
        any::<bool>(),
        prop::collection::vec(task, 1..UNITS + 1),
        prop_oneof![4 => prop::collection::vec(1u32..5, 1), 1 => prop::collection::vec(1u32..3, 2..4)],
        0..3usize,
        0..2i32,
    )
        .prop_map(|(nodes, quotas, departments, running, claimant, project, priority)| World {
            nodes,
            quotas,
            departments,
            running,
            claimant,
            project,
            priority,
        })
}

fn gpu(node: usize, index: usize) -> GpuUuid {
    GpuUuid(format!("GPU-{node}-{index}"))
}

/// Tasks that stop together.
#[derive(Clone, Debug)]
struct Unit {
    names: Vec<String>,
    project: usize,
    priority: i32,
    /// GPUs that it holds of each node.
    on: Vec<u32>,
}

impl World {
    fn parent(&self, project: usize) -> Option<usize> {
        match project {
            1 | 2 if self.departments => Some(3),
            0 if self.departments => Some(4),
            _ => None,
        }
    }

    fn path(&self, project: usize) -> Vec<usize> {
        std::iter::successors(Some(project), |at| self.parent(*at)).collect()
    }

    /// The state in which each running task is where it fits first.
    fn state(&self) -> (Snapshot, Vec<Unit>) {
        let node = |(at, gpus): (usize, &usize)| {
            let gpu = |index: usize| Gpu {
                uuid: gpu(at, index),
                index: u32::try_from(index).unwrap(),
                model: "A".to_owned(),
                memory_bytes: 80 * GIB,
                mig: false,
            };
            Node::new(format!("node{at}"), (0..*gpus).map(|index| GpuState::new(gpu(index))).collect())
        };
        let nodes = self.nodes.iter().enumerate().map(node).collect();
        let spec = QueueSpec { name: "q".into(), want: QueueWant::Task };
        let mut state = Snapshot::new(nodes, Vec::new(), vec![Queue::new(spec, Vec::new())]);
        for (at, (quota, limit)) in self.quotas.iter().enumerate() {
            let mut project = Project::new(format!("p{at}"), quota * 1000);
            project.quotas[0].limit = limit.map(|limit| limit * 1000);
            project.parent = self.parent(at).map(|parent| format!("p{parent}"));
            state.projects.push(project);
        }
        let mut units: Vec<Unit> = Vec::new();
        let mut taken = vec![0; self.nodes.len()];
        for (at, &(gpus, project, priority, joined)) in self.running.iter().enumerate() {
            let fits = |node: &usize| taken[*node] + gpus as usize <= self.nodes[*node];
            let Some(node) = (0..self.nodes.len()).find(fits) else { continue };
            let slice = |index| Slice {
                gpu: gpu(node, index),
                milli: Milli::ONE,
                memory_limit_bytes: 80 * GIB,
                mig: None,
            };
            let slices = (taken[node]..taken[node] + gpus as usize).map(slice).collect();
            taken[node] += gpus as usize;
            let name = format!("r{at}");
            let mut running =
                Running::new(LeaseId(name.clone()), TaskId(name.clone()), format!("node{node}"), slices);
            running.started_at_ms = i64::try_from(at).unwrap();
            running.queue = Some("q".to_owned());
            let joins = joined && units.last().is_some_and(|unit| unit.names.len() == 1);
            if !joins {
                units.push(Unit { names: Vec::new(), project, priority, on: vec![0; self.nodes.len()] });
            }
            let count = units.len();
            let unit = units.last_mut().unwrap();
            unit.names.push(name);
            unit.on[node] += gpus;
            running.project = Some(format!("p{}", unit.project));
            running.priority = unit.priority;
            running.gang = Some(Gang { name: format!("gang{count}"), size: 1 });
            state.running.push(running);
        }
        for running in &mut state.running {
            let unit = units.iter().find(|unit| unit.names.contains(&running.task.0)).unwrap();
            match unit.names.len() {
                1 => running.gang = None,
                many => running.gang.as_mut().unwrap().size = u32::try_from(many).unwrap(),
            }
        }
        for (at, gpus) in self.claimant.iter().enumerate() {
            let mut task = Waiting::new(TaskId(format!("w{at}")), 0).wanting(GpuRequest::Gpus(*gpus));
            task.project = Some(format!("p{}", self.project));
            task.priority = self.priority;
            let size = u32::try_from(self.claimant.len()).unwrap();
            task.gang = (size > 1).then(|| Gang { name: "claimant".to_owned(), size });
            state.queues[0].waiting.push(task);
        }
        (state, units)
    }

    /// Does the claimant fit when these numbers of GPUs of the nodes are in use?
    fn fits(&self, used: &[u32]) -> bool {
        fn place(free: &mut [u32], members: &[u32]) -> bool {
            let Some((member, rest)) = members.split_first() else { return true };
            (0..free.len()).any(|node| {
                if free[node] < *member {
                    return false;
                }
                free[node] -= member;
                let fits = place(free, rest);
                free[node] += member;
                fits
            })
        }
        let mut free: Vec<u32> = Vec::new();
        for (node, gpus) in self.nodes.iter().enumerate() {
            free.push(u32::try_from(*gpus).unwrap() - used[node]);
        }
        place(&mut free, &self.claimant)
    }
}

/// The rules of docs/scheduling.md about one claimant, with GPUs in thousandths.
struct Rules<'a> {
    world: &'a World,
    units: &'a [Unit],
    fair: Vec<u64>,
    wanted: u64,
}

impl Rules<'_> {
    fn milli(&self, unit: usize) -> u64 {
        u64::from(self.units[unit].on.iter().sum::<u32>()) * 1000
    }

    /// The amount that a project and those below it hold after the units in `stopped` have ended.
    fn left(&self, project: usize, stopped: &BTreeSet<usize>) -> u64 {
        let counts = |unit: &usize| {
            self.world.path(self.units[*unit].project).contains(&project) && !stopped.contains(unit)
        };
        (0..self.units.len()).filter(counts).map(|unit| self.milli(unit)).sum()
    }

    /// The same as far as it gives the claimant a claim: what its project gives up itself does only if it is then within its
    /// quota.
    fn held(&self, project: usize, stopped: &BTreeSet<usize>) -> u64 {
        let is_own = |unit: &usize| self.units[*unit].project == self.world.project;
        let (own, others): (BTreeSet<usize>, BTreeSet<usize>) = stopped.iter().copied().partition(is_own);
        let ours = self.world.path(self.world.project);
        let within = ours.iter().all(|&at| self.left(at, &own) + self.wanted <= self.quota(at));
        self.left(project, if within { stopped } else { &others })
    }

    fn quota(&self, project: usize) -> u64 {
        self.world.quotas[project].0 * 1000
    }

    fn keeps(&self, project: usize) -> u64 {
        let limit = self.world.quotas[project].1.map_or(u64::MAX, |limit| limit * 1000);
        self.fair[project].max(self.quota(project)).min(limit)
    }

    fn may_stop(&self, unit: usize, stopped: &BTreeSet<usize>) -> bool {
        let victim = &self.units[unit];
        if victim.project == self.world.project {
            return victim.priority < self.world.priority;
        }
        let (ours, theirs) = (self.world.path(self.world.project), self.world.path(victim.project));
        let ours: Vec<usize> = ours.into_iter().filter(|at| !theirs.contains(at)).collect();
        let ours_all = self.world.path(self.world.project);
        let theirs: Vec<usize> = theirs.into_iter().filter(|at| !ours_all.contains(at)).collect();
        if ours.iter().any(|&at| self.held(at, stopped) + self.wanted > self.fair[at]) {
            return false;
        }
        let (us, they) = (*ours.last().unwrap(), *theirs.last().unwrap());
        let within_quota = self.held(us, stopped) + self.wanted <= self.quota(us);
        let lower = &theirs[..theirs.len() - 1];
        let lower_over = lower.iter().all(|&at| self.held(at, stopped) > self.quota(at));
        let held = self.held(they, stopped);
        held > self.keeps(they) && (within_quota || lower_over) || within_quota && held > self.quota(they)
    }

    /// Limits, and no growth over the share in exchange for its own.
    fn may_start(&self, stopped: &BTreeSet<usize>) -> bool {
        let own = |unit: &&usize| self.units[**unit].project == self.world.project;
        let given_up: u64 = stopped.iter().filter(own).map(|&unit| self.milli(unit)).sum();
        self.world.path(self.world.project).into_iter().all(|at| {
            let held = self.left(at, stopped);
            let after = held + self.wanted;
            let limit = self.world.quotas[at].1.map_or(u64::MAX, |limit| limit * 1000);
            after <= limit && (given_up == 0 || after <= self.keeps(at).max(held + given_up))
        })
    }

    /// All sets that may be stopped and whose end makes room.
    fn sets(&self) -> BTreeSet<BTreeSet<usize>> {
        let (mut known, mut new) = (BTreeSet::from([BTreeSet::new()]), vec![BTreeSet::new()]);
        while let Some(set) = new.pop() {
            for unit in (0..self.units.len()).filter(|unit| !set.contains(unit)) {
                if self.may_stop(unit, &set) {
                    let mut more: BTreeSet<usize> = set.clone();
                    more.insert(unit);
                    if known.insert(more.clone()) {
                        new.push(more);
                    }
                }
            }
        }
        known.retain(|set| self.is_enough(set));
        known
    }

    fn is_enough(&self, stopped: &BTreeSet<usize>) -> bool {
        let mut used = vec![0; self.world.nodes.len()];
        for (at, unit) in self.units.iter().enumerate() {
            if !stopped.contains(&at) {
                unit.on.iter().enumerate().for_each(|(node, gpus)| used[node] += gpus);
            }
        }
        self.world.fits(&used) && self.may_start(stopped)
    }
}

/// Carries a plan out: the stopped go back to the front of the queue, starts run.
fn carry_out(state: &mut Snapshot, plan: &Plan) {
    for eviction in &plan.evictions {
        let at = state.running.iter().position(|running| running.lease == eviction.lease).unwrap();
        let running = state.running.remove(at);
        let gpus = u32::try_from(running.slices.len()).unwrap();
        let mut task = Waiting::new(running.task, 0).wanting(GpuRequest::Gpus(gpus));
        (task.project, task.priority, task.gang) = (running.project, running.priority, running.gang);
        task.yielded_to = Some(eviction.for_task.clone());
        task.moved = eviction.cause == Cause::Consolidate;
        state.queues[0].waiting.insert(0, task);
    }
    for start in &plan.starts {
        let at = state.queues[0].waiting.iter().position(|waiting| waiting.task == start.task).unwrap();
        let task = state.queues[0].waiting.remove(at);
        state.running.push(Running::of_start(start, &task, LeaseId(start.task.0.clone()), 1_000));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn if_any_set_may_be_stopped_one_is(world in world()) {
        let (state, units) = world.state();
        let policy =
            Policy { order: Order::Share, placement: Placement::Binpack, reclaim: true, ..Policy::default() };
        let fair: BTreeMap<String, u64> =
            shares(&state, &policy).into_iter().map(|share| (share.project, share.fair_milli)).collect();
        let fair = (0..world.quotas.len()).map(|at| fair[&format!("p{at}")]).collect();
        let wanted = u64::from(world.claimant.iter().sum::<u32>()) * 1000;
        let rules = Rules { world: &world, units: &units, fair, wanted };
        let decided = plan(&state, &policy, 1_000);
        prop_assert_eq!(audit(&state, &decided), []);
        if !decided.starts.is_empty() {
            return Ok(());
        }
        let stopped: BTreeSet<String> =
            decided.evictions.iter().map(|eviction| eviction.task.0.clone()).collect();
        let chosen: BTreeSet<usize> =
            (0..units.len()).filter(|unit| stopped.contains(&units[*unit].names[0])).collect();
        let sets = rules.sets();
        if decided.evictions.is_empty() {
            prop_assert!(sets.is_empty(), "{:?} was not found: {:?}", sets.first(), decided.waits);
        } else {
            prop_assert!(sets.contains(&chosen), "{:?} may not be stopped", chosen);
            for needless in &chosen {
                let fewer: BTreeSet<usize> = chosen.iter().copied().filter(|unit| unit != needless).collect();
                prop_assert!(!sets.contains(&fewer), "{:?} would do instead of {:?}", fewer, chosen);
            }
        }
    }
    /// No two projects reclaim GPUs from each other in turn, also not in departments.
    #[test]
    fn giving_back_comes_to_an_end(world in world(), consolidate in any::<bool>()) {
        let (mut state, _) = world.state();
        let policy = Policy { order: Order::Share, reclaim: true, backfill: true, consolidate, ..Policy::default() };
        for round in 0.. {
            let decided = plan(&state, &policy, 1_000);
            prop_assert_eq!(audit(&state, &decided), []);
            if decided.starts.is_empty() && decided.evictions.is_empty() {
                break;
            }
            prop_assert!(round < 60, "goes in circles: {:?} {:?}", decided.starts, decided.evictions);
            carry_out(&mut state, &decided);
        }
    }
}

/// A task that stops may free more than the one needs for which it stops: those behind it get the rest, and more stop in the
/// same round.
#[test]
fn small_tasks_get_their_quota_back_at_once() {
    let world = World {
        nodes: vec![4, 4],
        quotas: vec![(0, None), (8, None), (0, None), (0, None), (0, None)],
        departments: false,
        running: vec![(1, 0, 0, false); 8],
        claimant: Vec::new(),
        project: 1,
        priority: 0,
    };
    let (mut state, _) = world.state();
    let quarter = |at: usize| {
        let mut task =
            Waiting::new(TaskId(format!("w{at}")), 0).wanting(GpuRequest::Fraction(Milli(250).into()));
        task.project = Some("p1".to_owned());
        task
    };
    state.queues[0].waiting = (0..32).map(quarter).collect();
    let policy = Policy { order: Order::Share, backfill: true, reclaim: true, ..Policy::default() };
    let first = plan(&state, &policy, 100);
    assert_eq!(first.evictions.len(), 8, "{:?}", first.waits);
    carry_out(&mut state, &first);
    let second = plan(&state, &policy, 101);
    assert_eq!((second.starts.len(), second.evictions.len()), (32, 0), "{:?}", second.waits);
}
