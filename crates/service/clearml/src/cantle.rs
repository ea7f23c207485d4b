//! `cantle.*`: the calls that ClearML's services lack. Nodes report what they hold; users and tools read it.

use cantle_model::{
    Enforcement, GpuLink, GpuMode, HostLimit, IdleTime, LimitBackend, Measured, MigInstance, Preempt, Slice,
    TaskStatus, TimeLimit,
};
use serde::{Deserialize, Serialize};

pub use crate::compute_view::ComputeView;

use crate::SuspendedView;
use crate::wire::{endpoint, one_or_many};
use crate::{ArrayView, Empty};

/// `cantle.report_node`: the agent calls it at each change and at least every [`ReportNode::interval_ms`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportNode {
    /// Name of the node.
    pub node: String,
    /// Worker id of its agent.
    pub worker: String,
    /// Queues that it serves, in order of priority.
    pub queues: Vec<NodeQueue>,
    /// Its GPUs and their slices.
    pub gpus: Vec<GpuView>,
    /// The connections of its GPUs: of the first one with all after it, then of the second, and so on. Empty if they are unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLink>,
    /// Tasks that it considered and could not start, with the reason.
    #[serde(default)]
    pub waiting: Vec<WaitReport>,
    /// Its tasks that are suspended: they hold none of its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<SuspendedView>,
    /// A node that is silent for longer than a few of these intervals counts as gone.
    pub interval_ms: u64,
}
endpoint!("cantle.report_node", ReportNode => Empty);

/// A queue that a node serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeQueue {
    /// Its name.
    pub name: String,
    /// The slice of its tasks, as written on the command line: `0.5`, `2`, `1-4`, `task`.
    pub spec: String,
}

/// A GPU and its slices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    /// Index on its node.
    pub index: u32,
    /// Its UUID, which never changes.
    pub uuid: String,
    /// Product name.
    pub model: String,
    /// All its memory.
    pub memory_bytes: u64,
    /// Its mode.
    pub mode: GpuMode,
    /// How much of it is allocated, in thousandths.
    pub allocated_milli: u32,
    /// The slices that are allocated.
    pub slices: Vec<SliceView>,
    /// The MIG instances of others: what they take is not free.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign: Vec<ForeignView>,
    /// Why it takes no new task, if its driver has reported that it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// A MIG instance that cantle did not make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignView {
    /// Name of its profile.
    pub profile: String,
    /// First memory slice of its placement.
    pub start: u32,
    /// Memory slices that it takes.
    pub size: u32,
    /// Its part of the GPU in thousandths.
    pub milli: u32,
}

/// An allocated slice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SliceView {
    /// Task that holds it.
    pub task: String,
    /// Under which lease.
    pub lease: String,
    /// Its part of the GPU in thousandths.
    pub milli: u32,
    /// The limit of the task.
    pub memory_limit_bytes: u64,
    /// The use of the task.
    pub memory_used_bytes: u64,
    /// The instance, on a MIG GPU.
    pub mig: Option<MigInstance>,
    /// How the limit is enforced; absent until the task has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// The mechanisms that enforce the memory limit, the strongest first; absent until the task has started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enforced_by: Vec<LimitBackend>,
    /// The task's processes that hold memory of it, largest first. Of many processes only the largest are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessView>,
    /// Its part of the GPU's compute time; absent where the driver divides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeView>,
    /// Of a slice of no task of the server: of `cantle run`, or of a pod that no queue made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectSlice>,
}

/// A slice that was taken on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectSlice {
    /// Its name, for people: the program, or the pod with its namespace.
    pub name: String,
    /// When it was taken, in milliseconds since 1970, by the node's clock; absent: before its first report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<i64>,
    /// Its owner, for people: `unix:NAME` on a machine, `namespace:NAME` in a cluster; empty if nobody knows.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
}

/// A process that holds memory of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessView {
    /// The pid in its own pid namespace: in a container it differs from the node's.
    pub pid: u32,
    /// The slices that it holds.
    pub memory_bytes: u64,
}

/// A task that cannot start, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReport {
    /// The task's id.
    pub task: String,
    /// For people: `needs 1 GPU, free 0.25 of GPU 2`.
    pub reason: String,
    /// For people: what would let it start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// `cantle.get_nodes`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetNodes {}
endpoint!("cantle.get_nodes", GetNodes => Nodes);

/// Answer of `cantle.get_nodes`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Nodes {
    /// All nodes that ever reported, by name.
    pub nodes: Vec<NodeView>,
}

/// A node as it last reported.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its name.
    pub node: String,
    /// Worker id of its agent.
    pub worker: String,
    /// Last report, RFC 3339.
    pub last_seen: String,
    /// It reported recently.
    pub alive: bool,
    /// Queues that it serves, in order of priority.
    pub queues: Vec<NodeQueue>,
    /// Its GPUs and their slices.
    pub gpus: Vec<GpuView>,
    /// The connections of its GPUs, as in [`ReportNode::links`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<GpuLink>,
    /// Its tasks that are suspended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspended: Vec<SuspendedView>,
}

/// `cantle.report_task`: the agent calls it before the task starts (with its slices) and after it ended (with its exit code).
///
/// The first report claims the task for this lease: if another lease holds it, the call is refused (400/110) and the
/// agent must not start it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportTask {
    /// The task's id.
    pub task: String,
    /// Its node.
    pub node: String,
    /// Under which lease.
    pub lease: String,
    /// The number of the run that it is about, if the caller knows it; refused if the task has run again since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// Its slices.
    #[serde(default)]
    pub slices: Vec<Slice>,
    /// The amount that it counts against GPU quotas, in thousandths, where that differs from its slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_milli: Option<u64>,
    /// The processor time and main memory that it gets, for a task that leaves them to its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostLimit>,
    /// How it ended; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why it ended so: one line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Its measurements, once it has ended.
    #[serde(flatten)]
    pub measured: Measured,
}
endpoint!("cantle.report_task", ReportTask => Empty);

/// `cantle.get_tasks`: newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetTasks {
    /// Only these ids.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub id: Vec<String>,
    /// In one of these states.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub status: Vec<TaskStatus>,
    /// Only the tasks that have this name, or whose ids begin with this (4 characters or more). All else but `limit` is no condition
    /// then.
    pub find: Option<String>,
    /// From this queue (name or id).
    pub queue: Option<String>,
    /// Of this project (name or id).
    pub project: Option<String>,
    /// Of this user (name or id).
    pub user: Option<String>,
    /// Only those of the caller.
    pub mine: bool,
    /// Only the tasks of this array, by its id. Without it, and without `id`, `find` and `status`, those tasks of arrays are left out
    /// that do not run: the array represents them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// Maximum number of tasks; 500 by default.
    pub limit: Option<u64>,
    /// Only tasks made before this one, by its id: the last task of an answer leads to the next ones.
    pub older_than: Option<String>,
}
endpoint!("cantle.get_tasks", GetTasks => TaskViews);

/// Answer of `cantle.get_tasks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskViews {
    /// The results.
    pub tasks: Vec<TaskView>,
}

/// A task for display: with names instead of ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskView {
    /// 32 hex digits.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Name of the user whose it is.
    #[serde(default)]
    pub user: String,
    /// Name of its project.
    pub project: Option<String>,
    /// Name of the queue that it is in or came from.
    pub queue: Option<String>,
    /// Its state.
    pub state: TaskStatus,
    /// Its node, present or former.
    pub node: Option<String>,
    /// UUIDs of the GPUs that it holds or held.
    pub gpus: Vec<String>,
    /// The amount that it holds or held, in thousandths of a GPU, over all its GPUs.
    pub milli: u32,
    /// Its memory limit, over all its GPUs.
    pub memory_limit_bytes: u64,
    /// Why it waits, or why it ended.
    pub reason: Option<String>,
    /// How it ended.
    pub exit_code: Option<i32>,
    /// RFC 3339.
    pub created: String,
    /// RFC 3339.
    pub started: Option<String>,
    /// RFC 3339.
    pub ended: Option<String>,
    /// How long its run may last, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit_s: Option<TimeLimit>,
    /// For how long it may be idle, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_limit_s: Option<IdleTime>,
    /// The CPU and main memory that it counts with, or gets: not before its start if it leaves them to its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostLimit>,
    /// How far it is, if it is an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayView>,
}

/// `cantle.get_queues`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetQueues {}
endpoint!("cantle.get_queues", GetQueues => QueueViews);

/// Answer of `cantle.get_queues`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QueueViews {
    /// All queues, by name.
    pub queues: Vec<QueueView>,
}

/// A queue for display.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its name.
    pub name: String,
    /// 32 hex digits.
    pub id: String,
    /// How many tasks wait.
    pub waiting: u64,
    /// How many of its tasks run.
    pub running: u64,
    /// Ids of the waiting tasks, first one first.
    pub tasks: Vec<String>,
    /// Nodes that serve it and are alive.
    pub nodes: Vec<String>,
    /// Seconds of silence of a node after which its task is queued again; absent: the node holds the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_after_s: Option<u64>,
    /// The longest time that its tasks may run, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_s: Option<TimeLimit>,
    /// The time of tasks that ask for none, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_time_s: Option<TimeLimit>,
    /// The longest time that its tasks may be idle, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_idle_s: Option<IdleTime>,
    /// For how long tasks may be idle that ask for nothing, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_idle_s: Option<IdleTime>,
    /// Tasks that ask for no CPU get their part of the processors and main memory of their node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cpu_auto: bool,
    /// How its tasks make room for others; absent: as their projects say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
}

/// An event: something that happened and was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventView {
    /// Position in the order of events; given by the server.
    pub id: i64,
    /// When, RFC 3339; given by the server.
    pub time: String,
    /// One word. The server records changes of state: `enqueue`, `dequeue`, `start`, `stop`, `end`…; an agent records what it
    /// decides and sees: `place`, `run`, `wait`, `refuse`, `watch`, `kill`…
    pub kind: String,
    /// The task it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The queue it is about (name).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The node it happened on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// For people.
    pub message: String,
    /// The author of the event: a user, with the task if one of its tasks did; given by the server. Absent: the server
    /// itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub who: String,
}

/// `cantle.add_events`: the agent calls it. The server gives ids and times.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AddEvents {
    /// The events.
    pub events: Vec<EventView>,
}
endpoint!("cantle.add_events", AddEvents => Empty);

/// `cantle.get_events`: in the order in which they happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetEvents {
    /// About this task only.
    pub task: Option<String>,
    /// After the event with this id; without it the newest ones.
    pub after: Option<i64>,
    /// Maximum number of events; 200 by default.
    pub limit: Option<u64>,
}
endpoint!("cantle.get_events", GetEvents => EventViews);

/// Answer of `cantle.get_events`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EventViews {
    /// Oldest first.
    pub events: Vec<EventView>,
}

/// `cantle.explain_task`: why the task waits, or how it ended.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExplainTask {
    /// The task's id.
    pub task: String,
}
endpoint!("cantle.explain_task", ExplainTask => TaskExplanation);

/// Answer of `cantle.explain_task`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskExplanation {
    /// The task's id.
    pub task: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: TaskStatus,
    /// Name of its queue.
    pub queue: Option<String>,
    /// Its position in the queue; 0 is the front.
    pub position: Option<u64>,
    /// The answer in one line.
    pub reason: String,
    /// The reason of each node that serves the queue.
    pub nodes: Vec<NodeReason>,
}

/// Why a task waits, as one node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReason {
    /// Its name.
    pub node: String,
    /// It reported recently.
    pub alive: bool,
    /// The reason; absent if the node has not considered the task yet.
    pub reason: Option<String>,
    /// The change that would let the task start there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// `cantle.submit_task`: makes a task and puts it into a queue, in one step; repeated with the same id it does nothing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SubmitTask {
    /// Id of the queue.
    pub queue: String,
    /// Id of the new task, 32 hex digits: a caller without an answer asks again with the same one.
    pub id: String,
    /// The task.
    pub task: crate::tasks::Create,
}
endpoint!("cantle.submit_task", SubmitTask => crate::projects::Created);
