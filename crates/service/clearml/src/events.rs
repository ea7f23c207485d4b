//! `events.*`: what tasks print and measure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::wire::{Request, endpoint};

/// Type of a log event on the wire.
pub const LOG: &str = "log";
/// Type of a scalar event on the wire.
pub const SCALAR: &str = "training_stats_scalar";

/// A field of events that cantle's agents send to a cantle server: the lease of the run that reports. The server refuses
/// reports of a run that no longer holds its task.
pub const RUN_LEASE: &str = "cantle_lease";

/// A field of pieces of log that cantle's agents send to a cantle server: where the piece begins and ends in the output of the run, in bytes,
/// as `[begin, end]`. The server keeps each part of the output once.
pub const RUN_OUTPUT: &str = "cantle_output";

/// One line of `events.add_batch`: a piece of log, a scalar, or something that is kept unchanged (plots, images).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportedEvent {
    /// [`LOG`], [`SCALAR`], `plot`, `training_debug_image`, `training_stats_vector`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The task it belongs to.
    pub task: String,
    /// When, in milliseconds since 1970; the server's time by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
    /// The worker that reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// Level of a piece of log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Text of a piece of log; may hold many lines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg: Option<String>,
    /// Name of the graph that a scalar belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Name of the line in that graph.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Iteration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iter: Option<i64>,
    /// The measured value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Everything else.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

impl ReportedEvent {
    /// A piece of a task's output.
    #[must_use]
    pub fn log(task: &str, worker: &str, timestamp_ms: i64, msg: String) -> Self {
        Self {
            kind: LOG.to_owned(),
            task: task.to_owned(),
            worker: Some(worker.to_owned()),
            timestamp: Some(timestamp_ms),
            level: Some("INFO".to_owned()),
            msg: Some(msg),
            ..Self::default()
        }
    }

    /// The same, from the run under this lease.
    #[must_use]
    pub fn of_run(mut self, lease: &str) -> Self {
        self.more.insert(RUN_LEASE.to_owned(), Value::String(lease.to_owned()));
        self
    }

    /// The same, as a part of the piece of the run's output between these bytes.
    #[must_use]
    pub fn of_output(mut self, begin_bytes: u64, end_bytes: u64) -> Self {
        self.more.insert(RUN_OUTPUT.to_owned(), Value::from(vec![begin_bytes, end_bytes]));
        self
    }
}

/// `events.add_batch`. Its body is not one JSON value but one per line, so it is sent with `Client::add_batch`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AddBatch {}

impl Request for AddBatch {
    const ENDPOINT: &'static str = "events.add_batch";
    type Response = AddBatchReply;
}

/// Answer of `events.add_batch`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AddBatchReply {
    /// Events taken.
    pub added: u64,
    /// Events refused.
    pub errors: u64,
    /// Why, by message; an object, never a list (clients check).
    pub errors_info: Map<String, Value>,
    /// cantle's own: a piece of a run's output was not kept, because the server has the output up to here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<u64>,
}

/// `events.get_task_log`: pages through a task's output.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetTaskLog {
    /// The task's id.
    pub task: String,
    /// Maximum number of events; 100 by default.
    pub batch_size: Option<u64>,
    /// From the end backwards (`true`) or from the start.
    pub navigate_earlier: Option<bool>,
    /// Continue from this time in milliseconds.
    pub from_timestamp: Option<i64>,
    /// `asc` or `desc`.
    pub order: Option<String>,
    /// cantle's own: the output of this run. The newest run, if there is no number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<i64>,
    /// cantle's own and exact: events after this position, ascending. Start with 0, continue with
    /// [`TaskLog::position`].
    pub after: Option<i64>,
}
endpoint!("events.get_task_log", GetTaskLog => TaskLog);

/// Answer of `events.get_task_log`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskLog {
    /// The page.
    pub events: Vec<ReportedEvent>,
    /// How many events are in it.
    pub returned: u64,
    /// How many events the task has.
    pub total: u64,
    /// cantle's own: position of the last event of the page, for `after`.
    pub position: i64,
}
