//! Replays a trace against one policy and says how full the cluster gets.

use std::str::FromStr;

use cantle_sched::{Cluster, Picker, Place, Placement, Ranking, Shape, Standard};
use serde::Serialize;

use crate::baselines::{BestFit, Fgd, choices};
use crate::openb::{Random, Trace, TraceTask};

/// What decides in a replay: our own placements, or one of the FGD paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplayPolicy {
    /// Our default: least worth lost.
    Worth,
    /// Fullest first.
    Binpack,
    /// Emptiest first.
    Spread,
    /// The paper's fragmentation gradient descent.
    Fgd,
    /// The paper's best fit.
    BestFit,
    /// Any place that fits.
    Random,
}

const POLICIES: [(&str, ReplayPolicy); 6] = [
    ("worth", ReplayPolicy::Worth),
    ("binpack", ReplayPolicy::Binpack),
    ("spread", ReplayPolicy::Spread),
    ("fgd", ReplayPolicy::Fgd),
    ("bestfit", ReplayPolicy::BestFit),
    ("random", ReplayPolicy::Random),
];

impl FromStr for ReplayPolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = POLICIES.iter().find(|(name, _)| *name == text).map(|(_, policy)| *policy);
        found.ok_or_else(|| {
            let names: Vec<&str> = POLICIES.iter().map(|(name, _)| *name).collect();
            format!("\"{text}\" is not a policy; write one of {}", names.join(", "))
        })
    }
}

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// What decided.
    pub policy: ReplayPolicy,
    /// Seed of the arrival order.
    pub seed: u64,
    /// Mean of the allocated part of all GPUs, in percent, while the demand arrived rounds to 100 % of them.
    pub allocation_percent_at_100: f64,
    /// The same at 130 %.
    pub allocation_percent_at_130: f64,
    /// Tasks decided on, refusals included.
    pub decisions: u64,
    /// Decisions per second; the caller's clock says, because this crate has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decisions_per_second: Option<f64>,
}

impl Figures {
    /// The same with the time that [`Replay::run`] took.
    #[must_use]
    pub fn timed(mut self, seconds: f64) -> Self {
        self.decisions_per_second = Some(self.decisions as f64 / seconds);
        self
    }
}

/// A replay ready to run.
#[derive(Debug)]
pub struct Replay<'a> {
    policy: ReplayPolicy,
    seed: u64,
    cluster: Cluster,
    capacity_milli: u64,
    /// Tasks in order of arrival, with their shapes.
    arrivals: Vec<(&'a TraceTask, Shape)>,
    mix: cantle_sched::Mix,
}

impl<'a> Replay<'a> {
    /// Prepares the arrival of `inflate` times the cluster's GPUs in an order drawn with `seed`.
    #[must_use]
    pub fn new(trace: &'a Trace, policy: ReplayPolicy, seed: u64, inflate: f64) -> Self {
        let cluster = Cluster::empty(&trace.nodes);
        let arrivals = trace.workload(seed, inflate).into_iter();
        let arrivals = arrivals.map(|task| (task, cluster.shape(&task.demand))).collect();
        Self { policy, seed, capacity_milli: trace.gpu_milli(), arrivals, mix: trace.mix(), cluster }
    }

    /// Lets all tasks arrive.
    #[must_use]
    pub fn run(self) -> Figures {
        let placement = match self.policy {
            ReplayPolicy::Worth => Placement::Worth,
            ReplayPolicy::Binpack => Placement::Binpack,
            ReplayPolicy::Spread => Placement::Spread,
            ReplayPolicy::Fgd => {
                let fgd = Fgd::new(&self.mix, &self.cluster);
                return self.ranked(fgd);
            }
            ReplayPolicy::BestFit => return self.ranked(BestFit),
            ReplayPolicy::Random => {
                let mut random = Random(!self.seed);
                return self.with(move |cluster, shape| any(cluster, shape, &mut random));
            }
        };
        let standard = Standard::new(placement, &self.mix, &self.cluster);
        self.ranked(standard)
    }

    fn ranked(self, ranking: impl Ranking) -> Figures {
        let mut picker = Picker::new(ranking, &self.cluster);
        self.with(move |cluster, shape| picker.find(cluster, shape))
    }

    fn with(mut self, mut find: impl FnMut(&Cluster, &Shape) -> Option<Place>) -> Figures {
        let capacity = self.capacity_milli as f64;
        let (mut arrived, mut allocated) = (0, 0);
        let (mut at_100, mut at_130) = (Mean::default(), Mean::default());
        for (task, shape) in &self.arrivals {
            arrived += task.gpu_milli;
            if let Some(place) = find(&self.cluster, shape) {
                self.cluster.take(&place);
                allocated += task.gpu_milli;
            }
            let percent = 100.0 * allocated as f64 / capacity;
            match (100.0 * arrived as f64 / capacity).round() {
                100.0 => at_100.add(percent),
                130.0 => at_130.add(percent),
                _ => {}
            }
        }
        Figures {
            policy: self.policy,
            seed: self.seed,
            allocation_percent_at_100: at_100.value(),
            allocation_percent_at_130: at_130.value(),
            decisions: self.arrivals.len() as u64,
            decisions_per_second: None,
        }
    }
}

/// Any place that fits, each node with the same chance.
fn any(cluster: &Cluster, shape: &Shape, random: &mut Random) -> Option<Place> {
    let fitting = |node: usize| Some((node, choices(cluster.node(node), shape)?));
    let mut fitting: Vec<_> = (0..cluster.len()).filter_map(fitting).collect();
    if fitting.is_empty() {
        return None;
    }
    let (node, mut choices) = fitting.swap_remove(random.below(fitting.len()));
    let gpus = choices.swap_remove(random.below(choices.len()));
    Some(Place { node, gpus, host: shape.host() })
}

#[derive(Default)]
struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1.0;
    }

    fn value(&self) -> f64 {
        if self.count > 0.0 { self.sum / self.count } else { f64::NAN }
    }
}
