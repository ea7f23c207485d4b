//! The policy worth: each task goes to the place that costs expected future tasks the least worth. docs/scheduling.md
//! explains why this packs better than gradients of fragmentation.
//!
//! The worth of a node is the worth of its free GPUs and remainders (shadow prices, see `stock`), as far as its CPU
//! and memory can serve them. On top come two prices that depend on the whole cluster: for breaking up a place that a
//! task of several GPUs may need, and for taking a kind of GPU from tasks that can go nowhere else. Both prices rise as
//! the free amount falls to the demand that is expected before the cluster is full.
//!
//! Only `+ − × ÷ √` are used, which IEEE 754 rounds alike everywhere: the same input gives the same plan on any machine.

use cantle_model::Milli;

use super::binpack::{choose, fullest_first, fullness};
use super::outlook::{Outlook, SLOT_KINDS};
use super::ranking::NodeOffer;
use crate::{Cluster, Cut, Demand, GpuFree, Host, NodeFree, Ranking, Shape};

// The constants below were found by trials on the eight public traces of the FGD experiment, two seeds each. Halving or
// doubling one of the first three cost up to half a point of allocation there; they are not fitted trace by trace.

/// Part of its worth by size that a free GPU or remainder keeps, regardless of the shadow prices.
const BY_SIZE: f64 = 0.3;
/// A remainder waits for a partner that may never come, so it is worth this much less than its shadow price.
const WAIT_DISCOUNT: f64 = 0.05;
/// Hosts are counted as scarce below this part of the average need per GPU: demanding tasks can go elsewhere.
const HOST_NEED: f64 = 0.8;
/// Least price of breaking up a place for several GPUs, per GPU of it: among equals, broken nodes are used up first.
const BREAK_FLOOR: f64 = 0.02;
/// Worth is ranked in millionths of a GPU.
const MICRO: f64 = 1e6;

/// The ranking by lost worth.
#[derive(Clone, Debug)]
pub struct Worth {
    outlook: Outlook,
    /// The offer of each node, as counted in `totals`.
    by_node: Vec<Offered>,
    totals: Offered,
}

/// The offer that is left for expected tasks.
#[derive(Clone, Debug, Default)]
struct Offered {
    /// Free thousandths by class.
    free_milli: Vec<i64>,
    /// Places for tasks of several GPUs, by kind.
    slots: [i64; SLOT_KINDS],
}

impl Worth {
    /// A ranking for `cluster` and the demand expected on it; `None` if no GPU demand is expected.
    #[must_use]
    pub fn new(mix: &[(Demand, u32)], cluster: &Cluster) -> Option<Self> {
        let outlook = Outlook::new(mix, cluster)?;
        let none = Offered { free_milli: vec![0; cluster.classes().len()], slots: [0; SLOT_KINDS] };
        let mut worth = Self { outlook, by_node: vec![none.clone(); cluster.len()], totals: none };
        for node in 0..cluster.len() {
            worth.changed(cluster, node);
        }
        Some(worth)
    }

    fn offered(&self, cluster: &Cluster, node: usize) -> Offered {
        let node = cluster.node(node);
        let mut free_milli = vec![0; cluster.classes().len()];
        for gpu in node.gpus.iter().filter(|gpu| gpu.usable) {
            free_milli[gpu.class] += i64::from(gpu.room);
        }
        Offered { free_milli, slots: self.slots(untouched(node), node.host) }
    }

    /// Places for each kind of task with several GPUs on a node with this number of untouched GPUs and this much of the host.
    fn slots(&self, untouched: u64, host: Host) -> [i64; SLOT_KINDS] {
        let mut slots = [0; SLOT_KINDS];
        for (slot, kind) in slots.iter_mut().zip(&self.outlook.slots) {
            let by_cpu = host.cpu_milli.checked_div(kind.host.cpu_milli).unwrap_or(u64::MAX);
            let by_memory = host.memory_bytes.checked_div(kind.host.memory_bytes).unwrap_or(u64::MAX);
            let fits = (untouched / u64::from(kind.gpus)).min(by_cpu).min(by_memory);
            *slot = fits.cast_signed();
        }
        slots
    }

    /// Worth of a free part of a GPU.
    fn part(&self, milli: u32) -> f64 {
        let by_price = self.outlook.remainders[milli as usize];
        let discount = if milli < Milli::ONE.0 { 1.0 - WAIT_DISCOUNT } else { 1.0 };
        by_price * discount + BY_SIZE * f64::from(milli) / 1000.0
    }

    /// The worth of a node with free parts of this worth and this host: nearly all of it while the host can serve it,
    /// nearly in proportion to the host below that.
    fn node(&self, parts: f64, host: Host) -> f64 {
        if parts <= 0.0 {
            return 0.0;
        }
        let (cpu, memory) = self.outlook.host_per_gpu;
        let served =
            |free: u64, need: f64| if need > 0.0 { free as f64 / (HOST_NEED * need * parts) } else { 1e3 };
        let served = served(host.cpu_milli, cpu).min(served(host.memory_bytes, memory)).min(1e3);
        // served / (1 + served⁴)^¼: a rounded min(served, 1).
        let square = served * served;
        parts * served / (1.0 + square * square).sqrt().sqrt()
    }

    fn lost(&self, node: &NodeFree, shape: &Shape, gpus: &[(usize, Cut)]) -> i64 {
        let usable = node.gpus.iter().filter(|gpu| gpu.usable);
        let before: f64 = usable.map(|gpu| self.part(gpu.room)).sum();
        let part = |(at, share): &(usize, Cut)| self.part_lost(&node.gpus[*at], *share);
        let after = before - gpus.iter().map(part).sum::<f64>();
        let lost = self.node(before, node.host) - self.node(after, node.host.less(shape.host()));
        micro(lost)
    }

    fn part_lost(&self, gpu: &GpuFree, share: Cut) -> f64 {
        self.part(gpu.room) - self.part(gpu.room.saturating_sub(share.milli.0))
    }

    /// The class of the GPUs taken, and how many places of each kind are lost to others.
    fn group(&self, node: &NodeFree, shape: &Shape, gpus: &[(usize, Cut)]) -> u64 {
        let class = gpus.iter().map(|(at, _)| node.gpus[*at].class as u64).min().unwrap_or(0xffff);
        let touched = gpus.iter().filter(|(at, _)| node.gpus[*at].milli == Milli::ONE.0).count() as u64;
        let fresh = untouched(node);
        let before = self.slots(fresh, node.host);
        let after = self.slots(fresh.saturating_sub(touched), node.host.less(shape.host()));
        let lost = before.iter().zip(after).map(|(before, after)| before - after);
        lost.fold(class, |group, lost| group << 8 | lost.clamp(0, 255).cast_unsigned())
    }
}

impl Ranking for Worth {
    fn offer(&self, cluster: &Cluster, node: usize, shape: &Shape) -> Option<NodeOffer> {
        let node = cluster.node(node);
        let gpus =
            choose(node, shape, |gpu, share| (micro(self.part_lost(gpu, share)), fullest_first(gpu, share)))?;
        let [short, opened, left, free, _, digest] = fullness(node, shape, &gpus);
        // A task that may take more GPUs takes them: being short outweighs any worth.
        let lost = self.lost(node, shape, &gpus).saturating_add(short.saturating_mul(1 << 40));
        Some(NodeOffer {
            group: self.group(node, shape, &gpus),
            rank: [lost, opened, left, free, 0, digest],
            gpus,
        })
    }

    fn price(&self, shape: &Shape, group: u64) -> i64 {
        let to_come = self.totals.free_milli.iter().sum::<i64>() as f64 / 1000.0;
        let mut price = 0.0;
        for (at, kind) in self.outlook.slots.iter().enumerate() {
            let lost = group >> (8 * (SLOT_KINDS - 1 - at)) & 0xff;
            // A task does not pay for the place that it fills itself.
            let own = u64::from(shape.devices().0 == kind.gpus);
            let scarce = scarcity(kind.rate * to_come, self.totals.slots[at] as f64);
            price += scarce.max(BREAK_FLOOR) * lost.saturating_sub(own) as f64 * f64::from(kind.gpus);
        }
        let class = usize::try_from(group >> (8 * SLOT_KINDS)).unwrap_or(usize::MAX);
        let free = |pool: &super::outlook::ConfinedClasses| {
            pool.classes.iter().map(|class| self.totals.free_milli[*class]).sum::<i64>() as f64 / 1000.0
        };
        let outsider = |pool: &&super::outlook::ConfinedClasses| {
            pool.classes.contains(&class) && !shape.classes().all(|class| pool.classes.contains(&class))
        };
        let pools = self.outlook.pools.iter().filter(outsider);
        let scarce = pools.map(|pool| scarcity(pool.rate * to_come, free(pool))).fold(0.0, f64::max);
        let taken = shape.share(class).map_or(0, |share| share.milli.0);
        micro(price + scarce * f64::from(shape.devices().0) * f64::from(taken) / 1000.0)
    }

    fn changed(&mut self, cluster: &Cluster, node: usize) {
        let now = self.offered(cluster, node);
        let before = std::mem::replace(&mut self.by_node[node], now.clone());
        for (total, (now, before)) in
            self.totals.free_milli.iter_mut().zip(now.free_milli.iter().zip(&before.free_milli))
        {
            *total += now - before;
        }
        for (total, (now, before)) in self.totals.slots.iter_mut().zip(now.slots.iter().zip(before.slots)) {
            *total += now - before;
        }
    }
}

/// The probability that `wanted` (expected) exceeds `free`: a step rounded by the standard deviation of a count.
fn scarcity(wanted: f64, free: f64) -> f64 {
    let deviations = (wanted - free) / (wanted.sqrt() + 1.0);
    0.5 * (1.0 + deviations / (1.0 + deviations * deviations).sqrt())
}

fn untouched(node: &NodeFree) -> u64 {
    node.gpus.iter().filter(|gpu| gpu.usable && gpu.room == Milli::ONE.0).count() as u64
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates; a cluster's worth in millionths is far below 2^53"
)]
fn micro(gpus: f64) -> i64 {
    (gpus * MICRO).round() as i64
}

#[cfg(test)]
mod tests {
    use cantle_model::{ComputeMode, Gpu, GpuUuid, Isolation};

    use super::*;
    use crate::{GpuDemand, GpuState, Node, Picker, Place};

    fn one_gpu(cpu_milli: u64) -> Demand {
        Demand {
            gpus: GpuDemand::Whole { min: 1, max: 1 },
            models: Vec::new(),
            pools: Vec::new(),
            used_up: Vec::new(),
            host: Host { cpu_milli, memory_bytes: 0 },
            isolation: Isolation::Any,
            compute: ComputeMode::Even,
        }
    }

    /// A node with two GPUs and 16 CPUs.
    fn node(name: &str) -> Node {
        let gpu = |index| {
            let uuid = GpuUuid(format!("GPU-{name}-{index}"));
            let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 << 30, mig: false };
            GpuState::new(gpu)
        };
        let mut node = Node::new(name, (0..2).map(gpu).collect());
        node.host = Some(Host { cpu_milli: 16_000, memory_bytes: 1 << 40 });
        node
    }

    /// A hundred tasks with one GPU were counted. The other node's CPUs are a little more worth than those of the node in use.
    #[test]
    fn a_whole_node_is_kept_for_a_task_that_was_never_counted() {
        let mut cluster = Cluster::empty(&[node("whole"), node("in use")]);
        let first = cluster.shape(&one_gpu(7_500));
        cluster.take(&Place { node: 1, gpus: vec![(0, first.share(0).unwrap())], host: first.host() });
        let mix = [(one_gpu(8_000), 100)];
        let mut picker = Picker::new(Worth::new(&mix, &cluster).unwrap(), &cluster);
        let place = picker.find(&cluster, &cluster.shape(&one_gpu(8_000))).unwrap();
        assert_eq!(place.node, 1);
    }
}
