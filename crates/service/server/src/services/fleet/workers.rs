//! `workers.*`.

use std::collections::BTreeMap;

use cantle_clearml::Empty;
use cantle_clearml::workers::{
    GetAll, GetRuntimeProperties, IdName, MachineStats, Property, Register, RuntimeProperties,
    SetRuntimeProperties, StatusReport, Unregister, Worker, Workers,
};
use cantle_model::glob;
use cantle_store::{TaskFilter, WorkerReport, WorkerRow};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::{COMPANY, Call, USER};
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::routes::Routes;

/// Default of `last_seen` of `workers.get_all`: workers that reported within the last hour.
const LAST_SEEN_S: i64 = 3600;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(register);
    routes.typed(unregister);
    routes.typed(status_report);
    routes.typed(get_all);
    routes.on("workers.get_count", get_count);
    routes.on("workers.cluster_report", cluster_report);
    routes.on("workers.cluster_unregister", cluster_report);
    routes.typed(get_runtime_properties);
    routes.typed(set_runtime_properties);
}

async fn register(call: Call, request: Register) -> Result<Empty, ApiError> {
    let report = WorkerReport {
        id: worker_id(request.worker)?,
        queues: Some(request.queues),
        tags: Some(request.tags),
        timeout_s: request.timeout.and_then(|s| i64::try_from(s).ok()),
        ip: call.ip.clone(),
        ..WorkerReport::default()
    };
    call.store.report_worker(&report, call.now_us).await?;
    Ok(Empty {})
}

async fn unregister(call: Call, request: Unregister) -> Result<Empty, ApiError> {
    call.store.unregister_worker(&worker_id(request.worker)?).await?;
    Ok(Empty {})
}

async fn status_report(call: Call, request: StatusReport) -> Result<Empty, ApiError> {
    let stats = request.machine_stats.map(|stats| serde_json::to_string(&stats)).transpose();
    let report = WorkerReport {
        id: worker_id(request.worker)?,
        task: request.task,
        queue: request.queue,
        // A child of a dynamic daemon reports no queues; one that serves some reports them each time.
        queues: (!request.queues.is_empty()).then_some(request.queues),
        tags: (!request.tags.is_empty()).then_some(request.tags),
        timeout_s: None,
        ip: call.ip.clone(),
        machine_stats: stats.map_err(ApiError::unreadable)?,
    };
    call.store.report_worker(&report, call.now_us).await?;
    if let Some(task) = report.task {
        call.store.touch_tasks(&[call.task(&task).await?], &report.id, call.now_us).await?;
    }
    Ok(Empty {})
}

/// The workers that a request selects; `last_seen_s` is the default of its limit.
async fn matching(call: &Call, request: &GetAll, last_seen_s: i64) -> Result<Vec<WorkerRow>, ApiError> {
    let since_us = match request.last_seen.unwrap_or(last_seen_s) {
        s if s <= 0 => i64::MIN,
        s => call.now_us.saturating_sub(s.saturating_mul(1_000_000)),
    };
    let mut rows = call.store.workers(since_us).await?;
    if let Some(pattern) = &request.worker_pattern {
        rows.retain(|row| glob(pattern, &row.id));
    }
    Ok(rows)
}

async fn get_count(call: Call, request: GetAll) -> Result<Value, ApiError> {
    Ok(json!({ "count": matching(&call, &request, 0).await?.len() }))
}

#[derive(Deserialize)]
struct Cluster {
    key: String,
}

/// How many GPUs a group of ClearML's agents has. The agents wait for the answer; nothing is kept, because the GPUs
/// that this server shows are those that cantle's own agents report.
async fn cluster_report(_call: Call, request: Cluster) -> Result<Empty, ApiError> {
    if request.key.is_empty() {
        return Err(ApiError::invalid("key is missing"));
    }
    Ok(Empty {})
}

async fn get_all(call: Call, request: GetAll) -> Result<Workers, ApiError> {
    let mut rows = matching(&call, &request, LAST_SEEN_S).await?;
    if let Some(seen) = call.active_seen().await? {
        rows.iter_mut().for_each(|row| row.task = row.task.take().filter(|task| seen.contains(task)));
    }
    let ids: Vec<String> = rows.iter().filter_map(|row| row.task.clone()).collect();
    let tasks = if ids.is_empty() {
        Vec::new()
    } else {
        call.store.task_index(&call.seen(), TaskFilter { ids, ..TaskFilter::default() }).await?
    };
    let names = tasks.into_iter().map(|task| (task.id, task.name)).collect();
    let queues = call.store.queues().await?.into_iter().map(|queue| (queue.id, queue.name)).collect();
    Ok(Workers { workers: rows.into_iter().map(|row| worker(row, &names, &queues)).collect() })
}

async fn get_runtime_properties(
    call: Call,
    request: GetRuntimeProperties,
) -> Result<RuntimeProperties, ApiError> {
    let properties = call.store.worker_properties(&request.worker).await?;
    let property = |(key, value)| Property { key, value };
    Ok(RuntimeProperties { runtime_properties: properties.into_iter().map(property).collect() })
}

async fn set_runtime_properties(call: Call, request: SetRuntimeProperties) -> Result<Empty, ApiError> {
    let worker = worker_id(request.worker)?;
    let properties = request.runtime_properties.into_iter();
    // A stock agent that finds its `available_gpus` empty after all GPUs were allocated crashes at each start. It never
    // needs the empty value, so the last one that it can read stays.
    let properties = properties.filter(|p| !(p.key == "available_gpus" && p.value.is_empty()));
    let properties = properties.map(|p| (p.key, p.value)).collect();
    call.store.set_worker_properties(&worker, &properties).await?;
    Ok(Empty {})
}

fn worker_id(id: String) -> Result<String, ApiError> {
    if id.is_empty() {
        return Err(ApiError::invalid("worker is missing"));
    }
    Ok(id)
}

fn worker(row: WorkerRow, tasks: &BTreeMap<String, String>, queues: &BTreeMap<String, String>) -> Worker {
    let named = |names: &BTreeMap<String, String>, id: String| {
        let name = names.get(&id).cloned().unwrap_or_default();
        IdName { id, name }
    };
    let plain = |id: &str| IdName { id: id.to_owned(), name: id.to_owned() };
    Worker {
        id: row.id,
        ip: row.ip,
        register_time: rfc3339(row.registered_us),
        register_timeout: row.timeout_s.unsigned_abs(),
        last_activity_time: rfc3339(row.last_seen_us),
        last_report_time: rfc3339(row.last_seen_us),
        task: row.task.map(|id| named(tasks, id)),
        queue: row.queue.map(|id| named(queues, id)),
        queues: row.queues.into_iter().map(|id| named(queues, id)).collect(),
        tags: row.tags,
        system_tags: Vec::new(),
        user: plain(USER),
        company: plain(COMPANY),
        machine_stats: row.machine_stats.and_then(|json| serde_json::from_str::<MachineStats>(&json).ok()),
    }
}
