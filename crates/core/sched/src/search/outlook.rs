//! The effect of the expected demand on a cluster: the worth of remainders, the host resources that a GPU needs, the
//! number of places needed for tasks of several GPUs, and the kinds of GPU that will be scarce.

use std::collections::{BTreeMap, BTreeSet};

use super::cutting_stock::worth_of_remainders;
use crate::{Cluster, Demand, Host, Shape};

/// Demand that is expected: shapes of tasks and how often each comes, as counted in the past. Only proportions matter.
pub type Mix = Vec<(Demand, u32)>;

/// Tasks that need several whole GPUs of one node.
#[derive(Clone, Debug)]
pub(crate) struct SlotKind {
    /// Number of GPUs.
    pub(crate) gpus: u32,
    /// The average host resources of such a task.
    pub(crate) host: Host,
    /// Tasks per GPU of demand.
    pub(crate) rate: f64,
}

/// GPU classes that some tasks are confined to.
#[derive(Clone, Debug)]
pub(crate) struct ConfinedClasses {
    /// Positions of the classes.
    pub(crate) classes: BTreeSet<usize>,
    /// Part of all GPU demand that is confined to it.
    pub(crate) rate: f64,
}

/// A [`Mix`] worked out for the GPU classes of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    /// Worth in GPUs of what is left of a GPU, by thousandths left.
    pub(crate) remainders: Vec<f64>,
    /// The average host resources of a GPU in use.
    pub(crate) host_per_gpu: (f64, f64),
    /// At most [`SLOT_KINDS`], those with the most demand.
    pub(crate) slots: Vec<SlotKind>,
    /// Kinds of GPU for which there is demand that cannot go elsewhere.
    pub(crate) pools: Vec<ConfinedClasses>,
}

/// Kinds of tasks with several GPUs for which places are kept.
pub(crate) const SLOT_KINDS: usize = 4;

impl Outlook {
    /// `None` if the mix has no GPU demand that this cluster could serve.
    pub(crate) fn new(mix: &[(Demand, u32)], cluster: &Cluster) -> Option<Self> {
        let items: Vec<Item> =
            mix.iter().filter_map(|(demand, count)| Item::new(cluster, demand, *count)).collect();
        let total: f64 = items.iter().map(Item::gpus).sum();
        if total <= 0.0 {
            return None;
        }
        let host = |of: fn(Host) -> u64| {
            items.iter().map(|item| item.count * of(item.shape.host()) as f64).sum::<f64>()
        };
        let (cpu, memory) = (host(|host| host.cpu_milli), host(|host| host.memory_bytes));
        let host_per_gpu = (cpu / total, memory / total);
        let mut slots = slots(&items, total);
        if let Some(kind) = largest(cluster, host_per_gpu)
            && slots.iter().all(|known| known.gpus != kind.gpus)
        {
            slots.push(kind);
        }
        slots.truncate(SLOT_KINDS);
        Some(Self {
            remainders: remainders(&items),
            host_per_gpu,
            slots,
            pools: pools(&items, total, cluster.classes().len()),
        })
    }
}

struct Item {
    shape: Shape,
    count: f64,
    /// Thousandths per device.
    milli: u32,
    classes: BTreeSet<usize>,
}

impl Item {
    fn new(cluster: &Cluster, demand: &Demand, count: u32) -> Option<Self> {
        let shape = cluster.shape(demand);
        let share = |class: usize| Some((class, shape.share(class)?));
        let shares: BTreeMap<_, _> = (0..cluster.classes().len()).filter_map(share).collect();
        let milli = shares.values().next()?.milli.0;
        Some(Self { classes: shares.into_keys().collect(), shape, count: f64::from(count), milli })
    }

    fn gpus(&self) -> f64 {
        self.count * f64::from(self.shape.devices().0) * f64::from(self.milli) / 1000.0
    }
}

fn remainders(items: &[Item]) -> Vec<f64> {
    let mut sizes: BTreeMap<u32, f64> = BTreeMap::new();
    for item in items.iter().filter(|item| item.milli < 1000) {
        *sizes.entry(item.milli).or_default() += item.count * f64::from(item.shape.devices().0);
    }
    worth_of_remainders(&sizes.into_iter().collect::<Vec<_>>())
}

fn slots(items: &[Item], total: f64) -> Vec<SlotKind> {
    let mut kinds: BTreeMap<u32, (f64, f64, f64)> = BTreeMap::new();
    for item in items.iter().filter(|item| item.milli == 1000 && item.shape.devices().0 > 1) {
        let (count, cpu, memory) = kinds.entry(item.shape.devices().0).or_default();
        *count += item.count;
        *cpu += item.count * item.shape.host().cpu_milli as f64;
        *memory += item.count * item.shape.host().memory_bytes as f64;
    }
    let mut kinds: Vec<SlotKind> = kinds
        .into_iter()
        .map(|(gpus, (count, cpu, memory))| SlotKind {
            gpus,
            host: Host { cpu_milli: whole(cpu / count), memory_bytes: whole(memory / count) },
            rate: count / total,
        })
        .collect();
    kinds.sort_by(|a, b| (f64::from(b.gpus) * b.rate).total_cmp(&(f64::from(a.gpus) * a.rate)));
    kinds
}

/// A task for all GPUs of the largest node, in case none was counted. A few hundred tasks do not show a rare demand, and one such
/// task is as large as many others. With this rate, its places have the least price.
fn largest(cluster: &Cluster, host_per_gpu: (f64, f64)) -> Option<SlotKind> {
    let gpus = cluster.nodes().iter().map(|node| node.gpus.len()).max()?;
    let gpus = u32::try_from(gpus).ok().filter(|gpus| *gpus > 1)?;
    let of = |amount: f64| whole(amount * f64::from(gpus));
    let host = Host { cpu_milli: of(host_per_gpu.0), memory_bytes: of(host_per_gpu.1) };
    Some(SlotKind { gpus, host, rate: 0.0 })
}

/// Nearest whole number of a non-negative average.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an average of numbers that are u64"
)]
fn whole(average: f64) -> u64 {
    average.round() as u64
}

fn pools(items: &[Item], total: f64, classes: usize) -> Vec<ConfinedClasses> {
    let confined: BTreeSet<&BTreeSet<usize>> =
        items.iter().map(|item| &item.classes).filter(|set| set.len() < classes).collect();
    let rate = |set: &BTreeSet<usize>| {
        let inside = items.iter().filter(|item| item.classes.is_subset(set));
        inside.map(Item::gpus).sum::<f64>() / total
    };
    confined.into_iter().map(|set| ConfinedClasses { classes: set.clone(), rate: rate(set) }).collect()
}
