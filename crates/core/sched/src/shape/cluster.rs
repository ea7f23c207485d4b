//! The free capacity of each GPU, while a plan is made or a simulation runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::{GpuGeometry, Planner, Table};
use cantle_model::{GpuUuid, MigInstance, Milli, Slice};

use super::fabric::{GpuMask, positions};
use crate::{
    Amounts, Cut, Demand, Fabric, GpuClass, GpuState, Host, InstanceCut, Node, Running, Shape, Snapshot,
};

/// The free capacity of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuFree {
    /// Position of its kind in [`Cluster::classes`].
    pub class: usize,
    /// Free thousandths.
    pub milli: u32,
    /// Free memory in bytes.
    pub bytes: u64,
    /// The lesser of both in thousandths: what a fraction could still take.
    pub room: u32,
    /// May anything start here?
    pub usable: bool,
    /// The instances of a GPU in MIG mode; those in use are marked busy.
    pub mig: Option<GpuGeometry>,
}

impl GpuFree {
    pub(crate) fn measure(&mut self, total_bytes: u64) {
        let by_bytes = u128::from(self.bytes) * 1000 / u128::from(total_bytes.max(1));
        self.room = self.milli.min(u32::try_from(by_bytes).unwrap_or(Milli::ONE.0));
    }
}

/// The free capacity of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFree {
    /// Its GPUs in index order.
    pub gpus: Vec<GpuFree>,
    /// CPU and memory; the greatest numbers if they are not counted.
    pub host: Host,
    /// The planner of MIG instances, which knows the expected demand.
    pub(crate) planner: Arc<Planner>,
}

/// A choice: a node and what is taken of its GPUs and host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Position of the node.
    pub node: usize,
    /// Positions of GPUs on the node and what is taken of each.
    pub gpus: Vec<(usize, Cut)>,
    /// The amounts taken of the host.
    pub host: Host,
}

impl Place {
    /// Its count against quotas.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        let milli = self.gpus.iter().map(|(_, share)| u64::from(share.milli.0)).sum();
        Amounts([milli, self.host.cpu_milli, self.host.memory_bytes])
    }
}

/// The free amounts of all nodes.
#[derive(Clone, Debug)]
pub struct Cluster {
    classes: Vec<GpuClass>,
    nodes: Vec<NodeFree>,
    /// They never change, and a cluster is copied often.
    names: Arc<Vec<Names>>,
    /// Nodes whose amounts changed, the oldest change first.
    changes: Vec<usize>,
}

/// Names of a node and its GPUs, and what else never changes; kept apart from the amounts, which are read far more often.
#[derive(Clone, Debug)]
struct Names {
    node: String,
    gpus: Vec<(GpuUuid, u32)>,
    /// The connections of its GPUs, if they differ.
    fabric: Option<Arc<Fabric>>,
}

impl Cluster {
    /// All that the nodes could offer: everything free and usable.
    #[must_use]
    pub fn nominal(nodes: &[Node]) -> Self {
        let mut cluster = Self::empty(nodes);
        for gpu in cluster.nodes.iter_mut().flat_map(|node| &mut node.gpus) {
            gpu.usable = true;
            gpu.milli = Milli::ONE.0;
            gpu.bytes = cluster.classes[gpu.class].memory_bytes;
            gpu.mig.iter_mut().for_each(|geometry| geometry.instances.clear());
            gpu.measure(gpu.bytes);
        }
        cluster
    }

    /// Everything free except foreign use.
    #[must_use]
    pub fn empty(nodes: &[Node]) -> Self {
        let mut classes: Vec<GpuClass> = nodes.iter().flat_map(|node| &node.gpus).map(class_of).collect();
        classes.sort();
        classes.dedup();
        let free = |state: &GpuState| {
            let class = class_of(state);
            let mut gpu = GpuFree {
                class: classes.partition_point(|known| *known < class),
                milli: Milli::ONE.0 - foreign_milli(state),
                bytes: state.gpu.memory_bytes.saturating_sub(state.foreign_bytes),
                room: 0,
                usable: state.usable,
                mig: state.mig.clone(),
            };
            gpu.measure(state.gpu.memory_bytes);
            gpu
        };
        let planner = Arc::default();
        let amounts = nodes.iter().map(|node| NodeFree {
            gpus: node.gpus.iter().map(free).collect(),
            host: node.host.unwrap_or(Host::UNCOUNTED),
            planner: Arc::clone(&planner),
        });
        let amounts = amounts.collect();
        let names = nodes.iter().map(|node| Names {
            node: node.name.clone(),
            gpus: node.gpus.iter().map(|gpu| (gpu.gpu.uuid.clone(), gpu.gpu.index)).collect(),
            fabric: node.fabric.clone(),
        });
        let names = Arc::new(names.collect());
        Self { classes, nodes: amounts, names, changes: Vec::new() }
    }

    /// The capacity that `state` leaves free.
    #[must_use]
    pub fn of(state: &Snapshot) -> Self {
        let mut cluster = Self::empty(&state.nodes);
        cluster.expect(state);
        let index = cluster.by_name();
        for running in &state.running {
            if let Some(place) = cluster.place_of(&index, running) {
                cluster.take(&place);
            }
        }
        cluster
    }

    /// MIG instances go where they leave room for these from now on.
    fn expect(&mut self, state: &Snapshot) {
        let tables: Vec<&Arc<Table>> = self.classes.iter().filter_map(|class| class.table.as_ref()).collect();
        if tables.is_empty() {
            return;
        }
        let planner = Arc::new(Planner::new(&expected_profiles(state, &self.classes), tables));
        self.nodes.iter_mut().for_each(|node| node.planner = Arc::clone(&planner));
    }

    /// Positions of nodes by name.
    pub(crate) fn by_name(&self) -> BTreeMap<String, usize> {
        self.names.iter().enumerate().map(|(at, names)| (names.node.clone(), at)).collect()
    }

    /// The holdings of a running task; `None` if its node is not here (then it holds nothing here either).
    pub(crate) fn place_of(&self, by_name: &BTreeMap<String, usize>, running: &Running) -> Option<Place> {
        let node = *by_name.get(&running.node)?;
        let at = |slice: &Slice| self.names[node].gpus.iter().position(|(uuid, _)| *uuid == slice.gpu);
        let cut = |at: usize, slice: &Slice| {
            let table = self.nodes[node].gpus[at].mig.as_ref().map(|geometry| &geometry.table);
            let instance = |mig: &MigInstance| {
                Some(InstanceCut { profile: table?.position(&mig.profile)?, start: Some(mig.start) })
            };
            Cut {
                milli: slice.milli,
                memory_limit_bytes: slice.memory_limit_bytes,
                mig: slice.mig.as_ref().and_then(instance),
            }
        };
        let held = running.slices.iter().filter_map(|slice| at(slice).map(|at| (at, cut(at, slice))));
        let gpus = held.collect();
        Some(Place { node, gpus, host: running.host })
    }

    /// Works a demand out for this cluster's GPUs.
    #[must_use]
    pub fn shape(&self, demand: &Demand) -> Shape {
        Shape::new(demand, &self.classes)
    }

    /// The same places with other GPUs where a node has GPUs that packing does not distinguish: those that are connected best.
    pub(crate) fn best_connected(&self, node: usize, mut gpus: Vec<(usize, Cut)>) -> Vec<(usize, Cut)> {
        let Some(fabric) = &self.names[node].fabric else { return gpus };
        let free = &self.nodes[node].gpus;
        let all = |wanted: &dyn Fn(&GpuFree) -> bool| {
            let wanted = free.iter().enumerate().filter(|(_, gpu)| wanted(gpu));
            wanted.fold(0, |mask: GpuMask, (at, _)| mask | 1 << at)
        };
        let idle = all(&|gpu| gpu.usable && gpu.mig.is_none() && gpu.room == Milli::ONE.0);
        let mut kinds: Vec<&GpuFree> = gpus.iter().map(|(at, _)| &free[*at]).collect();
        kinds.dedup();
        for kind in kinds.into_iter().filter(|kind| kind.mig.is_none()) {
            let chosen = gpus.iter().fold(0, |mask: GpuMask, (at, _)| mask | 1 << at);
            let equals = all(&|gpu| gpu == kind);
            let (fixed, take) = (chosen & !equals, (chosen & equals).count_ones());
            if equals.count_ones() > take {
                let better = fabric.choose(fixed, equals, take, idle);
                let of_kind = gpus.iter_mut().filter(|(at, _)| equals >> *at & 1 == 1);
                of_kind.zip(positions(better)).for_each(|((at, _), better)| *at = better);
            }
        }
        gpus.sort_unstable_by_key(|(at, _)| *at);
        gpus
    }

    /// Takes a place. An excess (foreign use may grow under a slice) leaves zero free.
    pub fn take(&mut self, place: &Place) {
        self.change(place, GpuFree::take, u64::saturating_sub);
    }

    /// Gives a taken place back.
    pub fn give_back(&mut self, place: &Place) {
        self.change(place, GpuFree::give_back, u64::saturating_add);
    }

    fn change(&mut self, place: &Place, gpu: fn(&mut GpuFree, Cut, u64), amount: fn(u64, u64) -> u64) {
        let node = &mut self.nodes[place.node];
        for (at, cut) in &place.gpus {
            let free = &mut node.gpus[*at];
            gpu(free, *cut, self.classes[free.class].memory_bytes);
        }
        // An uncounted host stays uncounted.
        if node.host != Host::UNCOUNTED {
            node.host.cpu_milli = amount(node.host.cpu_milli, place.host.cpu_milli);
            node.host.memory_bytes = amount(node.host.memory_bytes, place.host.memory_bytes);
        }
        self.changes.push(place.node);
    }

    /// Takes of a place what is free of it: the rest will be free later, and no other task may take this part.
    pub(crate) fn hold(&mut self, place: &Place) {
        let mut now = place.clone();
        for (gpu, share) in &mut now.gpus {
            let free = &self.nodes[place.node].gpus[*gpu];
            let milli = Milli(share.milli.0.min(free.milli));
            let memory_limit_bytes = share.memory_limit_bytes.min(free.bytes);
            let placed =
                if share.mig.is_some_and(|mig| mig.start.is_none()) { free.nearest(*share) } else { *share };
            *share = Cut { milli, memory_limit_bytes, mig: placed.mig };
        }
        self.take(&now);
    }

    /// All that tasks can be given.
    #[must_use]
    pub fn capacity(&self) -> Amounts {
        let gpus = self.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.usable).count() as u64;
        let host =
            |of: fn(Host) -> u64| self.nodes.iter().fold(0u64, |sum, node| sum.saturating_add(of(node.host)));
        Amounts([1000 * gpus, host(|host| host.cpu_milli), host(|host| host.memory_bytes)])
    }

    /// Number of nodes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Are there no nodes?
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The free capacity of the node at this position.
    #[must_use]
    pub fn node(&self, node: usize) -> &NodeFree {
        &self.nodes[node]
    }

    /// The free capacity of all nodes.
    pub(crate) fn nodes(&self) -> &[NodeFree] {
        &self.nodes
    }

    /// Kinds of GPU, in an order that depends on nothing but the kinds.
    #[must_use]
    pub fn classes(&self) -> &[GpuClass] {
        &self.classes
    }

    /// Positions of nodes in the order in which they changed since the cluster was made.
    pub(crate) const fn changes(&self) -> &Vec<usize> {
        &self.changes
    }

    /// The slices that a place means.
    #[must_use]
    pub fn slices(&self, place: &Place) -> Vec<Slice> {
        let mig = |gpu: usize, instance: InstanceCut| {
            let profile = &self.nodes[place.node].gpus[gpu].mig.as_ref()?.table.profiles[instance.profile];
            Some(MigInstance {
                profile: profile.name.clone(),
                start: instance.start?,
                size: profile.size,
                uuid: String::new(),
            })
        };
        let slice = |(gpu, share): &(usize, Cut)| Slice {
            gpu: self.names[place.node].gpus[*gpu].0.clone(),
            milli: share.milli,
            memory_limit_bytes: share.memory_limit_bytes,
            mig: share.mig.and_then(|instance| mig(*gpu, instance)),
        };
        place.gpus.iter().map(slice).collect()
    }

    /// Name of a node.
    #[must_use]
    pub fn node_name(&self, node: usize) -> &str {
        &self.names[node].node
    }

    /// NVML index of a GPU.
    pub(crate) fn gpu_index(&self, node: usize, gpu: usize) -> u32 {
        self.names[node].gpus[gpu].1
    }
}

/// Waiting tasks of each queue that count towards the expected requests: those that come next.
const WAITING: usize = 100;

/// The frequency of requests for each MIG profile: those of the past, those of the tasks that wait, and one of each
/// profile of a table, because there is always a first time.
fn expected_profiles<'a>(state: &Snapshot, classes: &'a [GpuClass]) -> BTreeMap<&'a str, f64> {
    let mut counts = BTreeMap::new();
    for table in classes.iter().filter_map(|class| class.table.as_deref()) {
        for (at, profile) in table.profiles.iter().enumerate() {
            counts.insert(profile.name.as_str(), table.expected(at));
        }
    }
    let mut count = |demand: &Demand, times: u32| {
        let shape = Shape::new(demand, classes);
        for (at, class) in classes.iter().enumerate() {
            let instance = shape.share(at).and_then(|cut| cut.mig);
            if let (Some(instance), Some(table)) = (instance, &class.table) {
                *counts.entry(&*table.profiles[instance.profile].name).or_default() += f64::from(times);
            }
        }
    };
    state.expected.iter().for_each(|(demand, times)| count(demand, *times));
    for queue in &state.queues {
        queue.waiting.iter().take(WAITING).for_each(|waiting| count(&Demand::of(queue, waiting), 1));
    }
    counts
}

fn class_of(state: &GpuState) -> GpuClass {
    GpuClass {
        model: state.gpu.model.clone(),
        memory_bytes: state.gpu.memory_bytes,
        mig: state.gpu.mig,
        table: state.mig.as_ref().map(|geometry| geometry.table.clone()),
        pools: state.pools.clone(),
    }
}

/// The part of a GPU in MIG mode that others hold instances on.
fn foreign_milli(state: &GpuState) -> u32 {
    let part = |geometry: &GpuGeometry| {
        geometry.busy_units().count_ones() * Milli::ONE.0 / geometry.table.units.max(1)
    };
    state.mig.as_ref().map_or(0, part)
}
