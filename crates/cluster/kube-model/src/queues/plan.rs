//! Decides which tasks may have pods now, and which tasks have to stop for them, where projects have quotas. The scheduler
//! in `sched` decides, as on machines without Kubernetes. This module describes the cluster to it; docs/adr/0011 explains
//! how. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::TaskRequest;
use cantle_clearml::quotas::{Fleet, WaitingTask};
use cantle_decide::{BrokenPlan, Offer, SnapshotBuilder, decide, describe_waiting, policy_under};
use cantle_model::{Amounts, Isolation, LeaseId, QueueSpec, QueueWant, Slice, TaskId, projects_above};

use cantle_sched::{Eviction, Held, Policy, PoolMilli, Queue, Reason, Running, Start, Wait, Waiting};

use super::pod_request::{AdmittedSlices, PodRequest};
use crate::cluster::{ClusterView, PodSlices, ViewGpu, ViewNode};
use crate::{SliceName, profile_of};

/// The queue of pods that have been admitted and not yet got a place.
const ADMITTED: &str = "admitted";

/// A pod of one of our tasks that has not ended.
#[derive(Clone, Debug, Default)]
pub struct OwnPod {
    /// Its UID.
    pub uid: String,
    /// The task.
    pub task: String,
    /// Name of the queue that the task came from.
    pub queue: String,
    /// Its resources, and its count under quotas.
    pub request: PodRequest,
    /// The placement with which it was admitted.
    pub admitted: AdmittedSlices,
    /// It was deleted and has not ended.
    pub is_ending: bool,
    /// The cluster's scheduler finds no place for it.
    pub is_unschedulable: bool,
}

/// A task that may get a pod.
#[derive(Clone, Debug, Default)]
pub struct TaskCandidate {
    /// Name of its queue.
    pub queue: String,
    /// The resources of its future pod, and its count under quotas.
    pub request: PodRequest,
    /// The task's own request.
    pub own_request: TaskRequest,
    /// The server's data about it.
    pub waiting: WaitingTask,
}

/// The decision.
#[derive(Debug, Default)]
pub struct ClusterDecision {
    /// Tasks that may have a pod, in this order.
    pub starts: Vec<(String, AdmittedSlices)>,
    /// Why the others wait.
    pub waits: Vec<Wait>,
    /// The tasks that have to stop.
    pub evictions: Vec<Eviction>,
    /// UIDs of pods whose admitted slices another pod has taken.
    pub stuck: Vec<String>,
}

/// The input of the scheduler.
pub struct ClusterQuestion<'a> {
    /// The cluster.
    pub view: &'a ClusterView,
    /// Quotas.
    pub fleet: &'a Fleet,
    /// Our pods that are not over.
    pub own: &'a [OwnPod],
    /// Tasks that may get a pod.
    pub candidates: &'a [TaskCandidate],
}

/// Decides.
///
/// # Errors
/// If a decision breaks a rule; nothing of it is carried out.
pub fn plan(asked: &ClusterQuestion<'_>, now_ms: i64) -> Result<ClusterDecision, BrokenPlan> {
    let ClusterQuestion { view, fleet, own, candidates } = asked;
    let (candidates, held) = without_pools(candidates, fleet);
    let candidates = &candidates;
    let (running, waiting_pods) = running(view, own);
    let world = nodes(view, own, candidates).running(running);
    let (placed, unplaced) = placed(view, &world, &waiting_pods)?;
    let ending = own.iter().filter(|own| own.is_ending).map(|own| LeaseId(own.uid.clone()));
    let snapshot = world
        .running(placed)
        .queues(queues(view, candidates))
        .held_elsewhere(unplaced.iter().map(|own| counted(own, fleet)))
        .under_quotas(fleet, ending.collect())
        .build();
    let policy = policy_under(&Policy { backfill: true, ..Policy::default() }, fleet);
    let decided = decide(&snapshot, &policy, now_ms)?;
    let project = |start: &Start| {
        candidates
            .iter()
            .find(|each| each.waiting.task == start.task.0)
            .and_then(|each| each.waiting.project.clone())
    };
    let room = |start: &Start| AdmittedSlices { slices: start.slices.clone(), project: project(start) };
    Ok(ClusterDecision {
        starts: decided.starts.iter().map(|start| (start.task.0.clone(), room(start))).collect(),
        waits: decided.waits.into_iter().chain(held).collect(),
        evictions: decided.evictions,
        stuck: unplaced.iter().filter(|own| own.is_unschedulable).map(|own| own.uid.clone()).collect(),
    })
}

/// The tasks whose projects' quotas name no pools, and why the others wait: the cluster's scheduler chooses the GPU, and it
/// knows no pools.
fn without_pools(candidates: &[TaskCandidate], fleet: &Fleet) -> (Vec<TaskCandidate>, Vec<Wait>) {
    let names_pools = |project: &str| {
        let mut own = fleet.projects.iter().filter(|view| view.project == project);
        own.any(|view| view.quota.named_pools().next().is_some())
    };
    let (mut placed, mut held) = (Vec::new(), Vec::new());
    for candidate in candidates {
        let PodRequest { gpu, quota_milli, .. } = &candidate.request;
        let takes_gpus = gpu.is_some() || quota_milli.is_some_and(|milli| milli > 0);
        let own = candidate.waiting.project.as_deref().filter(|_| takes_gpus);
        let mut path = own.into_iter().flat_map(|own| std::iter::once(own).chain(projects_above(own)));
        match path.find(|project| names_pools(project)) {
            None => placed.push(candidate.clone()),
            Some(project) => held.push(Wait {
                task: TaskId(candidate.waiting.task.clone()),
                queue: candidate.queue.clone(),
                reason: Reason::PoolsUnknown { project: project.to_owned() },
            }),
        }
    }
    (placed, held)
}

/// The pods that hold GPUs, of this controller and of others; and the pods of this controller that have no node yet.
fn running<'a>(view: &ClusterView, own: &'a [OwnPod]) -> (Vec<Running>, Vec<&'a OwnPod>) {
    let by_uid: BTreeMap<&str, &OwnPod> = own.iter().map(|own| (own.uid.as_str(), own)).collect();
    let of_holding = |holding: &PodSlices| match by_uid.get(holding.pod.as_str()) {
        Some(own) => ours(own, &holding.node, holding.slices.clone()),
        // It counts against no project, and this controller may not stop it.
        None => running_of(
            &holding.name,
            &holding.pod,
            "",
            &holding.node,
            holding.slices.clone(),
            &PodRequest::default(),
        ),
    };
    let mut running: Vec<Running> = view.holdings.iter().map(of_holding).collect();
    let placed: BTreeSet<&str> = view.holdings.iter().map(|holding| holding.pod.as_str()).collect();
    let (waiting_pods, without): (Vec<&OwnPod>, Vec<&OwnPod>) = own
        .iter()
        .filter(|own| !placed.contains(own.uid.as_str()))
        .partition(|own| placed_here(view, &own.request).is_some());
    running.extend(without.into_iter().map(|own| ours(own, "", Vec::new())));
    (running, waiting_pods)
}

fn ours(own: &OwnPod, node: &str, slices: Vec<Slice>) -> Running {
    let mut running = running_of(&own.task, &own.uid, &own.queue, node, slices, &own.request);
    running.project.clone_from(&own.admitted.project);
    running
}

fn running_of(
    task: &str,
    pod: &str,
    queue: &str,
    node: &str,
    slices: Vec<Slice>,
    request: &PodRequest,
) -> Running {
    let mut running = Running::new(LeaseId(pod.to_owned()), TaskId(task.to_owned()), node, slices);
    running.queue = Some(queue.to_owned());
    running.quota_milli = request.quota_milli;
    running.preemptible = false;
    running
}

/// Places for those that have been admitted and wait for the cluster's scheduler, as the engine would choose them; it will
/// get the real ones. And those for which there is none any more: another pod has taken their slices.
fn placed<'a>(
    view: &ClusterView,
    world: &SnapshotBuilder,
    waiting_pods: &[&'a OwnPod],
) -> Result<(Vec<Running>, Vec<&'a OwnPod>), BrokenPlan> {
    let waiting = waiting_pods.iter().map(|own| waiting(view, &own.task, &own.request)).collect();
    let spec = QueueSpec { name: ADMITTED.to_owned(), want: QueueWant::Task };
    let snapshot = world.clone().queue(spec, waiting).build();
    let decided = decide(&snapshot, &Policy { backfill: true, ..Policy::default() }, 0)?;
    let places: BTreeMap<&str, &Start> =
        decided.starts.iter().map(|start| (start.task.0.as_str(), start)).collect();
    let (mut placed, mut unplaced) = (Vec::new(), Vec::new());
    for own in waiting_pods {
        match places.get(own.task.as_str()) {
            Some(start) => placed.push(ours(own, &start.node, start.slices.clone())),
            None => unplaced.push(*own),
        }
    }
    Ok((placed, unplaced))
}

/// A pod without a place still counts for its project: it may get one any moment.
fn counted(own: &OwnPod, fleet: &Fleet) -> Held {
    let held = fleet.held.iter().find(|held| held.lease == own.uid);
    let milli = own.admitted.slices.iter().map(|slice| u64::from(slice.milli.0)).sum();
    let (cpu_milli, memory_bytes) = held.map_or((0, 0), |held| (held.cpu_milli, held.memory_bytes));
    Held {
        project: held.map_or_else(|| own.admitted.project.clone(), |held| held.project.clone()),
        amounts: Amounts([own.request.quota_milli.unwrap_or(milli), cpu_milli, memory_bytes]),
        pool_milli: PoolMilli::new(),
        preemptible: held.is_some_and(|held| held.preemptible),
        stopping: own.is_ending,
    }
}

/// Queues as the engine knows them. Pods without a GPU are separate: there a task that names none would mean a whole one.
fn queues(view: &ClusterView, candidates: &[TaskCandidate]) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for candidate in candidates {
        let TaskCandidate { queue, request, own_request, waiting: known } = candidate;
        let mut waiting = waiting(view, &known.task, request);
        describe_waiting(&mut waiting, known, Some(own_request.terms()));
        let (name, want) = match placed_here(view, request) {
            Some(_) => (queue.clone(), QueueWant::Task),
            None => (format!("{queue} (without a GPU)"), QueueWant::None),
        };
        match queues.iter_mut().find(|known| known.spec.name == name) {
            Some(known) => known.waiting.push(waiting),
            None => queues.push(Queue::new(QueueSpec { name, want }, vec![waiting])),
        }
    }
    queues
}

fn waiting(view: &ClusterView, task: &str, request: &PodRequest) -> Waiting {
    let mut waiting = Waiting::new(TaskId(task.to_owned()), 0);
    waiting.quota_milli = request.quota_milli;
    if let Some(gpu) = placed_here(view, request) {
        let tables = gpus(view).filter_map(|(_, gpu)| gpu.offer.table.as_deref());
        waiting.request = Some(gpu.request(tables));
        waiting.devices = gpu.devices();
        waiting.models = models(view, request);
        let is_instance = matches!(gpu, SliceName::Mig { .. });
        // A claim on a share is never served by an instance.
        waiting.isolation = if is_instance || view.is_classic { Isolation::Any } else { Isolation::Shared };
    }
    waiting
}

/// A request for which the scheduler finds a place. The cluster's scheduler finds resources that only NVIDIA's plugin knows
/// (static MIG instances, time slices).
fn placed_here<'a>(view: &ClusterView, request: &'a PodRequest) -> Option<&'a SliceName> {
    let given_here = match request.gpu.as_ref()? {
        SliceName::Mig { profile } => {
            profile_of(profile, gpus(view).filter_map(|(_, gpu)| gpu.offer.table.as_deref())).is_some()
        }
        _ if request.by_resource => view.gpu_is_claimed || gpus(view).any(|(_, gpu)| gpu.by_plugin),
        _ => true,
    };
    request.gpu.as_ref().filter(|_| given_here)
}

fn gpus(view: &ClusterView) -> impl Iterator<Item = (&ViewNode, &ViewGpu)> {
    view.nodes.iter().flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)))
}

/// Kinds of GPU that will do; none if all will. A selector of nodes is one of kinds here: it usually names the intended
/// one.
fn models(view: &ClusterView, request: &PodRequest) -> Vec<String> {
    let PodRequest { selector, by_resource, .. } = request;
    let will_do = |node: &ViewNode, gpu: &ViewGpu| {
        let selected = selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let given = if *by_resource { gpu.by_plugin || view.gpu_is_claimed } else { !gpu.by_plugin };
        selected && given
    };
    if gpus(view).all(|(node, gpu)| will_do(node, gpu)) {
        return Vec::new();
    }
    let good =
        gpus(view).filter(|(node, gpu)| will_do(node, gpu)).map(|(_, gpu)| gpu.offer.gpu.model.clone());
    let good: BTreeSet<String> = good.collect();
    if good.is_empty() {
        let labels = selector.iter().map(|(key, value)| format!(" on a node with {key}={value}"));
        return vec![format!("any{}", labels.collect::<String>())];
    }
    good.into_iter().collect()
}

/// The cluster's GPUs. A GPU that can serve both kinds counts as its present use. An unused GPU is for shares, and the last
/// one of each node is for instances as long as a task waits for one.
fn nodes(view: &ClusterView, own: &[OwnPod], candidates: &[TaskCandidate]) -> SnapshotBuilder {
    let mut requests = own.iter().map(|own| &own.request).chain(candidates.iter().map(|each| &each.request));
    let want_instances = requests.any(|request| matches!(request.gpu, Some(SliceName::Mig { .. })));
    let held: BTreeMap<&str, Vec<(&PodSlices, &Slice)>> = by_gpu(view);
    let ours: BTreeSet<&str> = own.iter().map(|own| own.uid.as_str()).collect();
    let offers = |node: &ViewNode| -> Vec<Offer> {
        let idle = |gpu: &&ViewGpu| !held.contains_key(gpu.offer.gpu.uuid.0.as_str());
        let either = |gpu: &&ViewGpu| gpu.offer.has_shares() && gpu.offer.has_instances();
        let spare = node.gpus.iter().filter(idle).rfind(either).filter(|_| want_instances);
        let offer = |ViewGpu { offer, .. }: &ViewGpu| {
            let slices = held.get(offer.gpu.uuid.0.as_str()).map(Vec::as_slice).unwrap_or_default();
            let cut = slices.iter().any(|(_, slice)| slice.mig.is_some());
            let is_spare = spare.is_some_and(|spare| spare.offer.gpu.uuid == offer.gpu.uuid);
            // All of it belongs to another pod: no part of what projects share.
            let foreign = slices.iter().filter(|(holding, _)| !ours.contains(holding.pod.as_str()));
            let foreign_milli: u32 = foreign.map(|(_, slice)| slice.milli.0).sum();
            let in_mig = !offer.has_shares() || offer.has_instances() && (cut || is_spare);
            let closed = !node.is_open || offer.closed || foreign_milli >= 1000;
            Offer { closed, ..offer.clone().in_mode(in_mig) }
        };
        node.gpus.iter().map(offer).collect()
    };
    view.nodes.iter().fold(SnapshotBuilder::default(), |world, node| world.node(&node.name, offers(node)))
}

fn by_gpu(view: &ClusterView) -> BTreeMap<&str, Vec<(&PodSlices, &Slice)>> {
    let mut held: BTreeMap<&str, Vec<(&PodSlices, &Slice)>> = BTreeMap::new();
    for holding in &view.holdings {
        for slice in &holding.slices {
            held.entry(&slice.gpu.0).or_default().push((holding, slice));
        }
    }
    held
}

/// The reason why a task goes back to its queue when another pod has taken its slices.
pub const GONE: &str = "its room in the cluster is gone, and its project may preempt other tasks";

/// Does the reason change only because a task ahead has changed?
pub const fn is_behind(wait: &Wait) -> bool {
    matches!(wait.reason, cantle_sched::Reason::Behind { .. })
}

#[cfg(test)]
mod tests;
