//! `cantle.*` about the runs of a task.

use cantle_model::{Measured, TaskStatus};
use serde::{Deserialize, Serialize};

use crate::wire::endpoint;

/// `cantle.get_runs`: every time that a task ran, the first one first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GetRuns {
    /// The task's id.
    pub task: String,
}
endpoint!("cantle.get_runs", GetRuns => RunViews);

/// Answer of `cantle.get_runs`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunViews {
    /// All runs.
    pub runs: Vec<RunView>,
}

/// A run of a task for display: with names instead of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunView {
    /// Its number; the first run of a task is 1.
    pub run: i64,
    /// Name of the queue that the task came from.
    pub queue: Option<String>,
    /// Where.
    pub node: Option<String>,
    /// UUIDs of the GPUs that the task held.
    pub gpus: Vec<String>,
    /// The amount that it held, in thousandths of a GPU, over all its GPUs.
    pub milli: u32,
    /// Its memory limit, over all its GPUs.
    pub memory_limit_bytes: u64,
    /// Its measurements, once it has ended.
    #[serde(flatten)]
    pub measured: Measured,
    /// When an agent took the task, RFC 3339.
    pub taken: Option<String>,
    /// When the task began to run, RFC 3339.
    pub started: Option<String>,
    /// When the run ended, RFC 3339.
    pub ended: Option<String>,
    /// The state that it left the task in; `queued` or `created`: it was given up. Absent while it lasts.
    pub outcome: Option<TaskStatus>,
    /// How the process ended.
    pub exit_code: Option<i32>,
    /// Why it ended so.
    pub why: Option<String>,
}
