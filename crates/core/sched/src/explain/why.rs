//! Explains why one task waits, node by node, and what would let it start.

use cantle_model::TaskId;

use crate::search::round::Round;
use crate::{Cluster, Demand, Policy, Snapshot};

/// The answer to "why does my task not run?".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The task.
    pub task: TaskId,
    /// In one line.
    pub summary: String,
    /// Waiting tasks that get their chance before it, in that order.
    pub ahead: Vec<TaskId>,
    /// The missing resources of each node at the moment.
    pub nodes: Vec<NodeLack>,
    /// The change that would let it start.
    pub remedy: String,
}

/// The missing resources of one node for a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLack {
    /// Name of the node.
    pub node: String,
    /// In one line.
    pub lacks: String,
}

/// Explains what `plan` would decide about `task` at `now_ms`; `None` if it does not wait.
#[must_use]
pub fn why(state: &Snapshot, policy: &Policy, task: &TaskId, now_ms: i64) -> Option<Explanation> {
    let (decided, order) = Round::decide(state, policy, now_ms);
    let id = |&(queue, at): &(usize, usize)| &state.queues[queue].waiting[at].task;
    let turn = order.iter().position(|position| id(position) == task)?;
    let (queue, at) = order[turn];
    let demand = Demand::of(&state.queues[queue], &state.queues[queue].waiting[at]);
    let reason = decided.waits.iter().find(|wait| wait.task == *task).map(|wait| &wait.reason);
    let (summary, remedy) = match reason {
        None => ("starts now".to_owned(), "nothing".to_owned()),
        Some(reason) => (reason.to_string(), reason.remedy()),
    };
    let starts = |id: &&TaskId| decided.starts.iter().any(|start| start.task == **id);
    let ahead = order[..turn].iter().map(id).filter(|id| !starts(id)).cloned().collect();
    Some(Explanation { task: task.clone(), summary, ahead, nodes: lacks(state, &demand), remedy })
}

fn lacks(state: &Snapshot, demand: &Demand) -> Vec<NodeLack> {
    let cluster = Cluster::of(state);
    let shape = cluster.shape(demand);
    let lack = |(at, node): (usize, &crate::Node)| {
        let free = cluster.node(at);
        let room = |gpu: &&crate::GpuFree| shape.share(gpu.class).is_some_and(|share| gpu.fits(share));
        let (fitting, wanted) = (free.gpus.iter().filter(room).count(), shape.devices().0 as usize);
        let suitable =
            node.gpus.len() - free.gpus.iter().filter(|gpu| shape.share(gpu.class).is_none()).count();
        let lacks = if suitable < wanted {
            if wanted == 1 {
                "has no suitable GPU".to_owned()
            } else {
                format!("has {suitable} suitable of {wanted} GPUs")
            }
        } else if fitting < wanted {
            if wanted == 1 {
                "no GPU has room".to_owned()
            } else {
                format!("{fitting} of {wanted} GPUs have room")
            }
        } else if !shape.host().fits_in(free.host) {
            "GPUs have room, CPU or memory of the host has not".to_owned()
        } else {
            "nothing".to_owned()
        };
        NodeLack { node: node.name.clone(), lacks }
    };
    state.nodes.iter().enumerate().map(lack).collect()
}
