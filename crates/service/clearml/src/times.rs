//! `cantle.*` about how long tasks may run.

use cantle_model::TimeLimit;
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.set_queue_times`: how long the tasks of a queue may run. It counts for tasks that enter the queue from then on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetQueueTimes {
    /// The queue's name or id.
    pub queue: String,
    /// The longest time, in seconds, that a task of the queue may ask for, and has if it asks for none; 0: there is none.
    /// Absent: it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_time_s: Option<u64>,
    /// The time, in seconds, of a task that asks for none; 0: there is none. Absent: it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_time_s: Option<u64>,
}
endpoint!("cantle.set_queue_times", SetQueueTimes => Empty);

/// `cantle.extend_task`: lets a task run longer, also beyond the limit of its queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExtendTask {
    /// The task's id.
    pub task: String,
    /// The seconds that are added to its limit.
    pub by_s: u64,
}
endpoint!("cantle.extend_task", ExtendTask => NewTimeLimit);

/// `cantle.shorten_task`: takes time from a task; its owner may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShortenTask {
    /// The task's id.
    pub task: String,
    /// The seconds that are taken from its limit.
    pub by_s: u64,
}
endpoint!("cantle.shorten_task", ShortenTask => NewTimeLimit);

/// Answer with the new time limit of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTimeLimit {
    /// From its start, in seconds.
    pub time_limit_s: TimeLimit,
}
