//! `cantle.take_tasks` and `cantle.complete_tasks`: ClearML's calls that move one task, for many tasks at a time; and
//! `cantle.wait_for_tasks`, which saves agents the polling.

use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::queues::Entry;
use crate::wire::endpoint;

/// `cantle.take_tasks`: takes the first tasks out of a queue, as `queues.get_next_task` does with one. Not for agents of
/// shared nodes, which decide what fits; for programs that carry out any waiting task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TakeTasks {
    /// The queue's id.
    pub queue: String,
    /// The number of tasks; at most 500 are returned.
    pub count: usize,
}
endpoint!("cantle.take_tasks", TakeTasks => TakenTasks);

/// Answer of `cantle.take_tasks`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TakenTasks {
    /// The tasks that were taken, in the order of the queue. Other callers may keep what is missing.
    pub entries: Vec<Entry>,
}

/// `cantle.wait_for_tasks`: waits until a task may have come into one of the queues. Of several callers that wait at a queue, a task
/// wakes one. For agents, which decide after it what they take; the queue itself is the truth.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitForTasks {
    /// Ids of queues.
    pub queues: Vec<String>,
    /// How long to wait, in milliseconds; at most 10,000.
    pub wait_ms: u64,
}
endpoint!("cantle.wait_for_tasks", WaitForTasks => Rung);

/// Answer of `cantle.wait_for_tasks`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Rung {
    /// A task may have come. `false`: the time is over, or the server stops.
    pub rung: bool,
}

/// `cantle.complete_tasks`: these runs ended well. Of up to 500 runs, all of their tasks change or none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CompleteTasks {
    /// The runs; one that the task has run after since is refused.
    pub runs: Vec<TaskRun>,
    /// Even from a state that does not allow it.
    pub force: bool,
}
endpoint!("cantle.complete_tasks", CompleteTasks => Empty);

/// A run of a task.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TaskRun {
    /// The task's id.
    pub task: String,
    /// The number of the run.
    pub run: i64,
}
