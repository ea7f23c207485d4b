//! The store's records. Times are microseconds since 1970.

use std::collections::BTreeMap;

use cantle_model::{Amounts, Cause, IdleTime, Measured, ProjectQuota, Slice, TaskStatus, TimeLimit};
use serde_json::{Map, Value};

/// A task.
#[derive(Clone, Debug)]
pub struct TaskRow {
    /// The part that is filtered and ordered by.
    pub index: TaskIndex,
    /// Id of the user whose it is.
    pub owner: String,
    /// Why it is in its state, for programs.
    pub status_reason: String,
    /// Why it is in its state, for people.
    pub status_message: String,
    /// A user asked its agent to stop it (an eviction is in `evicted`).
    pub stop_asked: bool,
    /// Last worker that reported for it.
    pub last_worker: Option<String>,
    /// When it did.
    pub last_worker_report_us: Option<i64>,
    /// Highest iteration reported.
    pub last_iteration: i64,
    /// The number of its newest run; 0: it never ran.
    pub run: i64,
    /// When an agent took it out of its queue, until it starts.
    pub taken_us: Option<i64>,
    /// Where it runs or ran.
    pub node: Option<String>,
    /// The lease that holds or held it.
    pub lease: Option<String>,
    /// Its slices, present or former.
    pub slices: Vec<Slice>,
    /// How it ended.
    pub exit_code: Option<i64>,
    /// Why it ended so, for people.
    pub reason: Option<String>,
    /// Its count against quotas, apart from its slices.
    pub terms: Terms,
    /// The eviction, if it was asked to stop for another task.
    pub evicted: Option<Evicted>,
    /// How long its present or next run may last.
    pub time: Option<TimeLimit>,
    /// For how long it may be idle.
    pub idle: Option<IdleTime>,
    /// Everything else.
    pub doc: Map<String, Value>,
}

impl TaskRow {
    /// Its count against quotas.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.terms.amounts(&self.slices)
    }

    /// It makes room for another task, and holds nothing meanwhile: it is suspended, and goes on when there is room.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.index.status == TaskStatus::InProgress && self.evicted.is_some() && self.slices.is_empty()
    }

    /// Its newest run lasts for sure: it runs, or was taken to run. Each step that ends a run changes one of both.
    pub(crate) fn has_run(&self) -> bool {
        let is_taken = self.index.status == TaskStatus::Queued && self.taken_us.is_some();
        is_taken || self.index.status == TaskStatus::InProgress
    }
}

/// The count of a claim against quotas, apart from its slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// CPU in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// It may be stopped for other tasks.
    pub preemptible: bool,
    /// The amount that it counts against GPU quotas, in thousandths, where that differs from its slices.
    pub quota_milli: Option<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        Self { cpu_milli: 0, memory_bytes: 0, preemptible: true, quota_milli: None }
    }
}

impl Terms {
    /// Everything that it counts.
    #[must_use]
    pub fn amounts(&self, slices: &[Slice]) -> Amounts {
        let of_slices = || slices.iter().map(|slice| u64::from(slice.milli.0)).sum();
        let milli = self.quota_milli.unwrap_or_else(of_slices);
        Amounts([milli, self.cpu_milli, self.memory_bytes])
    }
}

/// A task that was asked to stop for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The task that gets the capacity.
    pub for_task: String,
    /// Why.
    pub cause: Cause,
    /// Why, for people.
    pub reason: String,
    /// When.
    pub time_us: i64,
}

/// The facts that an agent needs to plan for its node under quotas.
#[derive(Clone, Debug)]
pub struct FleetRows {
    /// Tasks that hold something on the node.
    pub here: Vec<TaskRow>,
    /// The holdings on other nodes.
    pub elsewhere: Vec<HeldSum>,
    /// Nodes on which tasks are being stopped for a waiting task: (waiting task, node).
    pub freeing: Vec<(String, String)>,
    /// Tasks that wait, in the order of each queue.
    pub waiting: Vec<WaitingRow>,
}

/// The holdings of some tasks of one project together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSum {
    /// Id of the project.
    pub project: Option<String>,
    /// They may be stopped for other tasks.
    pub preemptible: bool,
    /// They were asked to stop for other tasks.
    pub stopping: bool,
    /// All of it.
    pub amounts: Amounts,
    /// The part of it on GPUs of each pool, in thousandths; empty unless it was asked for.
    pub pool_milli: BTreeMap<String, u64>,
}

/// A project's past use of the GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectUse {
    /// Id of the project.
    pub project: String,
    /// Thousandths of a GPU times milliseconds, decayed.
    pub used: f64,
    /// Up to when.
    pub as_of_us: i64,
}

/// The holdings of a project's task, and their start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldSince {
    /// Id of the project.
    pub project: String,
    /// Thousandths of a GPU.
    pub milli: u64,
    /// Since when.
    pub since_us: i64,
}

/// The part of a waiting task that its position in a plan depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRow {
    /// Its id.
    pub task: String,
    /// Id of its queue.
    pub queue: String,
    /// Id of its project.
    pub project: Option<String>,
    /// The task that it was stopped for, and why.
    pub evicted: Option<(String, Cause)>,
}

/// A task that is about to be stopped for another.
#[derive(Clone, Debug)]
pub struct VictimTask {
    /// Its id.
    pub task: String,
    /// The lease that is to become free.
    pub lease: String,
    /// The waiting task that gets the capacity.
    pub for_task: String,
    /// Why.
    pub cause: Cause,
    /// It is suspended if it can be, and hears of a stop only if it cannot ([`crate::Store::stop_evicted`]).
    pub suspends: bool,
}

/// The part of a task that is filtered and ordered by.
#[derive(Clone, Debug)]
pub struct TaskIndex {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// ClearML's `type`.
    pub kind: String,
    /// Its state.
    pub status: TaskStatus,
    /// Id of its project.
    pub project: Option<String>,
    /// Id of the task that it was made from.
    pub parent: Option<String>,
    /// Id of the queue that it is in or came from.
    pub queue: Option<String>,
    /// Tags that users set.
    pub tags: Vec<String>,
    /// System tags.
    pub system_tags: Vec<String>,
    /// When it was made.
    pub created_us: i64,
    /// Last change of any kind.
    pub last_update_us: i64,
    /// Last change of its state.
    pub status_changed_us: i64,
    /// When it began to run.
    pub started_us: Option<i64>,
    /// When it ended.
    pub completed_us: Option<i64>,
}

/// Why and when a task changes its state.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// The moment.
    pub now_us: i64,
    /// Even if the state does not allow it.
    pub force: bool,
    /// Why, for programs.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// The message asks the task's agent to stop it.
    pub stop_asked: bool,
    /// The run that it is about; a change about another run than the newest one is refused. `None`: any run.
    pub run: Option<i64>,
    /// It counts against the limits of the task's owner: it is a new request, rather than the return of an unfinished
    /// start.
    pub is_wish: bool,
    /// The author of the change, as events name it; empty: the server itself.
    pub who: String,
}

/// A task that was taken out of its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The task.
    pub task: String,
    /// When it came into the queue.
    pub added_us: i64,
    /// The number of the run that begins.
    pub run: i64,
}

/// An agent's report about a task that it holds.
#[derive(Clone, Debug)]
pub struct TaskClaim {
    /// The task.
    pub task: String,
    /// The agent's node.
    pub node: String,
    /// The lease.
    pub lease: String,
    /// The run that it is about; a report about another run than the newest one is refused. `None`: the lease alone decides.
    pub run: Option<i64>,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// Its count against quotas, apart from them.
    pub terms: Terms,
    /// How it ended, once it has.
    pub exit_code: Option<i64>,
    /// Why it ended so, for people.
    pub reason: Option<String>,
    /// Its measurements, once it has ended.
    pub measured: Measured,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// Its id.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// When it was made.
    pub created_us: i64,
    /// Last change of the queue itself.
    pub last_update_us: i64,
    /// Tags, metadata and the like.
    pub doc: Map<String, Value>,
    /// Waiting tasks, first one first, with the time since when.
    pub entries: Vec<(String, i64)>,
}

/// A project.
#[derive(Clone, Debug)]
pub struct ProjectRow {
    /// Its id.
    pub id: String,
    /// Its name, unique.
    pub name: String,
    /// Free text.
    pub description: String,
    /// When it was made.
    pub created_us: i64,
    /// Last change.
    pub last_update_us: i64,
    /// Its quota; `None` if it has none of its own.
    pub quota: Option<ProjectQuota>,
    /// Tags and the like.
    pub doc: Map<String, Value>,
}

/// A worker's report about itself.
#[derive(Clone, Debug, Default)]
pub struct WorkerReport {
    /// Its id.
    pub id: String,
    /// The task it works on.
    pub task: Option<String>,
    /// The queue that the task came from.
    pub queue: Option<String>,
    /// Ids of the queues that it serves; `None` keeps the last report's.
    pub queues: Option<Vec<String>>,
    /// Tags; `None` keeps the last report's.
    pub tags: Option<Vec<String>>,
    /// Seconds after which it counts as gone; `None` keeps the last report's.
    pub timeout_s: Option<i64>,
    /// Address it calls from.
    pub ip: String,
    /// Load of its machine, as JSON; `None` keeps the last report's.
    pub machine_stats: Option<String>,
}

/// A worker.
#[derive(Clone, Debug)]
pub struct WorkerRow {
    /// Its id.
    pub id: String,
    /// When it registered.
    pub registered_us: i64,
    /// When it last reported.
    pub last_seen_us: i64,
    /// Seconds after which it counts as gone.
    pub timeout_s: i64,
    /// The task it works on.
    pub task: Option<String>,
    /// The queue that the task came from.
    pub queue: Option<String>,
    /// Ids of the queues that it serves.
    pub queues: Vec<String>,
    /// Tags that users set.
    pub tags: Vec<String>,
    /// Address it calls from.
    pub ip: String,
    /// Load of its machine, as JSON.
    pub machine_stats: Option<String>,
}

/// The state of a worker in one minute.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerSample {
    /// Its id.
    pub worker: String,
    /// The minute's beginning.
    pub time_us: i64,
    /// It worked on a task at some time in that minute.
    pub busy: bool,
    /// Load of its machine, as reported; empty if it reported none.
    pub machine_stats: Map<String, Value>,
}

/// The state of a queue in one minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSample {
    /// Its id.
    pub queue: String,
    /// The minute's beginning.
    pub time_us: i64,
    /// How many tasks waited.
    pub waiting: i64,
    /// For how long, all of them together.
    pub total_wait_s: i64,
}

/// The chart of one task or queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChartRow {
    /// `task` or `queue`.
    pub kind: String,
    /// Id of the task, name of the queue.
    pub id: String,
    /// JSON, as the server made it.
    pub line: String,
}

/// A node with cantle's agent, as it last reported.
#[derive(Clone, Debug)]
pub struct NodeRow {
    /// Its name.
    pub node: String,
    /// When it last reported.
    pub last_seen_us: i64,
    /// How often it reports.
    pub interval_ms: i64,
    /// The report, as JSON.
    pub report: String,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRow {
    /// Position in the order of events; the store gives it.
    pub id: i64,
    /// When.
    pub time_us: i64,
    /// Kind of event: one word.
    pub kind: String,
    /// The task it is about.
    pub task: Option<String>,
    /// Name of the queue it is about.
    pub queue: Option<String>,
    /// The node it happened on.
    pub node: Option<String>,
    /// For people.
    pub message: String,
    /// The author of the event; empty: the server itself.
    pub who: String,
}

/// A piece of a task's output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogLine {
    /// Position in the order of arrival; the store gives it.
    pub id: i64,
    /// Its task.
    pub task: String,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The worker that reported it.
    pub worker: String,
    /// `INFO`, `DEBUG`…
    pub level: String,
    /// The text; may hold many lines.
    pub msg: String,
}

/// A measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Its task.
    pub task: String,
    /// Graph.
    pub metric: String,
    /// Line in the graph.
    pub variant: String,
    /// Iteration.
    pub iter: i64,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The value.
    pub value: f64,
}

/// Summary of a line of values.
#[derive(Clone, Debug, PartialEq)]
pub struct LatestScalar {
    /// The value of the highest iteration.
    pub last: Scalar,
    /// The least value.
    pub least: f64,
    /// The greatest value.
    pub greatest: f64,
}

/// A plot, image or vector: kept unchanged.
#[derive(Clone, Debug, PartialEq)]
pub struct ReportRow {
    /// Its task.
    pub task: String,
    /// ClearML's `type`.
    pub kind: String,
    /// Graph.
    pub metric: String,
    /// Line in the graph.
    pub variant: String,
    /// Iteration.
    pub iter: i64,
    /// When, in milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The whole event.
    pub doc: Value,
}
