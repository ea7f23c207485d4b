//! The policies of the FGD paper, for comparison with cantle's only, as its simulator implements them: integer scores,
//! and the lowest node name for ties.

use std::collections::BTreeMap;

use cantle_model::Milli;
use cantle_sched::{Cluster, Cut, Demand, Host, NodeFree, NodeOffer, Place, Ranking, Shape};

use crate::random::Random;

/// Least CPU and GPU left, in equal parts, scaled to the largest node (128 cores, 8 GPUs).
#[derive(Clone, Copy, Debug)]
pub(crate) struct BestFit;

impl Ranking for BestFit {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        let node = cluster.node(node);
        let gpus = choices(node, shape)?.into_iter().min_by_key(|gpus| left(node, gpus))?;
        let free: u64 = node.gpus.iter().map(|gpu| u64::from(gpu.milli)).sum();
        let gpu_left = free - gpus.iter().map(|(_, share)| u64::from(share.milli.0)).sum::<u64>();
        let cpu_left = node.host.cpu_milli - shape.host().cpu_milli;
        let score = cpu_left as f64 / 128_000.0 + gpu_left as f64 / 8_000.0;
        Some(NodeOffer { group: 0, rank: [rounded(score * 500_000.0), 0, 0, 0, 0, 0], gpus })
    }
}

/// Thousandths left on the GPUs taken from.
fn left(node: &NodeFree, gpus: &[(usize, Cut)]) -> u32 {
    gpus.iter().map(|(at, share)| node.gpus[*at].milli - share.milli.0).sum()
}

/// Fragmentation gradient descent: where the expected amount of GPU that typical tasks cannot use grows least.
#[derive(Clone, Debug)]
pub(crate) struct Fgd {
    typical: Vec<Typical>,
}

#[derive(Clone, Debug)]
struct Typical {
    shape: Shape,
    /// Part of all tasks.
    weight: f64,
}

/// Typical tasks are the most frequent ones that make up this part of all.
const TYPICAL: f64 = 0.95;

impl Fgd {
    pub(crate) fn new(mix: &[(Demand, u32)], cluster: &Cluster) -> Self {
        let mut counts: BTreeMap<Shape, f64> = BTreeMap::new();
        for (demand, count) in mix {
            // The paper's target workload does not look at main memory.
            let host = Host { memory_bytes: 0, ..demand.host };
            *counts.entry(cluster.shape(&Demand { host, ..demand.clone() })).or_default() +=
                f64::from(*count);
        }
        let total: f64 = counts.values().sum();
        let mut counts: Vec<(Shape, f64)> = counts.into_iter().collect();
        counts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut seen = 0.0;
        counts.retain(|(_, count)| {
            let keep = seen < TYPICAL * total;
            seen += count;
            keep
        });
        let kept: f64 = counts.iter().map(|(_, count)| count).sum();
        let typical = counts.into_iter().map(|(shape, count)| Typical { shape, weight: count / kept });
        Self { typical: typical.collect() }
    }

    /// Expected thousandths of the node's free GPUs that a typical task cannot use.
    fn fragments(&self, node: &NodeFree) -> f64 {
        let free: u32 = node.gpus.iter().map(|gpu| gpu.milli).sum();
        self.typical
            .iter()
            .map(|task| task.weight * f64::from(unusable(node, &task.shape).unwrap_or(free)))
            .sum()
    }
}

/// Free thousandths on GPUs too full for `shape`; `None` if it cannot run on the node at all.
fn unusable(node: &NodeFree, shape: &Shape) -> Option<u32> {
    if !shape.host().fits_in(node.host) || shape.devices().0 == 0 {
        return None;
    }
    let (mut fitting, mut unusable) = (0, 0);
    for gpu in &node.gpus {
        match shape.share(gpu.class) {
            Some(share) if share.milli.0 <= gpu.milli => fitting += 1,
            _ => unusable += gpu.milli,
        }
    }
    (fitting >= shape.devices().0).then_some(unusable)
}

impl Ranking for Fgd {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        let node = cluster.node(node);
        let choices = choices(node, shape)?;
        let before = self.fragments(node);
        let score = |gpus: &Vec<(usize, Cut)>| {
            let mut after = node.clone();
            after.host = after.host.less(shape.host());
            for (at, share) in gpus {
                after.gpus[*at].milli -= share.milli.0;
            }
            let gradient = (before - self.fragments(&after)) / 1000.0;
            -rounded((100.0 / (1.0 + (-gradient).exp())).floor())
        };
        let scored = choices.into_iter().map(|gpus| (score(&gpus), gpus));
        let (score, gpus) = scored.min_by_key(|(score, _)| *score)?;
        Some(NodeOffer { group: 0, rank: [score, 0, 0, 0, 0, 0], gpus })
    }
}

/// Ways to serve `shape` on one node: each fitting GPU for a part of one, else the first fitting GPUs.
fn choices(node: &NodeFree, shape: &Shape) -> Option<Vec<Vec<(usize, Cut)>>> {
    if !shape.host().fits_in(node.host) {
        return None;
    }
    let fitting = node.gpus.iter().enumerate().filter_map(|(at, gpu)| {
        let share = shape.share(gpu.class)?;
        gpu.fits(share).then_some((at, share))
    });
    let fitting: Vec<(usize, Cut)> = fitting.collect();
    let wanted = shape.devices().0 as usize;
    if fitting.len() < wanted {
        return None;
    }
    let part = fitting.first().is_some_and(|(_, share)| share.milli < Milli::ONE);
    if wanted == 1 && part {
        return Some(fitting.into_iter().map(|choice| vec![choice]).collect());
    }
    Some(vec![fitting[..wanted].to_vec()])
}

/// Any place that fits, each node with the same chance.
pub(crate) fn any(cluster: &Cluster, shape: &Shape, random: &mut Random) -> Option<Place> {
    let fitting = |node: usize| Some((node, choices(cluster.node(node), shape)?));
    let mut fitting: Vec<_> = (0..cluster.len()).filter_map(fitting).collect();
    if fitting.is_empty() {
        return None;
    }
    let (node, mut choices) = fitting.swap_remove(random.below(fitting.len()));
    let gpus = choices.swap_remove(random.below(choices.len()));
    Some(Place { node, gpus, host: shape.host() })
}

#[expect(clippy::cast_possible_truncation, reason = "scores are small")]
fn rounded(score: f64) -> i64 {
    score.round() as i64
}
