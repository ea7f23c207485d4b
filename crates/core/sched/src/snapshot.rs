//! The input of the scheduler: the nodes, the tasks that run on them, and the tasks that wait. Built by constructors,
//! so that a new field does not break its callers.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_mig::GpuGeometry;
use cantle_model::{
    ComputeRequest, Gpu, GpuRequest, Isolation, Lease, LeaseId, Milli, PoolRule, QueueSpec, Slice, TaskId,
};
use serde::{Deserialize, Serialize};

use crate::{Amounts, Cause, Fabric, Mix, Project, Start};

/// One moment of the world.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Nodes, in the order in which equals are preferred.
    pub nodes: Vec<Node>,
    /// Every lease that holds a slice, of any owner.
    pub running: Vec<Running>,
    /// Queues by priority, the first one first.
    pub queues: Vec<Queue>,
    /// Name of the queue that was served last; matters to [`crate::Order::Fair`] only.
    pub last_served: Option<String>,
    /// Demand that is expected, counted from the past; empty if nothing is known.
    pub expected: Mix,
    /// Projects, the oldest first. Tasks of none have no quota: they are served last and may be reclaimed first.
    pub projects: Vec<Project>,
    /// The capacity and the allocations of other planners under the same quotas.
    pub elsewhere: Elsewhere,
    /// How many tasks may run at once; as many as there is room for if `None`.
    pub at_once: Option<usize>,
}

/// GPUs that another planner allocates: nothing is started or stopped there, but shares and limits count them.
#[derive(Clone, Debug, Default)]
pub struct Elsewhere {
    /// The capacity.
    pub capacity: Amounts,
    /// The holders of its memory.
    pub held: Vec<Held>,
}

/// Thousandths of a GPU, by name of a pool. A GPU in several pools counts in each of them.
pub type PoolMilli = BTreeMap<String, u64>;

/// The holdings of a task elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its project.
    pub project: Option<String>,
    /// Its count against quotas.
    pub amounts: Amounts,
    /// The part of it on GPUs of each pool, in thousandths of a GPU.
    pub pool_milli: PoolMilli,
    /// May it be stopped for others?
    pub preemptible: bool,
    /// Was it asked to stop?
    pub stopping: bool,
}

impl Snapshot {
    /// A state of these parts.
    #[must_use]
    pub const fn new(nodes: Vec<Node>, running: Vec<Running>, queues: Vec<Queue>) -> Self {
        let elsewhere = Elsewhere { capacity: Amounts([0; 3]), held: Vec::new() };
        Self {
            nodes,
            running,
            queues,
            last_served: None,
            expected: Mix::new(),
            projects: Vec::new(),
            elsewhere,
            at_once: None,
        }
    }
}

/// Processor time and memory of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Host {
    /// Thousandths of a CPU core.
    pub cpu_milli: u64,
    /// Main memory in bytes.
    pub memory_bytes: u64,
}

impl Host {
    /// More than can be used up: a host that is not counted.
    pub const UNCOUNTED: Self = Self { cpu_milli: u64::MAX, memory_bytes: u64::MAX };

    /// Is there so much in `free`?
    #[must_use]
    pub const fn fits_in(self, free: Self) -> bool {
        self.cpu_milli <= free.cpu_milli && self.memory_bytes <= free.memory_bytes
    }

    /// The amounts without `taken`; no amount falls below zero, and an uncounted one stays uncounted.
    #[must_use]
    pub const fn less(self, taken: Self) -> Self {
        if self.cpu_milli == u64::MAX && self.memory_bytes == u64::MAX {
            return self;
        }
        Self {
            cpu_milli: self.cpu_milli.saturating_sub(taken.cpu_milli),
            memory_bytes: self.memory_bytes.saturating_sub(taken.memory_bytes),
        }
    }
}

/// A machine with GPUs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Node {
    /// Its name, unique in the state.
    pub name: String,
    /// Its GPUs, in index order.
    pub gpus: Vec<GpuState>,
    /// The offer of its host to tasks; `None` if it is not counted.
    pub host: Option<Host>,
    /// The connections of its GPUs; `None` if they are unknown or all alike. Equal nodes share it.
    pub fabric: Option<Arc<Fabric>>,
}

impl Node {
    /// A node whose CPU and memory are not counted.
    #[must_use]
    pub fn new(name: impl Into<String>, gpus: Vec<GpuState>) -> Self {
        Self { name: name.into(), gpus, host: None, fabric: None }
    }
}

/// A GPU and what cantle cannot decide about it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GpuState {
    /// As the driver shows it.
    pub gpu: Gpu,
    /// Memory held by processes that cantle did not start, in bytes.
    pub foreign_bytes: u64,
    /// False while nothing new may start on it (lost, drained, allocated to another program).
    pub usable: bool,
    /// In MIG mode: what it offers, and its instances without those that running tasks hold. Busy ones belong to other
    /// programs.
    pub mig: Option<GpuGeometry>,
    /// Names of the pools that it belongs to, in order.
    pub pools: Vec<String>,
}

impl GpuState {
    /// A healthy GPU without foreign use.
    #[must_use]
    pub const fn new(gpu: Gpu) -> Self {
        Self { gpu, foreign_bytes: 0, usable: true, mig: None, pools: Vec::new() }
    }
}

/// A grant that holds slices now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Running {
    /// The lease.
    pub lease: LeaseId,
    /// The task it was given to.
    pub task: TaskId,
    /// Name of its node.
    pub node: String,
    /// Its slices, at most one per GPU.
    pub slices: Vec<Slice>,
    /// Its use of the host.
    pub host: Host,
    /// When it started, in milliseconds since the epoch.
    pub started_at_ms: i64,
    /// When it will have ended at the latest, if that is known.
    pub ends_at_ms: Option<i64>,
    /// Name of the queue it came from.
    pub queue: Option<String>,
    /// Was it asked to stop, and why? Then its slices will be free soon.
    pub stopping: Option<Cause>,
    /// Its project.
    pub project: Option<String>,
    /// Higher ones go first within a project and may stop lower ones.
    pub priority: i32,
    /// May it be stopped for others? If not, it must fit its project's quota.
    pub preemptible: bool,
    /// Tasks that start and stop together.
    pub gang: Option<Gang>,
    /// Its count of GPUs against quotas, in thousandths, if it differs from its slices.
    pub quota_milli: Option<u64>,
    /// The part of its GPU's compute time that it was promised.
    pub compute: Option<Milli>,
}

impl Running {
    /// Its count against quotas.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        let milli = self.slices.iter().map(|slice| u64::from(slice.milli.0)).sum();
        weighed(Amounts([milli, self.host.cpu_milli, self.host.memory_bytes]), self.quota_milli)
    }

    /// The holdings of `task` on `node` under `lease`; all else is unknown: no queue, no project, preemptible.
    #[must_use]
    pub fn new(lease: LeaseId, task: TaskId, node: impl Into<String>, slices: Vec<Slice>) -> Self {
        Self {
            lease,
            task,
            node: node.into(),
            slices,
            host: Host::default(),
            started_at_ms: 0,
            ends_at_ms: None,
            queue: None,
            stopping: None,
            project: None,
            priority: 0,
            preemptible: true,
            gang: None,
            quota_milli: None,
            compute: None,
        }
    }

    /// The holdings of `waiting` after `start` has been carried out at `now_ms` under `lease`.
    #[must_use]
    pub fn of_start(start: &Start, waiting: &Waiting, lease: LeaseId, now_ms: i64) -> Self {
        Self {
            host: start.host,
            started_at_ms: now_ms,
            ends_at_ms: waiting.max_run_ms.map(|run_ms| now_ms.saturating_add(run_ms)),
            queue: Some(start.queue.clone()),
            project: waiting.project.clone(),
            priority: waiting.priority,
            preemptible: waiting.preemptible,
            gang: waiting.gang.clone(),
            quota_milli: waiting.quota_milli,
            compute: waiting.promised_compute(&start.slices),
            ..Self::new(lease, start.task.clone(), &start.node, start.slices.clone())
        }
    }

    /// The holdings of a lease on `node`.
    #[must_use]
    pub fn of_lease(lease: &Lease, node: impl Into<String>, started_at_ms: i64) -> Self {
        let queue = lease.queue.clone();
        let new = Self::new(lease.id.clone(), lease.task.clone(), node, lease.slices.clone());
        Self {
            started_at_ms,
            ends_at_ms: lease.ends_ms,
            queue,
            compute: lease.compute.map(|share| share.request_milli),
            ..new
        }
    }
}

/// `amounts` with another weight of its GPUs, if there is one.
pub(crate) const fn weighed(amounts: Amounts, quota_milli: Option<u64>) -> Amounts {
    let Amounts([_, cpu_milli, memory_bytes]) = amounts;
    match quota_milli {
        Some(milli) => Amounts([milli, cpu_milli, memory_bytes]),
        None => amounts,
    }
}

/// Tasks that start together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its name, unique among gangs.
    pub name: String,
    /// Number of its tasks.
    pub size: u32,
}

/// A queue and the tasks in it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Queue {
    /// Its name and what its tasks get.
    pub spec: QueueSpec,
    /// Waiting tasks, the first one first.
    pub waiting: Vec<Waiting>,
}

impl Queue {
    /// A queue with these tasks.
    #[must_use]
    pub const fn new(spec: QueueSpec, waiting: Vec<Waiting>) -> Self {
        Self { spec, waiting }
    }
}

/// A task that waits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The task.
    pub task: TaskId,
    /// Its own request; honored by queues with [`cantle_model::QueueWant::Task`].
    pub request: Option<GpuRequest>,
    /// The number of GPUs on which a fraction or an amount of memory is requested; 1 or more, all on one node.
    pub devices: u32,
    /// GPU models that will do, by their exact names; empty means any.
    pub models: Vec<String>,
    /// The rules of its project and of those above it; a GPU must satisfy all of them.
    pub pools: Vec<PoolRule>,
    /// Its isolation.
    pub isolation: Isolation,
    /// Its request for the GPU's compute time.
    pub compute: ComputeRequest,
    /// Its use of the host.
    pub host: Host,
    /// When it was enqueued, in milliseconds since the epoch.
    pub enqueued_at_ms: i64,
    /// Its maximum run time, in milliseconds, if it has one.
    pub max_run_ms: Option<i64>,
    /// The task that it was stopped for. As long as that one waits too, it goes first, regardless of the order:
    /// otherwise both would take the same place in turn forever.
    pub yielded_to: Option<TaskId>,
    /// Was it stopped to start again elsewhere ([`Cause::Consolidate`])? Then it gets its chance before all others.
    pub moved: bool,
    /// The planner that makes room for it: it is counted as if it had that, and not placed here.
    pub freeing_on: Option<String>,
    /// Its project.
    pub project: Option<String>,
    /// Higher ones go first within a project and may stop lower ones.
    pub priority: i32,
    /// May it be stopped for others? If not, it must fit its project's quota.
    pub preemptible: bool,
    /// Tasks that start and stop together.
    pub gang: Option<Gang>,
    /// Its count of GPUs against quotas, in thousandths, if it differs from its slices.
    pub quota_milli: Option<u64>,
}

impl Waiting {
    /// A task that takes what its queue gives.
    #[must_use]
    pub fn new(task: TaskId, enqueued_at_ms: i64) -> Self {
        Self {
            task,
            request: None,
            devices: 1,
            models: Vec::new(),
            pools: Vec::new(),
            isolation: Isolation::Any,
            compute: ComputeRequest::default(),
            host: Host::default(),
            enqueued_at_ms,
            max_run_ms: None,
            yielded_to: None,
            moved: false,
            freeing_on: None,
            project: None,
            priority: 0,
            preemptible: true,
            gang: None,
            quota_milli: None,
        }
    }

    /// The terms of its compute request on its slices; none if nothing is enforced there. A slice is never promised more
    /// than it counts: where a queue gives less than is requested, the task is refused at its start.
    pub(crate) fn promised_compute(&self, slices: &[Slice]) -> Option<Milli> {
        let slice = slices.first().filter(|slice| slice.mig.is_none() && self.compute.is_enforced())?;
        Some(self.compute.request.map_or(slice.milli, |request| request.min(slice.milli)))
    }

    /// Its count against quotas where it gets `amounts`.
    pub(crate) const fn counts(&self, amounts: Amounts) -> Amounts {
        weighed(amounts, self.quota_milli)
    }

    /// The same with its own request.
    #[must_use]
    pub fn wanting(mut self, request: GpuRequest) -> Self {
        self.request = Some(request);
        self
    }
}
