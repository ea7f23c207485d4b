//! Checks that a plan takes nothing twice and gives each task what it requested. It is written independently of the
//! planner: the two share only the model, so that one mistake is not made in both.

pub(crate) mod instance;

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{GpuRequest, GpuUuid, Isolation, LeaseId, Milli, QueueWant, Slice, TaskId};

use crate::audit::instance::is_as_requested;
use crate::{
    GpuState, Host, Node, Plan, Project, Queue, RESOURCES, Resource, Running, Snapshot, Start, Waiting,
};

/// The fault of a plan. Any one of them forbids to execute it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// More memory than a GPU has.
    #[error("GPU {gpu}: limits and foreign use add up to {bytes} bytes, it has {memory_bytes}")]
    OverMemory {
        /// The GPU.
        gpu: GpuUuid,
        /// Sum of limits and foreign use, in bytes.
        bytes: u64,
        /// Its memory, in bytes.
        memory_bytes: u64,
    },
    /// More compute time than there is.
    #[error("GPU {gpu}: {milli} of its compute time would be promised")]
    OverCompute {
        /// The GPU.
        gpu: GpuUuid,
        /// Sum of the promises.
        milli: Milli,
    },
    /// MIG instances that overlap, or more of a profile than a GPU can have.
    #[error("GPU {gpu}: its MIG instances cannot exist together")]
    Instances {
        /// The GPU.
        gpu: GpuUuid,
    },
    /// More tasks at once than may run.
    #[error("{tasks} tasks at once, {most} may run")]
    TooMany {
        /// Tasks that would run.
        tasks: usize,
        /// Tasks that may.
        most: usize,
    },
    /// More CPU or memory than a host has.
    #[error("node {node}: more CPU or memory allocated than it has")]
    OverHost {
        /// The node.
        node: String,
    },
    /// A slice of a GPU that is not on the node, or not usable, or a share of one in MIG mode.
    #[error("task {task}: GPU {gpu} cannot be used on node {node}")]
    BadGpu {
        /// The task.
        task: TaskId,
        /// The GPU.
        gpu: GpuUuid,
        /// The node.
        node: String,
    },
    /// Two slices of one GPU for one task.
    #[error("task {task}: two slices of GPU {gpu}")]
    TwoSlices {
        /// The task.
        task: TaskId,
        /// The GPU.
        gpu: GpuUuid,
    },
    /// Not what was requested.
    #[error("task {task}: gets {got} slices that are not what its queue {queue} gives")]
    NotAsAsked {
        /// The task.
        task: TaskId,
        /// The queue.
        queue: String,
        /// Number of slices given.
        got: usize,
    },
    /// Started although it does not wait in that queue, or already runs, or is started twice.
    #[error("task {task}: not waiting in queue {queue}, or started twice")]
    NotWaiting {
        /// The task.
        task: TaskId,
        /// The queue.
        queue: String,
    },
    /// Asked to stop although it may not be, or for a task that does not wait.
    #[error("task {task}: must not be stopped for task {for_task}")]
    BadEviction {
        /// The task to stop.
        task: TaskId,
        /// The task that it would stop for.
        for_task: TaskId,
    },
    /// More than a project's limit.
    #[error("project {project}: over its limit of {limit} ({resource:?}) with {held}")]
    OverLimit {
        /// The project.
        project: String,
        /// Of what.
        resource: Resource,
        /// The limit.
        limit: u64,
        /// The amount that it would hold.
        held: u64,
    },
    /// More than a project's limit of a pool.
    #[error("project {project}: over its limit of {limit} of pool {pool} with {held}")]
    OverPool {
        /// The project.
        project: String,
        /// The pool.
        pool: String,
        /// The limit, in thousandths of a GPU.
        limit: u64,
        /// The amount that it would hold.
        held: u64,
    },
    /// Some of a gang are started and others not.
    #[error("gang {gang}: {started} of {size} tasks started")]
    SplitGang {
        /// The gang.
        gang: String,
        /// Tasks started, and those that run.
        started: usize,
        /// Tasks of the gang.
        size: u32,
    },
    /// Neither started nor given a reason to wait.
    #[error("task {task}: forgotten")]
    Forgotten {
        /// The task.
        task: TaskId,
    },
}

/// All violations of `plan` against `state`; empty means it may be executed.
#[must_use]
pub fn audit(state: &Snapshot, plan: &Plan) -> Vec<Violation> {
    let mut violations = Vec::new();
    let found = &PlanParts::new(state, plan);
    tasks(state, plan, found, &mut violations);
    at_once(state, plan, &mut violations);
    for start in &plan.starts {
        request(found, start, &mut violations);
    }
    evictions(state, plan, &mut violations);
    for project in &state.projects {
        limits(state, plan, found, project, &mut violations);
    }
    gangs(state, plan, found, &mut violations);
    for (name, starts) in &found.starts {
        if let Some(node) = found.nodes.get(name) {
            capacity(found, starts, node, &mut violations);
        }
    }
    violations
}

/// The objects that the parts of a plan refer to by name, found in one pass.
struct PlanParts<'a> {
    nodes: BTreeMap<&'a str, &'a Node>,
    /// The waiting tasks that the plan starts, by queue and id.
    waiting: BTreeMap<(&'a str, &'a TaskId), (&'a Queue, &'a Waiting)>,
    /// Running tasks by node.
    running: BTreeMap<&'a str, Vec<&'a Running>>,
    /// Starts by node.
    starts: BTreeMap<&'a str, Vec<&'a Start>>,
}

impl<'a> PlanParts<'a> {
    fn new(state: &'a Snapshot, plan: &'a Plan) -> Self {
        let mut found = Self {
            nodes: state.nodes.iter().map(|node| (node.name.as_str(), node)).collect(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            starts: BTreeMap::new(),
        };
        for start in &plan.starts {
            found.starts.entry(&start.node).or_default().push(start);
        }
        for running in state.running.iter().filter(|running| found.starts.contains_key(running.node.as_str()))
        {
            found.running.entry(&running.node).or_default().push(running);
        }
        let started: BTreeSet<&TaskId> = plan.starts.iter().map(|start| &start.task).collect();
        for queue in &state.queues {
            for waiting in queue.waiting.iter().filter(|waiting| started.contains(&waiting.task)) {
                let key = (queue.spec.name.as_str(), &waiting.task);
                found.waiting.entry(key).or_insert((queue, waiting));
            }
        }
        found
    }

    fn running_on(&self, node: &Node) -> impl Iterator<Item = &'a Running> {
        self.running.get(node.name.as_str()).into_iter().flatten().copied()
    }

    fn waiting(&self, start: &Start) -> Option<(&'a Queue, &'a Waiting)> {
        self.waiting.get(&(start.queue.as_str(), &start.task)).copied()
    }
}

fn tasks(state: &Snapshot, plan: &Plan, found: &PlanParts<'_>, violations: &mut Vec<Violation>) {
    let running: BTreeSet<&TaskId> = state.running.iter().map(|running| &running.task).collect();
    let mut started = BTreeSet::new();
    for start in &plan.starts {
        let first = started.insert(&start.task);
        if !first || running.contains(&start.task) || found.waiting(start).is_none() {
            violations.push(Violation::NotWaiting { task: start.task.clone(), queue: start.queue.clone() });
        }
    }
    let waits: BTreeSet<&TaskId> = plan.waits.iter().map(|wait| &wait.task).collect();
    for task in state.queues.iter().flat_map(|queue| &queue.waiting).map(|waiting| &waiting.task) {
        if started.contains(task) == waits.contains(task) {
            violations.push(Violation::Forgotten { task: task.clone() });
        }
    }
}

fn at_once(state: &Snapshot, plan: &Plan, violations: &mut Vec<Violation>) {
    let tasks = state.running.len() + plan.starts.len();
    if let Some(most) = state.at_once.filter(|most| !plan.starts.is_empty() && tasks > *most) {
        violations.push(Violation::TooMany { tasks, most });
    }
}

fn evictions(state: &Snapshot, plan: &Plan, violations: &mut Vec<Violation>) {
    let running: BTreeMap<&LeaseId, &Running> =
        state.running.iter().rev().map(|running| (&running.lease, running)).collect();
    let waits: BTreeSet<&TaskId> = plan.waits.iter().map(|wait| &wait.task).collect();
    let mut stopped: BTreeMap<&LeaseId, usize> = BTreeMap::new();
    plan.evictions.iter().for_each(|eviction| *stopped.entry(&eviction.lease).or_default() += 1);
    for eviction in &plan.evictions {
        let may_stop = running.get(&eviction.lease).is_some_and(|running| {
            running.task == eviction.task && running.preemptible && running.stopping.is_none()
        });
        let waits = waits.contains(&eviction.for_task);
        let twice = stopped[&eviction.lease] > 1;
        if !may_stop || !waits || twice {
            let (task, for_task) = (eviction.task.clone(), eviction.for_task.clone());
            violations.push(Violation::BadEviction { task, for_task });
        }
    }
}

/// A limit that the plan's own starts break; what ran before a limit was lowered is not the plan's fault.
fn limits(
    state: &Snapshot,
    plan: &Plan,
    found: &PlanParts<'_>,
    project: &Project,
    violations: &mut Vec<Violation>,
) {
    let belongs = |of: Option<&str>| {
        let mut at = of;
        // A path is never longer than the number of projects, even if it is a circle.
        for _ in 0..=state.projects.len() {
            if at == Some(project.name.as_str()) {
                return true;
            }
            let known = state.projects.iter().find(|known| Some(known.name.as_str()) == at);
            at = known.and_then(|known| known.parent.as_deref());
        }
        false
    };
    let gpu = |slices: &[Slice]| slices.iter().map(|slice| u64::from(slice.milli.0)).sum::<u64>();
    let running = state.running.iter().filter(|running| belongs(running.project.as_deref()));
    let started = plan.starts.iter().filter_map(|start| Some((start, found.waiting(start)?.1)));
    let started = started.filter(|(_, task)| belongs(task.project.as_deref()));
    let (mut held, mut added) = ([0u64; 3], [0u64; 3]);
    let parts = |slices: &[Slice], host: Host, quota_milli: Option<u64>| {
        [quota_milli.unwrap_or_else(|| gpu(slices)), host.cpu_milli, host.memory_bytes]
    };
    for part in running.map(|running| parts(&running.slices, running.host, running.quota_milli)) {
        (0..3).for_each(|at| held[at] += part[at]);
    }
    for elsewhere in state.elsewhere.held.iter().filter(|held| belongs(held.project.as_deref())) {
        (0..3).for_each(|at| held[at] += elsewhere.amounts.0[at]);
    }
    for part in started.map(|(start, task)| parts(&start.slices, start.host, task.quota_milli)) {
        (0..3).for_each(|at| added[at] += part[at]);
    }
    for (at, resource) in RESOURCES.into_iter().enumerate() {
        let Some(limit) = project.quotas[at].limit else { continue };
        let held = held[at] + added[at];
        if added[at] > 0 && held > limit {
            violations.push(Violation::OverLimit { project: project.name.clone(), resource, limit, held });
        }
    }
    for (pool, quota) in &project.by_pool {
        let Some(limit) = quota.limit else { continue };
        let of = |node: &str, slices: &[Slice]| pool_milli(state, pool, node, slices);
        let running = state.running.iter().filter(|running| belongs(running.project.as_deref()));
        let here: u64 = running.map(|running| of(&running.node, &running.slices)).sum();
        let others = state.elsewhere.held.iter().filter(|held| belongs(held.project.as_deref()));
        let others: u64 = others.filter_map(|held| held.pool_milli.get(pool)).sum();
        let mine =
            |start: &&Start| found.waiting(start).is_some_and(|(_, task)| belongs(task.project.as_deref()));
        let added: u64 = plan.starts.iter().filter(mine).map(|start| of(&start.node, &start.slices)).sum();
        let held = here + others + added;
        if added > 0 && held > limit {
            let (project, pool) = (project.name.clone(), pool.clone());
            violations.push(Violation::OverPool { project, pool, limit, held });
        }
    }
}

/// The thousandths that slices on a node take of a pool.
fn pool_milli(state: &Snapshot, pool: &String, node: &str, slices: &[Slice]) -> u64 {
    let gpus = || state.nodes.iter().filter(|known| known.name == node).flat_map(|node| &node.gpus);
    let is_in = |slice: &&Slice| gpus().any(|gpu| gpu.gpu.uuid == slice.gpu && gpu.pools.contains(pool));
    slices.iter().filter(is_in).map(|slice| u64::from(slice.milli.0)).sum()
}

/// Members that run already count.
fn gangs(state: &Snapshot, plan: &Plan, found: &PlanParts<'_>, violations: &mut Vec<Violation>) {
    let mut started: BTreeMap<&str, (usize, u32)> = BTreeMap::new();
    for (_, task) in plan.starts.iter().filter_map(|start| found.waiting(start)) {
        if let Some(gang) = &task.gang {
            started.entry(&gang.name).or_insert((0, gang.size)).0 += 1;
        }
    }
    let running = state.running.iter().filter(|running| running.stopping.is_none());
    for gang in running.filter_map(|running| running.gang.as_ref()) {
        started.entry(&gang.name).and_modify(|(count, _)| *count += 1);
    }
    for (gang, (started, size)) in started {
        if started < size as usize {
            violations.push(Violation::SplitGang { gang: gang.to_owned(), started, size });
        }
    }
}

fn request(found: &PlanParts<'_>, start: &Start, violations: &mut Vec<Violation>) {
    let gpu_of = |slice: &Slice| {
        let node = found.nodes.get(start.node.as_str())?;
        node.gpus
            .iter()
            .find(|gpu| gpu.gpu.uuid == slice.gpu && gpu.usable && gpu.gpu.mig == slice.mig.is_some())
    };
    let mut seen = BTreeSet::new();
    for slice in &start.slices {
        let (task, gpu) = (start.task.clone(), slice.gpu.clone());
        if gpu_of(slice).is_none() {
            violations.push(Violation::BadGpu { task, gpu, node: start.node.clone() });
        } else if !seen.insert(&slice.gpu) {
            violations.push(Violation::TwoSlices { task, gpu });
        }
    }
    let Some((queue, waiting)) = found.waiting(start) else { return };
    let as_asked = count_as_asked(queue, waiting, start.slices.len())
        && start
            .slices
            .iter()
            .all(|slice| gpu_of(slice).is_none_or(|gpu| as_asked(queue, waiting, slice, gpu)));
    if !as_asked {
        let (task, queue) = (start.task.clone(), start.queue.clone());
        violations.push(Violation::NotAsAsked { task, queue, got: start.slices.len() });
    }
}

fn count_as_asked(queue: &Queue, waiting: &Waiting, got: usize) -> bool {
    match (&queue.spec.want, &waiting.request) {
        (QueueWant::Range { min, max }, _) => (*min as usize..=*max as usize).contains(&got),
        (QueueWant::Fixed(GpuRequest::Gpus(n)), _) | (QueueWant::Task, Some(GpuRequest::Gpus(n))) => {
            got == *n as usize
        }
        (QueueWant::Task, None) => got == 1,
        (QueueWant::None, _) => got == 0,
        _ => got == waiting.devices.max(1) as usize,
    }
}

fn as_asked(queue: &Queue, waiting: &Waiting, slice: &Slice, gpu: &GpuState) -> bool {
    let request = match queue.spec.want.request_for(waiting.request.as_ref()) {
        None => return false,
        // Each of several GPUs is a whole one.
        Some(GpuRequest::Gpus(_)) => GpuRequest::Gpus(1),
        Some(request) => request,
    };
    let model_ok = waiting.models.is_empty() || waiting.models.contains(&gpu.gpu.model);
    let pools_ok = waiting.pools.iter().all(|rule| rule.pools.iter().any(|pool| gpu.pools.contains(pool)));
    if !pools_ok {
        return false;
    }
    if let Some(mig) = &slice.mig {
        let table = gpu.mig.as_ref().map(|geometry| &geometry.table);
        let is_instance = table.is_some_and(|table| is_as_requested(&request, slice, mig, table));
        // Nothing divides the time of an instance. A task that requests both is refused when it starts.
        let ungated = !waiting.compute.is_enforced()
            || waiting.isolation == Isolation::Mig
            || matches!(request, GpuRequest::MigProfile(_));
        return model_ok && waiting.isolation != Isolation::Shared && is_instance && ungated;
    }
    let own = queue.spec.want == QueueWant::Task && request != GpuRequest::Gpus(1);
    let compute = waiting.compute.named_part().filter(|_| own);
    let share = request.share_of(gpu.gpu.memory_bytes).map(|share| share.with_compute(compute));
    model_ok
        && waiting.isolation != Isolation::Mig
        && share.is_some_and(|share| {
            share.milli == slice.milli && share.memory_limit_bytes == slice.memory_limit_bytes
        })
}

/// Instances by first unit and size, of all holders, must not overlap, nor be more of a profile than there can be.
///
/// A busy instance exactly where a running task has one is that task's: the node may have read it from the driver before it
/// read that the task has claimed it. At the place of a task that is to start, a busy instance belongs to another
/// process.
fn instances(gpu: &GpuState, running: &[&Slice], started: &[&Slice], violations: &mut Vec<Violation>) {
    let Some(geometry) = &gpu.mig else { return };
    let running = places(running);
    let busy = geometry.instances.iter().filter(|instance| instance.busy).map(|instance| {
        let profile = &geometry.table.profiles[instance.profile];
        (instance.start, profile.size, profile.name.as_str())
    });
    let mut all: Vec<(u32, u32, &str)> = busy.filter(|place| !running.contains(place)).collect();
    all.extend(places(started));
    all.extend(running);
    all.sort_unstable();
    let overlap = all.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
    let too_many = geometry.table.profiles.iter().any(|profile| {
        all.iter().filter(|(_, _, name)| *name == profile.name).count() > profile.max_instances as usize
    });
    if overlap || too_many {
        violations.push(Violation::Instances { gpu: gpu.gpu.uuid.clone() });
    }
}

/// The first unit, size and profile of each MIG instance.
fn places<'a>(slices: &[&'a Slice]) -> Vec<(u32, u32, &'a str)> {
    let instances = slices.iter().filter_map(|slice| slice.mig.as_ref());
    instances.map(|mig| (mig.start, mig.size, mig.profile.as_str())).collect()
}

/// A slice without a promise has what the others leave.
fn compute(
    found: &PlanParts<'_>,
    node: &Node,
    gpu: &GpuState,
    starts: &[&Start],
    violations: &mut Vec<Violation>,
) {
    let here = |slices: &[Slice]| slices.iter().any(|slice| slice.gpu == gpu.gpu.uuid);
    let running = found.running_on(node).filter(|running| here(&running.slices));
    let started = starts.iter().filter(|start| here(&start.slices));
    let started = started.filter_map(|start| found.waiting(start)?.1.promised_compute(&start.slices));
    let milli: Milli = running.filter_map(|running| running.compute).chain(started).sum();
    if milli > Milli::ONE {
        violations.push(Violation::OverCompute { gpu: gpu.gpu.uuid.clone(), milli });
    }
}

/// Shares are compared in bytes, which is what is enforced: their thousandths follow from the bytes by rounding
/// (`GpuRequest::share_of`), and prove nothing beyond them.
///
/// Only what the plan touches is its fault: foreign use may have grown under a slice that runs.
fn capacity(found: &PlanParts<'_>, starts: &[&Start], node: &Node, violations: &mut Vec<Violation>) {
    let touched: BTreeSet<&GpuUuid> =
        starts.iter().flat_map(|start| &start.slices).map(|slice| &slice.gpu).collect();
    let running = || found.running_on(node);
    for gpu in node.gpus.iter().filter(|gpu| touched.contains(&gpu.gpu.uuid)) {
        let is_here = |slice: &&Slice| slice.gpu == gpu.gpu.uuid;
        let held: Vec<&Slice> = running().flat_map(|running| &running.slices).filter(is_here).collect();
        let started: Vec<&Slice> = starts.iter().flat_map(|start| &start.slices).filter(is_here).collect();
        let limits: u64 = held.iter().chain(&started).map(|slice| slice.memory_limit_bytes).sum();
        instances(gpu, &held, &started, violations);
        compute(found, node, gpu, starts, violations);
        let (uuid, memory_bytes) = (gpu.gpu.uuid.clone(), gpu.gpu.memory_bytes);
        let bytes = limits.saturating_add(gpu.foreign_bytes);
        if bytes > memory_bytes {
            violations.push(Violation::OverMemory { gpu: uuid, bytes, memory_bytes });
        }
    }
    let Some(host) = node.host else { return };
    let asked = starts.iter().filter_map(|start| found.waiting(start)).map(|(_, waiting)| waiting.host);
    let (mut cpu_milli, mut memory_bytes) = (0u64, 0u64);
    for taken in running().map(|running| running.host).chain(asked) {
        cpu_milli += taken.cpu_milli;
        memory_bytes += taken.memory_bytes;
    }
    if !starts.is_empty() && (cpu_milli > host.cpu_milli || memory_bytes > host.memory_bytes) {
        violations.push(Violation::OverHost { node: node.name.clone() });
    }
}
