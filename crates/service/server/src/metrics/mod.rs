//! `/metrics`. Names and labels are documented in `docs/metrics.md`; labels that dcgm-exporter has, too, carry its names,
//! so that both can be joined.

pub(crate) mod tally;

use std::collections::BTreeMap;

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use cantle_clearml::cantle::{
    GetNodes, GetQueues, GetTasks, GpuView, NodeView, QueueView, SliceView, TaskView,
};
use cantle_metrics::{Exposition, Fallback, Fallbacks, MetricKind, SliceLabels, precise};
use cantle_model::TaskStatus;

use crate::clock::now_us;
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::Right;
use crate::services::month;
use crate::ui::{Ui, refuse};

/// Limit of running and waiting tasks whose names are put on the metrics of their slices.
const TASKS: u64 = 10_000;

/// Values that the server assumed because it could not read its input.
pub(crate) static FALLBACKS: Fallbacks =
    Fallbacks::new(&[Fallback::UnreadableReport, Fallback::UnreadableRequest]);

/// `GET /metrics`, for callers that may see everything.
pub(crate) async fn scrape(
    State(ui): State<Ui>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    match ui.api.app.caller(text(header::AUTHORIZATION), &peer.address.ip().to_string()).await {
        Ok(who) if who.may_everywhere(Right::See) => {}
        Ok(who) => return refuse(&ApiError::forbidden(&who, Right::See, "/metrics", None)),
        Err(error) => return refuse(&error),
    }
    let mut metrics = Exposition::new(text(header::ACCEPT).unwrap_or_default());
    match gather(&ui, &mut metrics).await {
        Ok(()) => {
            let (content_type, body) = metrics.finish();
            ([(header::CONTENT_TYPE, content_type)], body).into_response()
        }
        Err(error) => refuse(&error),
    }
}

async fn gather(ui: &Ui, metrics: &mut Exposition) -> Result<(), ApiError> {
    let nodes = ui.api.ask(&GetNodes {}).await?.nodes;
    let status = vec![TaskStatus::InProgress, TaskStatus::Queued];
    let active = GetTasks { status, limit: Some(TASKS), ..GetTasks::default() };
    let tasks = ui.api.ask(&active).await?.tasks;
    let queues = ui.api.ask(&GetQueues {}).await?.queues;
    metrics.family(MetricKind::Gauge, "cantle_build_info", "Always 1; the label says what runs.");
    metrics.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    of_nodes(metrics, &nodes);
    of_gpus(metrics, &nodes);
    of_slices(metrics, &nodes, &tasks);
    of_queues(metrics, &queues, &longest_waits(ui).await?);
    of_projects(metrics, ui).await?;
    of_events(metrics, ui);
    Fallbacks::write(metrics, "cantle_fallbacks", &[&cantle_store::FALLBACKS, &FALLBACKS]);
    Ok(())
}

fn of_nodes(metrics: &mut Exposition, nodes: &[NodeView]) {
    metrics.family(MetricKind::Gauge, "cantle_node_up", "Does the node's agent report?");
    for node in nodes {
        metrics.sample(&[("Hostname", &node.node)], if node.alive { 1.0 } else { 0.0 });
    }
}

/// GPUs of the nodes that are alive, with the labels of all their metrics.
fn gpus(nodes: &[NodeView]) -> impl Iterator<Item = (&GpuView, String, &str)> {
    let alive = nodes.iter().filter(|node| node.alive);
    alive.flat_map(|node| node.gpus.iter().map(|gpu| (gpu, gpu.index.to_string(), node.node.as_str())))
}

fn of_gpus(metrics: &mut Exposition, nodes: &[NodeView]) {
    metrics.family(
        MetricKind::Gauge,
        "cantle_gpu_info",
        "Always 1; the labels say what the GPU is and how it is used.",
    );
    for (gpu, index, node) in gpus(nodes) {
        let mode = serde_json::to_value(gpu.mode).ok();
        let mode = mode.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
        let labels = [
            ("gpu", &*index),
            ("UUID", &gpu.uuid),
            ("Hostname", node),
            ("model", &gpu.model),
            ("mode", mode),
        ];
        metrics.sample(&labels, 1.0);
    }
    let mut gauge = |name, help: &str, value: fn(&GpuView) -> f64| {
        metrics.family(MetricKind::Gauge, name, help);
        for (gpu, index, node) in gpus(nodes) {
            metrics.sample(&[("gpu", &index), ("UUID", &gpu.uuid), ("Hostname", node)], value(gpu));
        }
    };
    gauge("cantle_gpu_memory_bytes", "Memory of the GPU.", |gpu| precise(gpu.memory_bytes));
    gauge("cantle_gpu_allocated_ratio", "Part of the GPU that is allocated.", |gpu| {
        f64::from(gpu.allocated_milli) / 1000.0
    });
    gauge("cantle_gpu_limits_bytes", "Sum of the memory limits of the slices on the GPU.", |gpu| {
        precise(gpu.slices.iter().map(|slice| slice.memory_limit_bytes).sum())
    });
    gauge("cantle_gpu_used_bytes", "Memory that the tasks on the GPU use.", |gpu| {
        precise(gpu.slices.iter().map(|slice| slice.memory_used_bytes).sum())
    });
}

#[expect(clippy::unnecessary_wraps, reason = "what a family of metrics takes")]
fn ratio(milli: u32) -> Option<f64> {
    Some(f64::from(milli) / 1000.0)
}

fn of_slices(metrics: &mut Exposition, nodes: &[NodeView], tasks: &[TaskView]) {
    let tasks: BTreeMap<&str, &TaskView> = tasks.iter().map(|task| (task.id.as_str(), task)).collect();
    let mut family = |kind, name, help: &str, value: fn(&SliceView) -> Option<f64>| {
        metrics.family(kind, name, help);
        for (gpu, index, node) in gpus(nodes) {
            for slice in &gpu.slices {
                let Some(value) = value(slice) else { continue };
                let task = tasks.get(slice.task.as_str());
                let text = |field: fn(&TaskView) -> Option<&String>| {
                    task.and_then(|task| field(task)).map_or("", String::as_str)
                };
                let labels = SliceLabels {
                    gpu: &index,
                    uuid: &gpu.uuid,
                    node,
                    mig_profile: slice.mig.as_ref().map_or("", |mig| &mig.profile),
                    slice: &slice.lease,
                    task: &slice.task,
                };
                let task_labels = [
                    ("task_name", text(|task| Some(&task.name))),
                    ("queue", text(|task| task.queue.as_ref())),
                    ("project", text(|task| task.project.as_ref())),
                ];
                metrics.sample(&[labels.pairs().as_slice(), &task_labels].concat(), value);
            }
        }
    };
    let gauge = MetricKind::Gauge;
    family(gauge, "cantle_slice_allocated_ratio", "Part of the GPU that the slice is.", |slice| {
        ratio(slice.milli)
    });
    family(gauge, "cantle_slice_memory_limit_bytes", "What the task may use.", |slice| {
        Some(precise(slice.memory_limit_bytes))
    });
    family(gauge, "cantle_slice_memory_used_bytes", "What the task uses.", |slice| {
        Some(precise(slice.memory_used_bytes))
    });
    family(
        gauge,
        "cantle_slice_compute_request_ratio",
        "Part of the compute time that it may count on.",
        |slice| slice.compute.and_then(|compute| ratio(compute.request_milli)),
    );
    family(
        gauge,
        "cantle_slice_compute_limit_ratio",
        "Part of the compute time that it never exceeds.",
        |slice| slice.compute.and_then(|compute| ratio(compute.limit_milli?)),
    );
    let help = "Part that it had of the compute time that slices with a request used in the last second.";
    family(gauge, "cantle_slice_compute_share_ratio", help, |slice| {
        slice.compute.and_then(|compute| Some(f64::from(compute.share_ppm?) / 1e6))
    });
    let help = "Time that its threads have waited for their turn.";
    family(MetricKind::Counter, "cantle_slice_compute_wait_seconds", help, |slice| {
        slice.compute.map(|compute| precise(compute.gate_wait_us) / 1e6)
    });
}

/// Seconds for which the task that waits longest has been in each queue, by queue.
async fn longest_waits(ui: &Ui) -> Result<BTreeMap<String, f64>, ApiError> {
    let now_us = now_us();
    let queues = ui.api.app.store.queues().await?;
    let longest = queues.into_iter().map(|queue| {
        let since_us = queue.entries.iter().map(|(_, added_us)| *added_us).min().unwrap_or(now_us);
        (queue.name, precise(now_us.saturating_sub(since_us).max(0).unsigned_abs()) / 1e6)
    });
    Ok(longest.collect())
}

fn of_queues(metrics: &mut Exposition, queues: &[QueueView], longest_s: &BTreeMap<String, f64>) {
    let mut gauge = |name, help: &str, value: &dyn Fn(&QueueView) -> f64| {
        metrics.family(MetricKind::Gauge, name, help);
        for queue in queues {
            metrics.sample(&[("queue", &queue.name)], value(queue));
        }
    };
    gauge("cantle_queue_waiting_tasks", "Tasks that wait in the queue.", &|queue| precise(queue.waiting));
    gauge("cantle_queue_running_tasks", "Tasks from the queue that run.", &|queue| precise(queue.running));
    gauge("cantle_queue_agents", "Nodes that serve the queue and are there.", &|queue| {
        precise(queue.nodes.len().try_into().unwrap_or(u64::MAX))
    });
    gauge(
        "cantle_queue_longest_wait_seconds",
        "How long the task that waits longest has waited.",
        &|queue| longest_s.get(&queue.name).copied().unwrap_or(0.0),
    );
}

/// The GPU time of projects comes from their runs, so it is the same from every server, and a restart loses none of it.
async fn of_projects(metrics: &mut Exposition, ui: &Ui) -> Result<(), ApiError> {
    let store = &ui.api.app.store;
    let names: BTreeMap<String, String> =
        store.projects().await?.into_iter().map(|row| (row.id, row.name)).collect();
    let used = store.used_by_project(&month(now_us())).await?;
    let help = "GPU time of the project's own runs in this month (UTC), a GPU for a second.";
    metrics.family(MetricKind::Counter, "cantle_project_gpu_seconds", help);
    for (id, name) in &names {
        let used_ms = used.get(id).copied().unwrap_or(0);
        metrics.sample(&[("project", name)], precise(used_ms) / 1000.0);
    }
    let budgets = store.budgets().await?;
    let help = "The GPU time that the project and those below it may use in a month.";
    metrics.family(MetricKind::Gauge, "cantle_project_budget_gpu_seconds", help);
    for budget in budgets.iter().filter_map(|row| Some((names.get(&row.project)?, row.budget.gpu_seconds))) {
        metrics.sample(&[("project", budget.0)], precise(budget.1));
    }
    Ok(())
}

fn of_events(metrics: &mut Exposition, ui: &Ui) {
    ui.with_tally(|tally| {
        metrics.family(
            MetricKind::Counter,
            "cantle_events",
            "Decisions and what came of them, by kind, since the server's start.",
        );
        for (kind, count) in &tally.events {
            metrics.sample(&[("kind", kind)], precise(*count));
        }
        let help = "How long tasks waited in a queue until they were placed.";
        metrics.family(MetricKind::Histogram, "cantle_task_wait_seconds", help);
        for (queue, waits) in &tally.waits {
            metrics.histogram(&[("queue", queue)], waits);
        }
    });
}
