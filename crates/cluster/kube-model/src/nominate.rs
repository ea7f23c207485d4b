//! Nominates a node for each pod with a slice: the node that cantle's own scheduler chooses, so that GPUs are filled one
//! after the other. kube-scheduler itself does not score claims, and spreads pods over all nodes. Pure.
//!
//! A nomination (`status.nominatedNodeName`) is advice: if the pod does not fit there, kube-scheduler ignores it. It comes
//! in time because the injector gives the pod a scheduling gate, which is removed when the nomination is written.

use std::borrow::Borrow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use cantle_decide::{BrokenPlan, SnapshotBuilder, decide};
use cantle_model::{LeaseId, QueueSpec, QueueWant, TaskId};
use cantle_sched::{Gang, Host, Mix, Plan, Policy, Running, Waiting};
use k8s_openapi::api::core::v1::{Affinity, Node, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::claim::claim_of;
use crate::cluster::{ClusterView, ViewGpu, ViewNode};
use crate::dra::claim::bytes;
use crate::inject::{self, SLICE_LABEL};
use crate::names::PACKING_GATE;
use crate::{ObjectExt as _, SliceName};

mod expected;
pub mod preempt;
mod under_way;

pub use expected::Requests;

/// The one queue: pods as they came.
fn queue() -> QueueSpec {
    QueueSpec { name: "pods".to_owned(), want: QueueWant::Task }
}

/// The node on which a pod is tried first, and the amount that it takes there until its claim names the GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Nomination {
    /// The node.
    pub node: String,
    /// Its slices.
    pub slice_name: SliceName,
    /// CPU and memory of the node that it takes.
    pub host: Host,
}

/// The reports about waiting pods, by their UIDs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// Their nominated nodes.
    pub nominations: BTreeMap<String, Nomination>,
    /// The requests of the others and the free capacity, as text.
    pub lacking: BTreeMap<String, String>,
}

/// The common data of all pods of one batch: their priority, the highest first, and which nodes will do for them. One that a
/// former replica has nominated a node for has that node, and is only counted there.
type Constraints = (Reverse<i32>, BTreeMap<String, String>, String, Option<String>);

/// The cluster as far as nominations depend on it.
#[derive(Debug)]
pub struct Nominator<'a> {
    /// GPUs and their allocations.
    pub view: &'a ClusterView,
    nodes: BTreeMap<String, (Vec<Taint>, Host)>,
    expected: Mix,
}

impl<'a> Nominator<'a> {
    /// Of all nodes, and the pods that have a place.
    pub fn new(view: &'a ClusterView, nodes: &[impl Borrow<Node>], placed: &[impl Borrow<Pod>]) -> Self {
        let mut used: BTreeMap<&str, Vec<Host>> = BTreeMap::new();
        for pod in placed.iter().map(Borrow::<Pod>::borrow) {
            if let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
                used.entry(node).or_default().push(host_of(pod));
            }
        }
        let of_node = |node: &Node| {
            let name = node.name_any();
            let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
            let mut free = free_host(node);
            for host in used.get(name.as_str()).into_iter().flatten() {
                free.cpu_milli = free.cpu_milli.saturating_sub(host.cpu_milli);
                free.memory_bytes = free.memory_bytes.saturating_sub(host.memory_bytes);
            }
            (name, (taints, free))
        };
        let nodes = nodes.iter().map(|node| of_node(node.borrow())).collect();
        Self { view, nodes, expected: Mix::new() }
    }

    /// Places pods where they leave room for these.
    #[must_use]
    pub fn expecting(self, expected: Mix) -> Self {
        Self { expected, ..self }
    }

    /// Advice on those of the waiting pods that may be nominated, in the order of their priority, and then of their creation. `made`
    /// are nominations that are under way, by the pods' UIDs.
    pub fn advise(&self, waiting: &[impl Borrow<Pod>], made: &BTreeMap<String, Nomination>) -> Advice {
        let mut batches: BTreeMap<Constraints, Vec<&Pod>> = BTreeMap::new();
        let may = |pod: &&Pod| may_be_nominated(pod) && pod.uid().is_some_and(|uid| !made.contains_key(&uid));
        for pod in waiting.iter().map(Borrow::<Pod>::borrow).filter(may) {
            batches.entry(constraints(pod)).or_default().push(pod);
        }
        let (mut all, mut lacking) = (made.clone(), BTreeMap::new());
        // Those with a node first: the others go where these leave room.
        let (nominated, others): (Vec<_>, Vec<_>) =
            batches.into_iter().partition(|((.., node), _)| node.is_some());
        for (_, mut batch) in nominated.into_iter().chain(others) {
            batch.sort_by_key(|pod| (pod.creation_timestamp(), pod.uid()));
            let chosen = self.choose(&batch, &all);
            all.extend(chosen.nominations);
            lacking.extend(chosen.lacking);
        }
        all.retain(|uid, _| !made.contains_key(uid));
        Advice { nominations: all, lacking }
    }

    fn choose(&self, batch: &[&Pod], others: &BTreeMap<String, Nomination>) -> Advice {
        let asked = |pod: &&Pod| Some((pod.uid()?, (slice_of(pod)?, host_of(pod))));
        let mut asked: BTreeMap<String, (SliceName, Host)> = batch.iter().filter_map(asked).collect();
        // Without advice kube-scheduler places them as it always does.
        let expected = self.expected.clone();
        let Ok(Plan { starts, waits, .. }) = self.plan(batch, others, None, expected) else {
            return Advice::default();
        };
        let nomination = |start: cantle_sched::Start| {
            let (slice_name, host) = asked.remove(&start.task.0)?;
            Some((start.task.0, Nomination { node: start.node, slice_name, host }))
        };
        Advice {
            nominations: starts.into_iter().filter_map(nomination).collect(),
            lacking: waits.into_iter().map(|wait| (wait.task.0, wait.reason.to_string())).collect(),
        }
    }

    /// The nodes of these pods, which have the same constraints: on any node, or on this one, with room for what is expected.
    fn plan(
        &self,
        batch: &[&Pod],
        others: &BTreeMap<String, Nomination>,
        only: Option<&str>,
        expected: Mix,
    ) -> Result<Plan, BrokenPlan> {
        let open = || {
            let nodes = self.view.nodes.iter().filter(|node| only.is_none_or(|only| only == node.name));
            nodes.filter(|node| batch.first().is_some_and(|first| self.obstacle(first, node).is_none()))
        };
        let mut world = SnapshotBuilder::default();
        // A claim is for a shared GPU or for an instance, and never gets the other.
        let wants_instances =
            batch.first().and_then(|first| requested(first)).is_some_and(|slice| is_instance(&slice));
        let serves = |gpu: &&ViewGpu| match wants_instances {
            true => gpu.offer.has_instances(),
            false => gpu.offer.has_shares(),
        };
        for node in open() {
            let host = self.nodes.get(&node.name).map(|(_, free)| *free);
            let gpus = node.gpus.iter().filter(|gpu| !gpu.by_plugin).filter(serves);
            world = world.node_with_host(&node.name, gpus.map(|gpu| gpu.offer.clone()), host);
        }
        let is_open = |name: &str| open().any(|node| node.name == name);
        let held = self.view.holdings.iter().filter(|holding| is_open(&holding.node));
        world = world.running(held.enumerate().map(|(at, holding)| {
            let name = format!("{}/{at}", holding.pod);
            Running::new(LeaseId(name.clone()), TaskId(name), &holding.node, holding.slices.clone())
        }));
        world = world.running(self.under_way(others, &is_open));
        let mut waiting: Vec<Waiting> = batch.iter().filter_map(|pod| waiting_of(self.view, pod)).collect();
        size_gangs(&mut waiting);
        let policy = Policy { backfill: true, ..Policy::default() };
        decide(&world.queue(queue(), waiting).expected(expected).build(), &policy, 0)
    }

    /// The constraints that keep a pod from a node, apart from GPUs.
    fn obstacle(&self, pod: &Pod, node: &ViewNode) -> Option<&'static str> {
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        let matches = selector.into_iter().flatten().all(|(key, value)| node.labels.get(key) == Some(value));
        if !node.is_open {
            return Some("it is cordoned or not ready");
        }
        if !matches {
            return Some("the pod's nodeSelector excludes it");
        }
        if nominated_node(pod).is_some_and(|nominated| nominated != node.name) {
            return Some("the pod is to be tried on another node first");
        }
        let tolerated = self.nodes.get(&node.name).is_some_and(|(taints, _)| tolerates(pod, taints));
        (!tolerated).then_some("it has a taint that the pod does not tolerate")
    }

    /// The request of this pod and the free capacity for it, on all nodes or on this one: the scheduler's own words. None if
    /// there is room.
    #[must_use]
    pub fn lacks(
        &self,
        pod: &Pod,
        made: &BTreeMap<String, Nomination>,
        only: Option<&ViewNode>,
    ) -> Option<String> {
        self.group_lacks(&[pod], made, only)
    }

    /// The same for pods that are placed together or not at all. Those of them that have other constraints than the first one are not
    /// kept from a node by them.
    #[must_use]
    pub fn group_lacks(
        &self,
        pods: &[&Pod],
        made: &BTreeMap<String, Nomination>,
        only: Option<&ViewNode>,
    ) -> Option<String> {
        let pod = pods.first()?;
        if let Some(obstacle) = only.and_then(|node| self.obstacle(pod, node)) {
            return Some(obstacle.to_owned());
        }
        // Whether there is room does not depend on what is expected, and working that out takes time.
        match self.plan(pods, made, only.map(|node| node.name.as_str()), Mix::new()) {
            Ok(plan) => plan.waits.first().map(|wait| wait.reason.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// The slice of a pod, also of one that no injector has seen.
fn requested(pod: &Pod) -> Option<SliceName> {
    slice_of(pod).or_else(|| inject::slice_of(pod))
}

fn waiting_of(view: &ClusterView, pod: &Pod) -> Option<Waiting> {
    let slice_name = requested(pod)?;
    let gpus = view.nodes.iter().flat_map(|node| &node.gpus);
    let tables = gpus.filter_map(|gpu| gpu.offer.table.as_deref());
    let mut waiting = Waiting::new(TaskId(pod.uid()?), 0).wanting(slice_name.slice_request(tables));
    waiting.compute = slice_name.compute();
    waiting.devices = slice_name.devices();
    waiting.host = host_of(pod);
    waiting.gang = group_of(pod).map(|name| Gang { name, size: 1 });
    Some(waiting)
}

/// The group that kube-scheduler places as a whole (`GangScheduling` of Kubernetes 1.36) with this pod in it, as `NAMESPACE/NAME`.
pub(crate) fn group_of(pod: &Pod) -> Option<String> {
    let group = pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.as_ref()?;
    Some(format!("{}/{group}", pod.namespace().unwrap_or_default()))
}

/// The pods of a group that wait are placed together or not at all: a part of a group that has its nominations keeps others from the nodes,
/// and runs no earlier.
fn size_gangs(waiting: &mut [Waiting]) {
    let mut sizes: BTreeMap<String, u32> = BTreeMap::new();
    for gang in waiting.iter().filter_map(|each| each.gang.as_ref()) {
        *sizes.entry(gang.name.clone()).or_default() += 1;
    }
    for gang in waiting.iter_mut().filter_map(|each| each.gang.as_mut()) {
        gang.size = sizes[&gang.name];
    }
}

/// A label can be changed after the pod was created, and its claim cannot.
pub(crate) fn slice_of(pod: &Pod) -> Option<SliceName> {
    let labeled = || pod.labels().get(SLICE_LABEL)?.parse().ok();
    claim_of(pod).map(|reference| reference.slice).or_else(labeled)
}

/// Are nodes nominated for such a pod? Not for one that prefers some nodes to others: a nomination goes before all scores. Not for
/// instances of MIG: their devices exclude others.
fn is_packed(pod: &Pod, slice_name: &SliceName) -> bool {
    !is_instance(slice_name) && !has_preferences(pod)
}

const fn is_instance(slice_name: &SliceName) -> bool {
    matches!(slice_name, SliceName::Mig { .. })
}

/// Does the pod have more constraints than its selector, tolerations and requests?
fn has_preferences(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return true };
    let spreads = spec.topology_spread_constraints.as_ref().is_some_and(|all| !all.is_empty());
    let has_affinity = spec.affinity.as_ref().is_some_and(|given| *given != Affinity::default());
    spreads || has_affinity
}

/// Does the pod wait for nothing but its nomination?
#[must_use]
pub fn is_held(pod: &Pod) -> bool {
    let mut gates = gates(pod).peekable();
    gates.peek().is_some() && gates.all(|gate| gate == PACKING_GATE)
}

/// Is the gate there that the injector gives pods with slices?
pub(crate) fn has_gate(pod: &Pod) -> bool {
    gates(pod).any(|gate| gate == PACKING_GATE)
}

fn gates(pod: &Pod) -> impl Iterator<Item = &str> {
    let gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates).flatten();
    gates.map(|gate| gate.name.as_str())
}

fn may_be_nominated(pod: &Pod) -> bool {
    let is_placed = pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_some());
    slice_of(pod).is_some_and(|slice_name| is_packed(pod, &slice_name))
        && pod.metadata.deletion_timestamp.is_none()
        && gates(pod).all(|gate| gate == PACKING_GATE)
        && !is_placed
}

/// Its nominated node.
pub fn nominated_node(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref()
}

fn constraints(pod: &Pod) -> Constraints {
    let spec = pod.spec.as_ref();
    let selector = spec.and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    let tolerations = spec.and_then(|spec| spec.tolerations.as_ref());
    let node = nominated_node(pod).map(str::to_owned);
    let tolerations = serde_json::to_string(&tolerations).unwrap_or_default();
    (Reverse(preempt::priority(pod)), selector, tolerations, node)
}

fn tolerates(pod: &Pod, taints: &[Taint]) -> bool {
    let tolerations = || pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let keeps_away = |taint: &&Taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    taints.iter().filter(keeps_away).all(|taint| tolerations().any(|one| is_tolerated(taint, one)))
}

fn is_tolerated(taint: &Taint, by: &Toleration) -> bool {
    let is_key = by.key.as_deref().is_none_or(|key| key.is_empty() || key == taint.key);
    let is_effect = by.effect.as_deref().is_none_or(|effect| effect.is_empty() || effect == taint.effect);
    let is_value = by.operator.as_deref() == Some("Exists")
        || by.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    is_key && is_effect && is_value
}

fn free_host(node: &Node) -> Host {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.map_or(Host::UNCOUNTED, |amounts| Host {
        cpu_milli: amounts.get("cpu").map_or(u64::MAX, cpu_milli),
        memory_bytes: amounts.get("memory").map_or(u64::MAX, memory_bytes),
    })
}

/// The requests of its containers; the scheduler handles init containers and the like.
fn host_of(pod: &Pod) -> Host {
    let mut sum = Host { cpu_milli: 0, memory_bytes: 0 };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let requests = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    for amounts in requests {
        sum.cpu_milli = sum.cpu_milli.saturating_add(amounts.get("cpu").map_or(0, cpu_milli));
        sum.memory_bytes = sum.memory_bytes.saturating_add(amounts.get("memory").map_or(0, memory_bytes));
    }
    sum
}

/// `500m`, `2`, `0.5`; another form counts as 0.
fn cpu_milli(amount: &Quantity) -> u64 {
    match amount.0.strip_suffix('m') {
        Some(milli) => milli.parse().unwrap_or(0),
        None => amount.0.parse::<cantle_model::Milli>().map_or(0, |milli| u64::from(milli.0)),
    }
}

/// As [`cpu_milli`]. kube-scheduler counts the amounts itself: this is its advice.
fn memory_bytes(amount: &Quantity) -> u64 {
    bytes(amount).unwrap_or(0)
}

#[cfg(test)]
pub(crate) mod tests;
