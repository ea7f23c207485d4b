//! The use under quotas in the whole fleet: what a planner has to know in addition to its own GPUs. The server answers it;
//! agents and the queues controller read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Cause, Pool, Preempt, ProjectQuota};

/// The quota of a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// Name of the project. The quota of `a` holds for `a/b` and `a/c` together.
    pub project: String,
    /// Its quota.
    #[serde(flatten)]
    pub quota: ProjectQuota,
}

/// Answer of `cantle.get_fleet`; empty as long as no project has a quota and no user has reached a limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Projects with a quota, by name.
    pub projects: Vec<QuotaView>,
    /// GPUs of the other nodes that are alive, in thousandths.
    pub other_gpus_milli: u64,
    /// Tasks that hold something on the agent's node.
    pub held: Vec<HeldTask>,
    /// The holdings on other nodes, in sums.
    pub elsewhere: Vec<HeldElsewhere>,
    /// Tasks that wait in the agent's queues: the first ones of each project, in order.
    pub waiting: Vec<WaitingTask>,
    /// Evictions that this answer knows of, to be given back with the next request to evict.
    pub evictions: i64,
    /// By project: its past use, those below it included, in millionths of what there is. Empty if past use does not count.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_ppm: BTreeMap<String, u32>,
    /// The weight of past use against a project, in percent.
    pub usage_weight_percent: u32,
    /// The pools that quotas name, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Pool>,
    /// Waiting tasks that may not start now: their users hold what they may. Also where no project has a quota.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held_back: Vec<String>,
}

/// The holdings of some tasks of one project on other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldElsewhere {
    /// The project that they are counted to: their own or the nearest above with a quota.
    pub project: Option<String>,
    /// Thousandths of a GPU.
    pub gpu_milli: u64,
    /// The part of it on GPUs of each pool.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pool_milli: BTreeMap<String, u64>,
    /// Thousandths of a CPU core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// May they be stopped for others?
    pub preemptible: bool,
    /// Do they have to stop for others?
    pub stopping: bool,
}

/// A task that holds something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldTask {
    /// Its id.
    pub task: String,
    /// Under which lease.
    pub lease: String,
    /// CPU that it is counted with, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory that it is counted with.
    pub memory_bytes: u64,
    /// The project that it is counted to: its own or the nearest above with a quota.
    pub project: Option<String>,
    /// Higher ones may stop lower ones of the same project.
    pub priority: i32,
    /// May it be stopped for others?
    pub preemptible: bool,
    /// When it started, in milliseconds since 1970.
    pub started_ms: i64,
    /// Set if it has to stop for another task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopping: Option<Stopping>,
}

/// Why a task has to stop for another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Why.
    pub cause: Cause,
    /// The same, for people.
    pub reason: String,
    /// The waiting task that gets the room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_task: Option<String>,
    /// How it makes room.
    #[serde(default, skip_serializing_if = "Preempt::is_default")]
    pub preempt: Preempt,
}

/// A task that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingTask {
    /// Its id.
    pub task: String,
    /// Id of its queue.
    pub queue: String,
    /// The project that it is counted to: its own or the nearest above with a quota.
    pub project: Option<String>,
    /// A waiting task that it was stopped for and that goes first.
    pub yielded_to: Option<String>,
    /// It was stopped to start again elsewhere.
    pub moved: bool,
    /// The node on which room is being made for it.
    pub freeing_on: Option<String>,
}

/// A task that has to stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Its id.
    pub task: String,
    /// The lease that is to become free.
    pub lease: String,
    /// The waiting task that gets the room.
    pub for_task: String,
    /// Why.
    pub cause: Cause,
}

/// A task's own statement of its count under quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskTerms {
    /// CPU that it is counted with, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory that it is counted with, in bytes.
    pub memory_bytes: u64,
    /// Higher ones go first within a project and may stop lower ones.
    pub priority: i32,
    /// May it be stopped for others?
    pub preemptible: bool,
}
