//! Replays tasks that arrive and end as in the trace, some of them urgent, and counts the work that is lost when others make room for those:
//! queued again, they begin again from scratch; suspended, they go on where they were.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use cantle_decide::{BrokenPlan, SnapshotBuilder, decide};
use cantle_model::{LeaseId, PoolRule, Preempt, ProjectQuota, QueueSpec, QueueWant, Quota, TaskId};
use cantle_sched::{GpuDemand, Node, Order, Policy, Queue, Running, Snapshot, Waiting};
use serde::Serialize;

use crate::openb::{Trace, TraceTask};
use crate::random::Random;

/// One task in this number is urgent.
const URGENT: usize = 10;
/// As many waiting tasks are planned for at a time, as an agent does.
const HEAD: usize = 50;
/// The time until a suspended task's memory is free, in seconds: 40 GB at 10 GB/s. A stopped task has as long to end.
const OUT_S: u64 = 4;
/// Copies of the trace start up to a week apart.
const SHIFT_S: usize = 7 * 24 * 3600;

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MadeRoom {
    /// How tasks made room.
    pub preempt: Preempt,
    /// Seed of nodes, times and urgent tasks.
    pub seed: u64,
    /// Tasks that ran to their end.
    pub tasks: u64,
    /// How often a task was queued again.
    pub requeued: u64,
    /// How often one was suspended.
    pub suspended: u64,
    /// GPU-hours of work that were done once more.
    pub gpu_hours_lost: f64,
    /// Mean time that an urgent task waited, in seconds.
    pub urgent_wait_s: f64,
    /// Mean time from the arrival of another task to its end beyond the time that it runs, in seconds.
    pub other_delay_s: f64,
}

struct Task {
    at_s: u64,
    /// The work that is left.
    left_s: u64,
    gpu_milli: u64,
    waiting: Waiting,
    /// When its present run began.
    began_s: Option<u64>,
    /// It is suspended.
    is_out: bool,
    /// Counts the starts: the end of an earlier one is void.
    starts: u32,
}

/// A cluster, and tasks that make room for each other.
struct World {
    preempt: Preempt,
    state: Snapshot,
    policy: Policy,
    tasks: BTreeMap<TaskId, Task>,
    /// Those that do not fit into the queue's head.
    line: VecDeque<Waiting>,
    /// Ends by time: task and number of its start.
    ends: BinaryHeap<Reverse<(u64, TaskId, u32)>>,
    /// When those that make room have done so.
    stops: BinaryHeap<Reverse<(u64, TaskId, TaskId)>>,
    sums: MadeRoom,
    urgent: u64,
}

/// Lets all tasks of the trace come and go on `gpus` GPUs, `copies` times. `None` if the trace has no times.
///
/// # Errors
/// If a plan breaks a rule.
pub fn make_room(
    trace: &Trace,
    preempt: Preempt,
    seed: u64,
    gpus: usize,
    copies: usize,
) -> Result<Option<MadeRoom>, BrokenPlan> {
    let nodes = trace.some_nodes(seed, gpus);
    let Some(arrivals) = arrivals(trace, &nodes, seed, copies) else { return Ok(None) };
    let mut world = World::new(nodes, preempt, seed);
    for (n, (at_s, task, is_urgent)) in arrivals.into_iter().enumerate() {
        world.run_until(at_s)?;
        world.arrive(n, at_s, task, is_urgent);
        world.settle(at_s)?;
    }
    world.run_until(u64::MAX)?;
    Ok(Some(world.figures()))
}

type Arrival<'a> = (u64, &'a TraceTask, bool);

fn arrivals<'a>(trace: &'a Trace, nodes: &[Node], seed: u64, copies: usize) -> Option<Vec<Arrival<'a>>> {
    let mut random = Random(seed);
    let fits = |task: &&TraceTask| {
        let models = &task.demand.models;
        let has = |node: &Node| {
            let of_model =
                |gpu: &&cantle_sched::GpuState| models.is_empty() || models.contains(&gpu.gpu.model);
            let enough = node.gpus.iter().filter(of_model).count() as u64 * 1000 >= task.gpu_milli;
            enough && node.host.is_none_or(|host| task.demand.host.fits_in(host))
        };
        task.gpu_milli > 0 && nodes.iter().any(has)
    };
    let tasks: Vec<&TraceTask> = trace.tasks.iter().filter(fits).collect();
    let mut arrivals = Vec::with_capacity(tasks.len() * copies);
    for _ in 0..copies {
        let later_s = random.below(SHIFT_S) as u64;
        for task in &tasks {
            let (at_s, _) = task.times?;
            arrivals.push((at_s + later_s, *task, random.below(URGENT) == 0));
        }
    }
    arrivals.sort_by_key(|(at_s, ..)| *at_s);
    Some(arrivals)
}

impl World {
    fn new(mut nodes: Vec<Node>, preempt: Preempt, seed: u64) -> Self {
        for node in &mut nodes {
            // A suspended task comes back on its node only.
            let pool = node.name.clone();
            node.gpus.iter_mut().for_each(|gpu| gpu.pools = vec![pool.clone()]);
        }
        let all = Quota { deserved: None, limit: None, weight: 1 };
        let quota = ProjectQuota { gpu: all, ..ProjectQuota::default() };
        let spec = QueueSpec { name: "q".to_owned(), want: QueueWant::Task };
        let mut state = SnapshotBuilder::default().project("p", None, &quota, 0).build();
        state.nodes = nodes;
        state.queues = vec![Queue::new(spec, Vec::new())];
        let policy = Policy { order: Order::Share, reclaim: true, ..Policy::default() };
        let sums = MadeRoom {
            preempt,
            seed,
            tasks: 0,
            requeued: 0,
            suspended: 0,
            gpu_hours_lost: 0.0,
            urgent_wait_s: 0.0,
            other_delay_s: 0.0,
        };
        let (tasks, line) = (BTreeMap::new(), VecDeque::new());
        let (ends, stops) = (BinaryHeap::new(), BinaryHeap::new());
        Self { preempt, state, policy, tasks, line, ends, stops, sums, urgent: 0 }
    }

    fn arrive(&mut self, n: usize, at_s: u64, of: &TraceTask, is_urgent: bool) {
        let id = TaskId(format!("t{n}"));
        let mut waiting = Waiting::new(id.clone(), ms(at_s));
        (waiting.request, waiting.devices) = match &of.demand.gpus {
            GpuDemand::Part { request, devices, .. } => (Some(request.clone()), *devices),
            GpuDemand::Whole { min, .. } => (Some(cantle_model::GpuRequest::Gpus(*min)), 1),
            _ => return,
        };
        waiting.models.clone_from(&of.demand.models);
        waiting.host = of.demand.host;
        waiting.project = Some("p".to_owned());
        waiting.priority = i32::from(is_urgent);
        let (_, runs_s) = of.times.unwrap_or_default();
        let task = Task {
            at_s,
            left_s: runs_s,
            gpu_milli: of.gpu_milli,
            waiting: waiting.clone(),
            began_s: None,
            is_out: false,
            starts: 0,
        };
        self.tasks.insert(id, task);
        if is_urgent {
            self.state.queues[0].waiting.insert(0, waiting);
        } else {
            self.line.push_back(waiting);
        }
    }

    /// Lets all happen that happens before `end_s`.
    fn run_until(&mut self, end_s: u64) -> Result<(), BrokenPlan> {
        loop {
            let end = self.ends.peek().map(|Reverse((at_s, ..))| *at_s);
            let stop = self.stops.peek().map(|Reverse((at_s, ..))| *at_s);
            let Some(now_s) = end.into_iter().chain(stop).min().filter(|at_s| *at_s <= end_s) else {
                return Ok(());
            };
            while let Some(Reverse((at_s, ..))) = self.ends.peek()
                && *at_s <= now_s
                && let Some(Reverse((_, id, start))) = self.ends.pop()
            {
                self.end(now_s, &id, start);
            }
            while let Some(Reverse((at_s, ..))) = self.stops.peek()
                && *at_s <= now_s
                && let Some(Reverse((_, id, for_task))) = self.stops.pop()
            {
                self.stop(now_s, &id, for_task);
            }
            self.settle(now_s)?;
        }
    }

    fn end(&mut self, now_s: u64, id: &TaskId, start: u32) {
        let runs = |task: &&Task| task.began_s.is_some() && task.starts == start;
        if self.tasks.get(id).filter(runs).is_none() {
            return;
        }
        self.state.running.retain(|running| running.task != *id);
        let Some(task) = self.tasks.remove(id) else { return };
        self.sums.tasks += 1;
        if task.waiting.priority == 0 {
            self.sums.other_delay_s += (now_s - task.at_s) as f64;
        }
    }

    /// A task has made room: it waits again, in front.
    fn stop(&mut self, now_s: u64, id: &TaskId, for_task: TaskId) {
        let Some(task) = self.tasks.get_mut(id) else { return };
        let Some(began_s) = task.began_s.take() else { return };
        let Some(at) = self.state.running.iter().position(|running| running.task == *id) else { return };
        let running = self.state.running.remove(at);
        let ran_s = now_s - began_s;
        let can_suspend = self.preempt.suspends() && running.slices.len() == 1;
        let mut waiting = task.waiting.clone();
        if can_suspend {
            task.left_s = task.left_s.saturating_sub(ran_s);
            task.is_out = true;
            self.sums.suspended += 1;
            waiting.pools = vec![PoolRule { project: String::new(), pools: vec![running.node] }];
            waiting.host = cantle_sched::Host::default();
        } else {
            self.sums.requeued += 1;
            self.sums.gpu_hours_lost += (ran_s * task.gpu_milli) as f64 / 3_600_000.0;
        }
        waiting.yielded_to = Some(for_task);
        self.state.queues[0].waiting.insert(0, waiting);
    }

    /// Plans and carries out until there is nothing more to do.
    fn settle(&mut self, now_s: u64) -> Result<(), BrokenPlan> {
        loop {
            while self.newcomers() < HEAD
                && let Some(next) = self.line.pop_front()
            {
                self.state.queues[0].waiting.push(next);
            }
            if self.state.queues[0].waiting.is_empty() {
                return Ok(());
            }
            let plan = decide(&self.state, &self.policy, ms(now_s))?;
            for start in &plan.starts {
                let waiting = &mut self.state.queues[0].waiting;
                let Some(at) = waiting.iter().position(|waiting| waiting.task == start.task) else {
                    continue;
                };
                let waiting = waiting.remove(at);
                let lease = LeaseId(start.task.0.clone());
                self.state.running.push(Running::of_start(start, &waiting, lease, ms(now_s)));
                let Some(task) = self.tasks.get_mut(&start.task) else { continue };
                task.starts += 1;
                task.began_s = Some(now_s);
                if task.starts == 1 && task.waiting.priority > 0 {
                    self.urgent += 1;
                    self.sums.urgent_wait_s += (now_s - task.at_s) as f64;
                }
                if task.starts == 1 && task.waiting.priority == 0 {
                    self.sums.other_delay_s -= task.left_s as f64;
                }
                let back_s = if std::mem::take(&mut task.is_out) { OUT_S } else { 0 };
                task.left_s += back_s;
                self.ends.push(Reverse((now_s + task.left_s, start.task.clone(), task.starts)));
            }
            for eviction in &plan.evictions {
                let mut running = self.state.running.iter_mut();
                if let Some(running) = running.find(|running| running.task == eviction.task) {
                    running.stopping = Some(eviction.cause);
                }
                let (task, for_task) = (eviction.task.clone(), eviction.for_task.clone());
                self.stops.push(Reverse((now_s + OUT_S, task, for_task)));
            }
            if plan.starts.is_empty() {
                return Ok(());
            }
        }
    }

    /// The waiting tasks that have not made room for another one; the others are in front of the head.
    fn newcomers(&self) -> usize {
        self.state.queues[0].waiting.iter().filter(|waiting| waiting.yielded_to.is_none()).count()
    }

    fn figures(mut self) -> MadeRoom {
        let others = self.sums.tasks - self.urgent;
        self.sums.urgent_wait_s /= self.urgent.max(1) as f64;
        self.sums.other_delay_s /= others.max(1) as f64;
        self.sums
    }
}

fn ms(seconds: u64) -> i64 {
    i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX)
}
