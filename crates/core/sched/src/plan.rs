//! A plan: the decision at one moment, and its parts.

use cantle_model::{Slice, TaskId};

use crate::search::round::Round;
use crate::{Eviction, Host, Policy, Reason, Snapshot};

/// The actions to take now. Every waiting task is in `starts` or in `waits`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Tasks to start, in this order.
    pub starts: Vec<Start>,
    /// Running tasks to stop so that waiting ones can start in a later round.
    pub evictions: Vec<Eviction>,
    /// Tasks that wait, by queue and place in it.
    pub waits: Vec<Wait>,
}

/// Start this task there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The task.
    pub task: TaskId,
    /// Name of the queue it is taken from.
    pub queue: String,
    /// Name of the node.
    pub node: String,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// Its host resources.
    pub host: Host,
}

/// This task waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The task.
    pub task: TaskId,
    /// Name of its queue.
    pub queue: String,
    /// Why.
    pub reason: Reason,
}

impl Plan {
    /// Name of the queue served last, to be put into [`Snapshot::last_served`] of the next round.
    #[must_use]
    pub fn last_served(&self) -> Option<&str> {
        self.starts.last().map(|start| start.queue.as_str())
    }
}

/// Decides what starts at `now_ms` (milliseconds since the epoch), which tasks have to stop, and why the rest waits.
#[must_use]
pub fn plan(state: &Snapshot, policy: &Policy, now_ms: i64) -> Plan {
    Round::decide(state, policy, now_ms).0
}
