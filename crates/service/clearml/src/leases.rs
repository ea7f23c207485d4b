//! `cantle.*` about runs whose node may be gone for good: agents renew the lease of a run, and each queue has a policy for
//! runs that are no longer renewed.

use std::collections::BTreeMap;
use std::fmt;

use cantle_model::{Preempt, Slice};
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.renew_leases`: from an agent, every few seconds, for the tasks that run on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewLeases {
    /// The agent's node.
    pub node: String,
    /// The runs.
    pub leases: Vec<LeaseRenewal>,
}
endpoint!("cantle.renew_leases", RenewLeases => RenewedLeases);

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRenewal {
    /// The task's id.
    pub task: String,
    /// The lease it runs under.
    pub lease: String,
    /// Time without renewal, in milliseconds, after which the node ends the run by itself; absent: it never does. The server
    /// gives the task to no other agent before this time is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_ms: Option<u64>,
}

/// Answer of `cantle.renew_leases`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedLeases {
    /// In the order of the request.
    #[serde(default)]
    pub leases: Vec<RenewedLease>,
}

/// The server's answer about one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedLease {
    /// The lease holds the task. If not, the task is queued again, runs elsewhere or is deleted: this run has to end, and nothing of
    /// it is reported.
    pub held: bool,
    /// The new value of [`LeaseRenewal::fence_ms`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_ms: Option<u64>,
}

/// `cantle.report_slices`: from the agent of a running task whose slices have changed, because it was moved, suspended, or given another
/// size. The node has decided that already, so no quota is checked. The call may be repeated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportSlices {
    /// The task's id.
    pub task: String,
    /// Its node.
    pub node: String,
    /// Under which lease.
    pub lease: String,
    /// The slices that it holds now; none while it is suspended.
    #[serde(default)]
    pub slices: Vec<Slice>,
    /// It was to be suspended for another task, and cannot be: it is stopped.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
}
endpoint!("cantle.report_slices", ReportSlices => Empty);

/// `cantle.end_fenced`: from an agent whose task was ended because its lease could not be renewed. If the lease still holds
/// the task, it is the first of its queue again; if not, nothing happens. So the call may be repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndFenced {
    /// The task's id.
    pub task: String,
    /// The lease it ran under.
    pub lease: String,
}
endpoint!("cantle.end_fenced", EndFenced => Empty);

/// `cantle.get_task_token`: from the agent whose lease holds a task, for the environment of the task's process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetTaskToken {
    /// The task's id.
    pub task: String,
    /// The lease it runs under.
    pub lease: String,
}
endpoint!("cantle.get_task_token", GetTaskToken => TaskToken);

/// Answer of `cantle.get_task_token`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskToken {
    /// It acts for the task's owner, changes this task and those made by it alone, and ends with the lease.
    pub token: String,
    /// Name of the user who submitted the task; empty from a server that does not report it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// The secrets of this user that the task named, by name: environment variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// A secret that the task cannot have, and why. It must not start then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_secret: Option<String>,
}

/// Without token and values: they must not get into a log.
impl fmt::Debug for TaskToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskToken").field("user", &self.user).finish_non_exhaustive()
    }
}

/// `cantle.set_queue`: what a queue does with tasks whose node is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQueue {
    /// The queue's name or id.
    pub queue: String,
    /// Seconds after which a task whose node is silent is queued again; absent: the node holds it until it is back or a
    /// user queues the task again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_after_s: Option<u64>,
}
endpoint!("cantle.set_queue", SetQueue => Empty);

/// `cantle.set_queue_preempt`: how the tasks of a queue make room for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQueuePreempt {
    /// The queue's name or id.
    pub queue: String,
    /// The ways that are tried, in order; absent: as their projects say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempt: Option<Preempt>,
}
endpoint!("cantle.set_queue_preempt", SetQueuePreempt => Empty);
