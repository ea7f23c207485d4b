//! Replays tasks that arrive and end as in the trace, and measures how long they wait and how many GPUs are in use.
//!
//! There is one backlog, in order of arrival. A task that finds no place stays there, and the tasks behind it may pass
//! it. The trace's tasks never filled their own cluster, so a smaller one is sampled from its nodes.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use cantle_sched::{Cluster, Place, Shape};
use serde::Serialize;

use crate::ReplayPolicy;
use crate::openb::{self, Trace, TraceTask};
use crate::policy::Finder;
use crate::random::Random;

/// The result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waits {
    /// The policy.
    pub policy: ReplayPolicy,
    /// Seed with which the nodes were drawn.
    pub seed: u64,
    /// GPUs of those nodes.
    pub gpus: u64,
    /// Tasks that fit on them at all; the others are left out.
    pub tasks: u64,
    /// Mean time that a task waited, in seconds.
    pub mean_wait_s: f64,
    /// The same with each task counted by its GPUs: a policy that lets large tasks wait for small ones shows here.
    pub mean_wait_by_gpus_s: f64,
    /// The wait that one task in a hundred exceeded, in seconds.
    pub p99_wait_s: u64,
    /// Requested GPU-hours: the same for every policy.
    pub gpu_hours_asked: f64,
    /// Hours that GPUs had at least one task, summed over all GPUs. The fewer, the more were free to be given away.
    pub gpu_hours_used: f64,
    /// Waits of all tasks in seconds, the shortest first.
    #[serde(skip)]
    pub waits_s: Vec<u64>,
}

/// Copies of the trace start up to a week apart.
const SHIFT_S: usize = 7 * 24 * 3600;

/// A task that will come.
#[derive(Clone)]
struct Arrival {
    at_s: u64,
    runs_s: u64,
    gpu_milli: u64,
    shape: Shape,
}

/// A cluster and the tasks that come to it.
pub struct ComeAndGo {
    policy: ReplayPolicy,
    seed: u64,
    gpus: u64,
    cluster: Cluster,
    /// In order of arrival.
    arrivals: Vec<Arrival>,
    find: Finder,
}

impl std::fmt::Debug for ComeAndGo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ComeAndGo({}, seed {}, {} GPUs)", self.policy, self.seed, self.gpus)
    }
}

/// State of a run.
struct Clock {
    now_s: u64,
    /// When each running task ends, and what it holds.
    ends: BinaryHeap<(Reverse<u64>, usize)>,
    places: Vec<Option<Place>>,
    waits_s: Vec<u64>,
    /// Waits times thousandths of GPUs.
    waits_milli_s: u64,
    /// Tasks on each GPU of each node, and how many GPUs have any.
    on_gpu: Vec<Vec<u32>>,
    used: u64,
    used_s: u64,
}

impl ComeAndGo {
    /// Draws nodes until they have `gpus` GPUs, and prepares the arrival of the trace's GPU tasks at their own times.
    /// `None` if the trace has no times.
    #[must_use]
    pub fn new(trace: &Trace, policy: ReplayPolicy, seed: u64, gpus: usize, copies: usize) -> Option<Self> {
        let nodes = trace.some_nodes(seed, gpus);
        let cluster = Cluster::empty(&nodes);
        let served = |task: &&TraceTask| task.gpu_milli > 0 && cluster.has_room(&cluster.shape(&task.demand));
        let tasks: Vec<&TraceTask> = trace.tasks.iter().filter(served).collect();
        let arrival = |task: &&TraceTask| {
            let (at_s, runs_s) = task.times?;
            Some(Arrival { at_s, runs_s, gpu_milli: task.gpu_milli, shape: cluster.shape(&task.demand) })
        };
        let once: Vec<Arrival> = tasks.iter().map(arrival).collect::<Option<_>>()?;
        let mut random = Random(seed);
        let mut arrivals = Vec::with_capacity(once.len() * copies);
        for _ in 0..copies {
            let later_s = random.below(SHIFT_S) as u64;
            arrivals.extend(once.iter().map(|task| Arrival { at_s: task.at_s + later_s, ..task.clone() }));
        }
        arrivals.sort_by_key(|arrival| arrival.at_s);
        let find = policy.finder(&openb::mix(tasks), &cluster, seed);
        let gpus = nodes.iter().map(|node| node.gpus.len() as u64).sum();
        Some(Self { policy, seed, gpus, cluster, arrivals, find })
    }

    /// Lets all tasks come and go.
    #[must_use]
    pub fn run(mut self) -> Waits {
        let mut clock = Clock::new(&self.cluster, self.arrivals.len());
        let mut line: Vec<usize> = Vec::new();
        let mut next = 0;
        while next < self.arrivals.len() || !clock.ends.is_empty() {
            let arrival = self.arrivals.get(next).map(|arrival| arrival.at_s);
            let end = clock.ends.peek().map(|(Reverse(end), _)| *end);
            // Ends of the same moment come first: its place is free for arriving tasks.
            if let Some(end) = end.filter(|end| arrival.is_none_or(|arrival| *end <= arrival)) {
                clock.forward(end);
                clock.end_all(&mut self.cluster);
                self.serve(&mut clock, &mut line);
            } else if let Some(arrival) = arrival {
                clock.forward(arrival);
                line.push(next);
                next += 1;
                // Tasks that waited before wait on: nothing came free.
                let mut newcomer = line.split_off(line.len() - 1);
                self.serve(&mut clock, &mut newcomer);
                line.append(&mut newcomer);
            }
        }
        self.figures(clock)
    }

    /// Starts the tasks of the backlog that fit, in order.
    fn serve(&mut self, clock: &mut Clock, line: &mut Vec<usize>) {
        let mut too_large: BTreeSet<&Shape> = BTreeSet::new();
        let (cluster, find) = (&mut self.cluster, &mut self.find);
        line.retain(|&task| {
            let arrival = &self.arrivals[task];
            if too_large.contains(&arrival.shape) {
                return true;
            }
            let Some(place) = find(cluster, &arrival.shape) else {
                too_large.insert(&arrival.shape);
                return true;
            };
            cluster.take(&place);
            clock.start(task, arrival, place);
            false
        });
    }

    fn figures(&self, mut clock: Clock) -> Waits {
        clock.waits_s.sort_unstable();
        let tasks = clock.waits_s.len();
        let asked_milli: u64 = self.arrivals.iter().map(|task| task.gpu_milli).sum();
        let asked_s: f64 =
            self.arrivals.iter().map(|task| (task.gpu_milli * task.runs_s) as f64 / 1000.0).sum();
        Waits {
            policy: self.policy,
            seed: self.seed,
            gpus: self.gpus,
            tasks: tasks as u64,
            mean_wait_s: clock.waits_s.iter().sum::<u64>() as f64 / tasks.max(1) as f64,
            mean_wait_by_gpus_s: clock.waits_milli_s as f64 / asked_milli.max(1) as f64,
            p99_wait_s: clock.waits_s.get(tasks * 99 / 100).copied().unwrap_or(0),
            gpu_hours_asked: asked_s / 3600.0,
            gpu_hours_used: clock.used_s as f64 / 3600.0,
            waits_s: clock.waits_s,
        }
    }
}

impl Clock {
    fn new(cluster: &Cluster, tasks: usize) -> Self {
        let on_gpu = (0..cluster.len()).map(|node| vec![0; cluster.node(node).gpus.len()]).collect();
        let places = vec![None; tasks];
        Self {
            now_s: 0,
            ends: BinaryHeap::new(),
            places,
            waits_s: Vec::new(),
            waits_milli_s: 0,
            on_gpu,
            used: 0,
            used_s: 0,
        }
    }

    const fn forward(&mut self, to_s: u64) {
        self.used_s += self.used * (to_s - self.now_s);
        self.now_s = to_s;
    }

    fn start(&mut self, task: usize, arrival: &Arrival, place: Place) {
        for (gpu, _) in &place.gpus {
            let tasks = &mut self.on_gpu[place.node][*gpu];
            self.used += u64::from(*tasks == 0);
            *tasks += 1;
        }
        let wait_s = self.now_s - arrival.at_s;
        self.waits_s.push(wait_s);
        self.waits_milli_s += wait_s * arrival.gpu_milli;
        self.ends.push((Reverse(self.now_s + arrival.runs_s), task));
        self.places[task] = Some(place);
    }

    /// Ends all whose time has come.
    fn end_all(&mut self, cluster: &mut Cluster) {
        while self.ends.peek().is_some_and(|(Reverse(end), _)| *end <= self.now_s) {
            let Some(place) = self.ends.pop().and_then(|(_, task)| self.places[task].take()) else {
                continue;
            };
            cluster.give_back(&place);
            for (gpu, _) in &place.gpus {
                let tasks = &mut self.on_gpu[place.node][*gpu];
                *tasks -= 1;
                self.used -= u64::from(*tasks == 0);
            }
        }
    }
}
