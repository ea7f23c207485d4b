//! The FGD paper's experiment: tasks arrive one by one until the cluster is full, and none ends. Measures how full it
//! gets.

use std::collections::BTreeMap;

use cantle_sched::{Cluster, Mix, Shape, allocation_bound};
use serde::Serialize;

use crate::ReplayPolicy;
use crate::openb::{self, Trace, TraceTask};

/// The result of filling a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// The policy.
    pub policy: ReplayPolicy,
    /// Seed of the arrival order.
    pub seed: u64,
    /// Mean of the allocated part of all GPUs, in percent, while the demand arrived rounds to 100 % of them; `None` if
    /// it never does.
    pub allocation_percent_at_100: Option<f64>,
    /// The same at 130 %.
    pub allocation_percent_at_130: Option<f64>,
    /// Tasks decided on, refusals included.
    pub decisions: u64,
    /// Decisions per second, by the caller's clock, because this crate has none.
    pub decisions_per_second: Option<f64>,
}

/// How a cluster filled up.
#[derive(Clone, Debug)]
pub struct Filled {
    /// The figures.
    pub figures: Figures,
    /// Allocated percent over arrived percent, one point for each whole percent arrived.
    pub curve: Vec<(f64, f64)>,
}

impl Filled {
    /// The same with the time that [`Fill::run`] took.
    #[must_use]
    pub fn timed(mut self, seconds: f64) -> Self {
        self.figures.decisions_per_second = Some(self.figures.decisions as f64 / seconds);
        self
    }
}

/// A filling ready to run.
#[derive(Debug)]
pub struct Fill<'a> {
    policy: ReplayPolicy,
    seed: u64,
    cluster: Cluster,
    capacity_milli: u64,
    /// Tasks in order of arrival, with their shapes.
    arrivals: Vec<(&'a TraceTask, Shape)>,
    mix: Mix,
}

impl<'a> Fill<'a> {
    /// Prepares the arrival of `inflate` times the cluster's GPUs in an order drawn with `seed`.
    #[must_use]
    pub fn new(trace: &'a Trace, policy: ReplayPolicy, seed: u64, inflate: f64) -> Self {
        Self::of(trace, policy, seed, trace.workload(seed, inflate))
    }

    /// Prepares the arrival of `inflate` times the cluster's GPUs in the order of the file.
    #[must_use]
    pub fn in_order(trace: &'a Trace, policy: ReplayPolicy, seed: u64, inflate: f64) -> Self {
        Self::of(trace, policy, seed, trace.in_order(inflate))
    }

    fn of(trace: &'a Trace, policy: ReplayPolicy, seed: u64, tasks: Vec<&'a TraceTask>) -> Self {
        let cluster = Cluster::empty(&trace.nodes);
        let arrivals = tasks.into_iter().map(|task| (task, cluster.shape(&task.demand))).collect();
        Self {
            policy,
            seed,
            capacity_milli: trace.gpu_milli(),
            arrivals,
            mix: openb::mix(&trace.tasks),
            cluster,
        }
    }

    /// The bound for all policies when 100 % are requested, in percent: the linear bound of the cutting-stock problem,
    /// with all tasks known beforehand and CPU, memory, GPU kinds and nodes left aside.
    #[must_use]
    pub fn bound_at_100(&self) -> f64 {
        let mut sizes: BTreeMap<u32, f64> = BTreeMap::new();
        let mut arrived = 0;
        for (task, shape) in &self.arrivals {
            arrived += task.gpu_milli;
            if arrived > self.capacity_milli {
                break;
            }
            let gpus = shape.devices().0;
            if task.gpu_milli > 0 {
                *sizes.entry(task.per_gpu_milli()).or_default() += f64::from(gpus);
            }
        }
        let sizes: Vec<(u32, f64)> = sizes.into_iter().collect();
        let gpus = self.capacity_milli as f64 / 1000.0;
        100.0 * allocation_bound(&sizes, gpus) / gpus
    }

    /// Lets all tasks arrive.
    #[must_use]
    pub fn run(mut self) -> Filled {
        let mut find = self.policy.finder(&self.mix, &self.cluster, self.seed);
        let percent = |milli: u64| 100.0 * milli as f64 / self.capacity_milli as f64;
        let (mut arrived, mut allocated) = (0, 0);
        let mut means: Vec<Mean> = Vec::new();
        for (task, shape) in &self.arrivals {
            arrived += task.gpu_milli;
            if let Some(place) = find(&self.cluster, shape) {
                self.cluster.take(&place);
                allocated += task.gpu_milli;
            }
            let at = percent(arrived).round();
            match means.last_mut() {
                Some(mean) if mean.at == at => mean.add(percent(allocated)),
                _ => means.push(Mean { at, sum: percent(allocated), count: 1.0 }),
            }
        }
        let curve: Vec<(f64, f64)> = means.iter().map(|mean| (mean.at, mean.sum / mean.count)).collect();
        let at = |percent: f64| curve.iter().find(|(at, _)| *at == percent).map(|(_, mean)| *mean);
        Filled {
            figures: Figures {
                policy: self.policy,
                seed: self.seed,
                allocation_percent_at_100: at(100.0),
                allocation_percent_at_130: at(130.0),
                decisions: self.arrivals.len() as u64,
                decisions_per_second: None,
            },
            curve,
        }
    }
}

/// Mean over the arrivals at which the demand rounds to one percentage.
struct Mean {
    at: f64,
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }
}
