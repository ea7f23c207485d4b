//! Which tasks may have pods now, and who has to stop for them, where projects have quotas. The decision is `sched`'s, as on
//! machines without Kubernetes; here the cluster is put into its words. Pure. docs/adr/0011 says why it is put so.

use std::collections::{BTreeMap, BTreeSet};

use cantle_agent::{decide, quotas};
use cantle_clearml::TaskRequest;
use cantle_clearml::quotas::{Fleet, WaitingTask};
use cantle_mig::GpuGeometry;
use cantle_model::{Amounts, Isolation, LeaseId, QueueSpec, QueueWant, Slice, TaskId};
use cantle_sched::{
    Eviction, GpuState, Held, Host, Node, Policy, Queue, Running, Start, State, Wait, Waiting,
};

use super::wants::{Room, Wants};
use crate::KubeError;
use crate::ask::{Ask, profile_of};
use crate::cluster::{Holding, View, ViewGpu, ViewNode};

/// The queue of pods that have been admitted and not yet got a place.
const ADMITTED: &str = "admitted";

/// A pod of a task of ours that is not over.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    pub(super) uid: String,
    pub(super) task: String,
    pub(super) queue: String,
    pub(super) wants: Wants,
    pub(super) room: Room,
    /// It was told to end.
    pub(super) is_ending: bool,
    /// The cluster's scheduler finds no place for it.
    pub(super) is_unschedulable: bool,
}

/// A task that may get a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidate {
    pub(super) queue: String,
    pub(super) wants: Wants,
    pub(super) request: TaskRequest,
    pub(super) told: WaitingTask,
}

/// What is to be done.
#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Tasks that may have a pod, in this order.
    pub(super) starts: Vec<(String, Room)>,
    pub(super) waits: Vec<Wait>,
    pub(super) evictions: Vec<Eviction>,
    /// UIDs of pods that wait for room that is gone.
    pub(super) stuck: Vec<String>,
}

/// What the engine is asked about.
pub(super) struct Asked<'a> {
    pub(super) view: &'a View,
    pub(super) fleet: &'a Fleet,
    pub(super) own: &'a [Own],
    pub(super) candidates: &'a [Candidate],
}

/// Decides.
///
/// # Errors
/// If a decision breaks a rule; nothing of it is carried out.
pub(super) fn plan(asked: &Asked<'_>, now_ms: i64) -> Result<Decided, KubeError> {
    let Asked { view, fleet, own, candidates } = asked;
    let (mut running, unseated) = running(view, own);
    let nodes = nodes(view, own, candidates);
    let (seats, unplaced) = seats(view, &nodes, &running, &unseated)?;
    running.extend(seats);
    let ending = own.iter().filter(|own| own.is_ending).map(|own| LeaseId(own.uid.clone()));
    let mut state = State::new(nodes, running, queues(view, candidates));
    quotas::enter(&mut state, fleet, &ending.collect());
    state.elsewhere.held.extend(unplaced.iter().map(|own| counted(own, fleet)));
    let policy = quotas::policy(&Policy { backfill: true, ..Policy::default() }, fleet);
    let decided = decide(&state, &policy, now_ms)?;
    let project = |start: &Start| {
        candidates
            .iter()
            .find(|each| each.told.task == start.task.0)
            .and_then(|each| each.told.project.clone())
    };
    let room = |start: &Start| Room { slices: start.slices.clone(), project: project(start) };
    Ok(Decided {
        starts: decided.starts.iter().map(|start| (start.task.0.clone(), room(start))).collect(),
        waits: decided.waits,
        evictions: decided.evictions,
        stuck: unplaced.iter().filter(|own| own.is_unschedulable).map(|own| own.uid.clone()).collect(),
    })
}

/// Who has something, ours and others; and those of ours that have no place yet.
fn running<'a>(view: &View, own: &'a [Own]) -> (Vec<Running>, Vec<&'a Own>) {
    let by_uid: BTreeMap<&str, &Own> = own.iter().map(|own| (own.uid.as_str(), own)).collect();
    let of_holding = |holding: &Holding| match by_uid.get(holding.pod.as_str()) {
        Some(own) => ours(own, &holding.node, holding.slices.clone()),
        // Not against any project, and not ours to stop.
        None => running_of(
            &holding.name,
            &holding.pod,
            "",
            &holding.node,
            holding.slices.clone(),
            &Wants::default(),
        ),
    };
    let mut running: Vec<Running> = view.holdings.iter().map(of_holding).collect();
    let placed: BTreeSet<&str> = view.holdings.iter().map(|holding| holding.pod.as_str()).collect();
    let (unseated, without): (Vec<&Own>, Vec<&Own>) = own
        .iter()
        .filter(|own| !placed.contains(own.uid.as_str()))
        .partition(|own| ask(view, &own.wants).is_some());
    running.extend(without.into_iter().map(|own| ours(own, "", Vec::new())));
    (running, unseated)
}

fn ours(own: &Own, node: &str, slices: Vec<Slice>) -> Running {
    let mut running = running_of(&own.task, &own.uid, &own.queue, node, slices, &own.wants);
    running.project.clone_from(&own.room.project);
    running
}

fn running_of(task: &str, pod: &str, queue: &str, node: &str, slices: Vec<Slice>, wants: &Wants) -> Running {
    let (task, queue, node) = (TaskId(task.to_owned()), queue.to_owned(), node.to_owned());
    let start = Start { task: task.clone(), queue, node, slices, host: Host::default() };
    let mut waiting = Waiting::new(task, 0);
    waiting.quota_milli = wants.quota_milli;
    waiting.preemptible = false;
    Running::of_start(&start, &waiting, LeaseId(pod.to_owned()), 0)
}

/// Places for those that have been admitted and wait for the cluster's scheduler, as the engine would choose them; it will
/// be told the real ones. And those for which there is none any more: somebody else has taken their room.
fn seats<'a>(
    view: &View,
    nodes: &[Node],
    running: &[Running],
    unseated: &[&'a Own],
) -> Result<(Vec<Running>, Vec<&'a Own>), KubeError> {
    let waiting = unseated.iter().map(|own| waiting(view, &own.task, &own.wants)).collect();
    let spec = QueueSpec { name: ADMITTED.to_owned(), want: QueueWant::Task };
    let state = State::new(nodes.to_vec(), running.to_vec(), vec![Queue::new(spec, waiting)]);
    let decided = decide(&state, &Policy { backfill: true, ..Policy::default() }, 0)?;
    let places: BTreeMap<&str, &Start> =
        decided.starts.iter().map(|start| (start.task.0.as_str(), start)).collect();
    let (mut seated, mut unplaced) = (Vec::new(), Vec::new());
    for own in unseated {
        match places.get(own.task.as_str()) {
            Some(start) => seated.push(ours(own, &start.node, start.slices.clone())),
            None => unplaced.push(*own),
        }
    }
    Ok((seated, unplaced))
}

/// A pod without a place counts for its project all the same: it may get one any moment.
fn counted(own: &Own, fleet: &Fleet) -> Held {
    let held = fleet.held.iter().find(|held| held.lease == own.uid);
    let milli = own.room.slices.iter().map(|slice| u64::from(slice.milli.0)).sum();
    let (cpu_milli, memory_bytes) = held.map_or((0, 0), |held| (held.cpu_milli, held.memory_bytes));
    Held {
        project: held.map_or_else(|| own.room.project.clone(), |held| held.project.clone()),
        amounts: Amounts([own.wants.quota_milli.unwrap_or(milli), cpu_milli, memory_bytes]),
        preemptible: held.is_some_and(|held| held.preemptible),
        stopping: own.is_ending,
    }
}

/// Queues as the engine knows them. Those without a GPU stand apart: there a task that names none would mean a whole one.
fn queues(view: &View, candidates: &[Candidate]) -> Vec<Queue> {
    let mut queues: Vec<Queue> = Vec::new();
    for candidate in candidates {
        let Candidate { queue, wants, request, told } = candidate;
        let mut waiting = waiting(view, &told.task, wants);
        quotas::enter_waiting(&mut waiting, told, Some(request));
        let (name, want) = match ask(view, wants) {
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

fn waiting(view: &View, task: &str, wants: &Wants) -> Waiting {
    let mut waiting = Waiting::new(TaskId(task.to_owned()), 0);
    waiting.quota_milli = wants.quota_milli;
    if let Some(ask) = ask(view, wants) {
        let tables = gpus(view).filter_map(|(_, gpu)| gpu.table.as_deref());
        waiting.request = Some(ask.request(tables));
        waiting.devices = ask.devices();
        waiting.models = models(view, wants);
        let is_instance = matches!(ask, Ask::Mig { .. });
        // A claim on a share is never served by an instance.
        waiting.isolation = if is_instance || view.is_classic { Isolation::Any } else { Isolation::Shared };
    }
    waiting
}

/// What the engine is to find a place for. What NVIDIA's plugin alone gives out and nobody can see here (static MIG instances, time
/// slices) is for the cluster's scheduler to find.
fn ask<'a>(view: &View, wants: &'a Wants) -> Option<&'a Ask> {
    let given_here = match wants.ask.as_ref()? {
        Ask::Mig { profile } => {
            profile_of(profile, gpus(view).filter_map(|(_, gpu)| gpu.table.as_deref())).is_some()
        }
        _ if wants.by_resource => view.gpu_is_claimed || gpus(view).any(|(_, gpu)| gpu.by_plugin),
        _ => true,
    };
    wants.ask.as_ref().filter(|_| given_here)
}

fn gpus(view: &View) -> impl Iterator<Item = (&ViewNode, &ViewGpu)> {
    view.nodes.iter().flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)))
}

/// Kinds of GPU that will do; none if all will. A selector of nodes is one of kinds here: which of them is meant is mostly
/// what it says.
fn models(view: &View, wants: &Wants) -> Vec<String> {
    let Wants { selector, by_resource, .. } = wants;
    let will_do = |node: &ViewNode, gpu: &ViewGpu| {
        let selected = selector.iter().all(|(key, value)| node.labels.get(key) == Some(value));
        let given = if *by_resource { gpu.by_plugin || view.gpu_is_claimed } else { !gpu.by_plugin };
        selected && given
    };
    if gpus(view).all(|(node, gpu)| will_do(node, gpu)) {
        return Vec::new();
    }
    let good = gpus(view).filter(|(node, gpu)| will_do(node, gpu)).map(|(_, gpu)| gpu.gpu.model.clone());
    let good: BTreeSet<String> = good.collect();
    if good.is_empty() {
        let labels = selector.iter().map(|(key, value)| format!(" on a node with {key}={value}"));
        return vec![format!("any{}", labels.collect::<String>())];
    }
    good.into_iter().collect()
}

/// The cluster's GPUs. One that can be cut either way is what it is used as; while nobody uses it, it is for shares, and the
/// last of each node for instances as long as somebody waits for one.
fn nodes(view: &View, own: &[Own], candidates: &[Candidate]) -> Vec<Node> {
    let wants = own.iter().map(|own| &own.wants).chain(candidates.iter().map(|each| &each.wants));
    let want_instances = wants.filter(|wants| matches!(wants.ask, Some(Ask::Mig { .. }))).count() > 0;
    let held: BTreeMap<&str, Vec<(&Holding, &Slice)>> = by_gpu(view);
    let ours: BTreeSet<&str> = own.iter().map(|own| own.uid.as_str()).collect();
    let node = |node: &ViewNode| {
        let idle = |gpu: &&ViewGpu| !held.contains_key(gpu.gpu.uuid.0.as_str());
        let either = |gpu: &&ViewGpu| gpu.shares && gpu.table.is_some();
        let spare = node.gpus.iter().filter(idle).rfind(either).filter(|_| want_instances);
        let state = |gpu: &ViewGpu| {
            let slices = held.get(gpu.gpu.uuid.0.as_str()).map(Vec::as_slice).unwrap_or_default();
            let cut = slices.iter().any(|(_, slice)| slice.mig.is_some());
            let is_spare = spare.is_some_and(|spare| spare.gpu.uuid == gpu.gpu.uuid);
            let mut state = GpuState::new(gpu.gpu.clone());
            let table = gpu.table.as_ref().filter(|_| cut || is_spare || !gpu.shares);
            state.mig = table.map(|table| GpuGeometry { table: table.clone(), instances: Vec::new() });
            state.gpu.mig = state.mig.is_some() || !gpu.shares;
            // All of it is somebody else's: no part of what projects share.
            let foreign = slices.iter().filter(|(holding, _)| !ours.contains(holding.pod.as_str()));
            let foreign_milli: u32 = foreign.map(|(_, slice)| slice.milli.0).sum();
            state.usable = node.is_open && !gpu.is_lost && foreign_milli < 1000;
            state
        };
        Node::new(&node.name, node.gpus.iter().map(state).collect())
    };
    view.nodes.iter().map(node).collect()
}

fn by_gpu(view: &View) -> BTreeMap<&str, Vec<(&Holding, &Slice)>> {
    let mut held: BTreeMap<&str, Vec<(&Holding, &Slice)>> = BTreeMap::new();
    for holding in &view.holdings {
        for slice in &holding.slices {
            held.entry(&slice.gpu.0).or_default().push((holding, slice));
        }
    }
    held
}

/// What the task of a pod is told when its room is gone.
pub(super) const GONE: &str =
    "its room in the cluster is gone, and its project may have others stopped for it";

/// Does the reason change only because somebody ahead has changed?
pub(super) const fn is_behind(wait: &Wait) -> bool {
    matches!(wait.reason, cantle_sched::Reason::Behind { .. })
}

#[cfg(test)]
mod tests;
