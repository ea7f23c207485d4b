//! `cantle.*` about runs whose node may be gone for good: the lease of a run is renewed, and a queue has a policy for those that
//! nobody renews any more.

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
    /// Time without renewal, in milliseconds, after which the node ends the run by itself; absent: it never does. The server gives
    /// a task to nobody else before this time is over.
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

/// What the server says about one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedLease {
    /// The lease holds the task. If not, the task is queued again, runs elsewhere or is deleted: this run has to end, and nothing of
    /// it is reported.
    pub held: bool,
    /// What [`LeaseRenewal::fence_ms`] is to be from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_ms: Option<u64>,
}

/// `cantle.end_fenced`: from an agent whose task was ended because nobody could renew its lease. If the lease still holds the task,
/// it is the first of its queue again; if not, nothing happens. So the call may be repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndFenced {
    /// The task's id.
    pub task: String,
    /// The lease it ran under.
    pub lease: String,
}
endpoint!("cantle.end_fenced", EndFenced => Empty);

/// `cantle.set_queue`: what a queue does with tasks whose node is gone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetQueue {
    /// The queue's name or id.
    pub queue: String,
    /// Seconds after which a task whose node is silent is queued again; absent: the node holds it until it is back or somebody
    /// queues the task again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_after_s: Option<u64>,
}
endpoint!("cantle.set_queue", SetQueue => Empty);
