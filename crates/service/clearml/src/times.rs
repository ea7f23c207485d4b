//! `cantle.*` about how long tasks may run, and be idle.

use cantle_model::TimeLimit;
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.set_queue_times`: how long the tasks of a queue may run, and be idle. It counts for tasks that enter the queue from then on.
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
    /// As `max_time_s`: the longest time that a task may be idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_idle_s: Option<u64>,
    /// As `default_time_s`: for how long a task may be idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_idle_s: Option<u64>,
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
    /// It may be idle for longer, and does not run longer.
    pub idle: bool,
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
    /// They are taken from the time that it may be idle.
    pub idle: bool,
}
endpoint!("cantle.shorten_task", ShortenTask => NewTimeLimit);

/// Answer with the new time limit of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTimeLimit {
    /// From its start, or since it was active, in seconds.
    pub time_limit_s: TimeLimit,
}
