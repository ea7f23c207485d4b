//! `cantle.*` about projects: what they are granted, what they have, and what agents need to know to keep it so.

use std::collections::BTreeMap;

use cantle_model::{Cause, ProjectQuota};
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::{endpoint, one_or_many};

/// `cantle.get_quotas`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetQuotas {
    /// Of this project only (name or id).
    pub project: Option<String>,
}
endpoint!("cantle.get_quotas", GetQuotas => Quotas);

/// Answer of `cantle.get_quotas`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Quotas {
    /// By name of the project.
    pub quotas: Vec<QuotaView>,
}

/// What a project is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// Name of the project. What is granted to `a` holds for `a/b` and `a/c` together.
    pub project: String,
    /// What it is granted.
    #[serde(flatten)]
    pub quota: ProjectQuota,
}

/// `cantle.set_quota`: the project is made if there is none of that name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetQuota {
    /// Name of the project.
    pub project: String,
    /// What it is granted from now on; absent: it has no quota of its own any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<ProjectQuota>,
}
endpoint!("cantle.set_quota", SetQuota => Empty);

/// `cantle.get_projects`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetProjects {}
endpoint!("cantle.get_projects", GetProjects => ProjectViews);

/// Answer of `cantle.get_projects`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProjectViews {
    /// All projects, by name.
    pub projects: Vec<ProjectView>,
}

/// A project with its part of the GPUs. All amounts include the projects below it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectView {
    /// Its name.
    pub name: String,
    /// What it is granted, if it has a quota of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<ProjectQuota>,
    /// Guaranteed thousandths of a GPU.
    pub deserved_milli: u64,
    /// What is fair at the moment, given what all ask for.
    pub fair_share_milli: u64,
    /// Held by its tasks.
    pub allocated_milli: u64,
    /// The part of it that is more than guaranteed: lent, and taken back when its owner needs it.
    pub over_quota_milli: u64,
    /// Never more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_milli: Option<u64>,
    /// What it used in the past, in millionths of what there is; absent if past use does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_ppm: Option<u32>,
    /// Tasks that hold something.
    pub running: u64,
    /// Tasks that wait.
    pub waiting: u64,
}

/// `cantle.get_fleet`: what an agent needs to know, beside its own GPUs, to plan under quotas.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetFleet {
    /// The agent's node.
    pub node: String,
    /// Ids of the queues that it serves.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "one_or_many")]
    pub queues: Vec<String>,
}
endpoint!("cantle.get_fleet", GetFleet => Fleet);

/// Answer of `cantle.get_fleet`; empty as long as no project has a quota.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Projects with a quota, by name.
    pub projects: Vec<QuotaView>,
    /// GPUs of the other nodes that are alive, in thousandths.
    pub other_gpus_milli: u64,
    /// Tasks that hold something on the agent's node.
    pub held: Vec<HeldTask>,
    /// What is held on other nodes, in sums.
    pub elsewhere: Vec<HeldElsewhere>,
    /// Tasks that wait in the agent's queues: the first ones of each project, in order.
    pub waiting: Vec<WaitingTask>,
    /// Evictions that this answer knows of, to be given back with [`Evict`].
    pub evictions: i64,
    /// By project: its past use, those below it included, in millionths of what there is. Empty if past use does not count.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub usage_ppm: BTreeMap<String, u32>,
    /// How strongly past use counts against a project, in percent.
    pub usage_weight_percent: u32,
}

/// What some tasks of one project hold together on other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldElsewhere {
    /// The project that they are counted to: their own or the nearest above with a quota.
    pub project: Option<String>,
    /// Thousandths of a GPU.
    pub gpu_milli: u64,
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

/// `cantle.evict`: from an agent that wants to stop tasks for another one; what is accepted is shown by [`GetFleet`] from
/// then on ([`HeldTask::stopping`]). Refused (400/110) if any of it is out of date: evictions are decided one after the
/// other, each with the former ones known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evict {
    /// The agent's node.
    pub node: String,
    /// Who has to stop; all of them or none.
    pub victims: Vec<Victim>,
    /// [`Fleet::evictions`] of the answer that the decision was made from.
    pub evictions: i64,
}
endpoint!("cantle.evict", Evict => Empty);

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

/// `cantle.give_back`: from an agent that has stopped a task for another one. In one step the task leaves its lease and
/// is the first of its queue again; if that lease does not hold it any more, or the task itself has said that it is done,
/// nothing happens. So the call may be repeated.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GiveBack {
    /// The task's id.
    pub task: String,
    /// The lease it ran under.
    pub lease: String,
    /// For people.
    pub reason: String,
}
endpoint!("cantle.give_back", GiveBack => Empty);
