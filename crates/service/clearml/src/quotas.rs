//! `cantle.*` about projects: their quotas, what they hold, and what agents need to enforce the quotas.

use cantle_model::ProjectQuota;
pub use cantle_model::{Fleet, HeldElsewhere, HeldTask, QuotaView, Stopping, Victim, WaitingTask};
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::pools::PoolShares;
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

/// `cantle.set_quota`: the project is made if there is none of that name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetQuota {
    /// Name of the project.
    pub project: String,
    /// Its new quota; absent: it has no quota of its own any more.
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
    /// Its quota, if it has one of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<ProjectQuota>,
    /// Guaranteed thousandths of a GPU.
    pub deserved_milli: u64,
    /// Its fair share at the moment, given all requests.
    pub fair_share_milli: u64,
    /// Held by its tasks.
    pub allocated_milli: u64,
    /// The part of it that is more than guaranteed: lent, and taken back when its owner needs it.
    pub over_quota_milli: u64,
    /// Never more than this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_milli: Option<u64>,
    /// Its past use, in millionths of the capacity; absent if past use does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_ppm: Option<u32>,
    /// Its quotas of pools, and what it holds of them.
    #[serde(default, skip_serializing_if = "PoolShares::is_empty")]
    pub by_pool: PoolShares,
    /// Tasks that hold something.
    pub running: u64,
    /// Tasks that wait.
    pub waiting: u64,
}

/// `cantle.get_fleet`: what an agent needs to know, in addition to its own GPUs, to plan under
/// quotas.
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

/// `cantle.evict`: from an agent that wants to stop tasks for another one; what is accepted is shown by [`GetFleet`] from
/// then on ([`HeldTask::stopping`]). Refused (400/110) if any of it is out of date: evictions are decided one after the
/// other, each with the former ones known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Evict {
    /// The agent's node.
    pub node: String,
    /// The tasks that have to stop; all of them or none.
    pub victims: Vec<Victim>,
    /// [`Fleet::evictions`] of the answer that the decision was made from.
    pub evictions: i64,
    /// The caller can suspend tasks. A task that is to be suspended is not asked to stop.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub can_suspend: bool,
}
endpoint!("cantle.evict", Evict => Empty);

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
