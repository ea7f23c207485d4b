//! The fleet as the scheduler sees it, to show the current fair shares. The agents decide with them, not the server.

use std::collections::BTreeMap;

use cantle_decide::{Offer, SnapshotBuilder};
use cantle_model::{QueueSpec, QueueWant, TaskId};
use cantle_sched::{Held, Host, PoolMilli, Queue, Snapshot, Waiting};
use cantle_store::TaskRow;

use super::quotas::{ProjectQuotas, request};
use crate::app::Call;
use crate::error::ApiError;
use crate::services::fleet::nodes;
use crate::usage::PastUse;

/// Nodes that are alive, what `held` holds and what `waiting` asks for.
pub(crate) async fn snapshot(
    call: &Call,
    quotas: &ProjectQuotas,
    past: &PastUse,
    held: &[TaskRow],
    waiting: &[TaskRow],
) -> Result<Snapshot, ApiError> {
    let nodes: Vec<nodes::Node> = nodes::all(call).await?.into_iter().filter(|node| node.alive).collect();
    let names: BTreeMap<String, String> =
        call.store.queues().await?.into_iter().map(|queue| (queue.id, queue.name)).collect();
    let mut queues: BTreeMap<&str, Queue> = BTreeMap::new();
    for task in waiting {
        let id = task.index.queue.as_deref().unwrap_or_default();
        let name = names.get(id).map_or(id, String::as_str);
        let queue = queues.entry(name).or_insert_with(|| Queue::new(spec(&nodes, name), Vec::new()));
        queue.waiting.push(waits(task, quotas));
    }
    let world = nodes.iter().fold(SnapshotBuilder::default(), |world, node| {
        world.node(&node.report.node, node.report.gpus.iter().map(|view| Offer::new(nodes::gpu(view))))
    });
    let world = quotas.own().fold(world, |world, (name, quota)| {
        let usage_ppm = past.ppm(&quotas.projects, name).unwrap_or(0);
        world.project(name, quotas.parent(name), quota, usage_ppm)
    });
    let held = held.iter().map(|task| holds(task, quotas));
    Ok(world.queues(queues.into_values()).held_elsewhere(held).build())
}

/// The slice of a queue's tasks, as reported by the first node that serves it.
pub(crate) fn spec(nodes: &[nodes::Node], queue: &str) -> QueueSpec {
    let served = nodes.iter().flat_map(|node| &node.report.queues).find(|served| served.name == queue);
    let parsed = served.and_then(|served| QueueSpec::parse(&format!("{queue}={}", served.spec)).ok());
    // One that no node serves, or that this version cannot read, gives each task what it asks for.
    parsed.unwrap_or_else(|| QueueSpec { name: queue.to_owned(), want: QueueWant::Task })
}

fn waits(task: &TaskRow, quotas: &ProjectQuotas) -> Waiting {
    let request = request(task);
    let mut waiting = Waiting::new(TaskId(task.index.id.clone()), task.index.status_changed_us / 1000);
    waiting.host = Host { cpu_milli: request.cpu_milli, memory_bytes: request.memory_bytes };
    waiting.request = request.gpu;
    waiting.isolation = request.isolation;
    waiting.compute = request.compute;
    waiting.project = quotas.counted_to(task.index.project.as_ref());
    waiting
}

fn holds(task: &TaskRow, quotas: &ProjectQuotas) -> Held {
    Held {
        project: quotas.counted_to(task.index.project.as_ref()),
        amounts: task.amounts(),
        pool_milli: PoolMilli::new(),
        preemptible: task.terms.preemptible,
        stopping: task.evicted.is_some(),
    }
}
