//! From database rows to records.

use std::collections::BTreeMap;

use cantle_metrics::Fallback;
use cantle_model::{Amounts, Measured, ProjectQuota, TaskStatus};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::data::{
    EventRow, Evicted, HeldSum, LatestScalar, LogLine, ProjectRow, QueueRow, QueueSample, TaskIndex, TaskRow,
    Terms, WaitingRow, WorkerRow, WorkerSample,
};
use crate::db::{Row, without_nul};
use crate::output::models::ModelRow;
use crate::tasks::wishes::{idle, limit};
use crate::{FALLBACKS, GpuTimeRow, NodeRow, ReportRow, RunRow, Scalar, StoreError};

/// Reads a column that holds JSON.
pub(crate) fn json<T: DeserializeOwned>(row: &Row, column: &'static str) -> Result<T, StoreError> {
    let text: &str = row.try_get(column)?;
    serde_json::from_str(text)
        .map_err(|source| StoreError::Corrupt { what: format!("column {column}"), source })
}

/// JSON for a column. All records consist of strings, numbers, lists and objects, so that this cannot fail.
pub(crate) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value)
        .map_err(|source| StoreError::Corrupt { what: "a value to be written".to_owned(), source })
}

/// JSON for a column of tags. PostgreSQL's JSON has no NUL either.
pub(crate) fn tags_to_json(tags: &[String]) -> Result<String, StoreError> {
    let tags: Vec<String> = tags.iter().cloned().map(without_nul).collect();
    to_json(&tags)
}

pub(crate) fn status(row: &Row) -> Result<TaskStatus, StoreError> {
    Ok(status_of(row.try_get("status")?))
}

fn status_of(word: &str) -> TaskStatus {
    word.parse().unwrap_or_else(|_| {
        // A newer version may have written it. One such task must not keep all others from being listed.
        if FALLBACKS.count(Fallback::UnknownStatus, word) {
            tracing::warn!(
                status = word,
                "this version does not know a task status in the database; unknown is shown"
            );
        }
        TaskStatus::Unknown
    })
}

pub(crate) const TASK_INDEX: &str = "id, name, kind, status, project, parent, queue, tags, system_tags, created_us, \
     last_update_us, status_changed_us, started_us, completed_us";

pub(crate) fn task_index(row: &Row) -> Result<TaskIndex, StoreError> {
    Ok(TaskIndex {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        kind: row.try_get("kind")?,
        status: status(row)?,
        project: row.try_get("project")?,
        parent: row.try_get("parent")?,
        queue: row.try_get("queue")?,
        tags: json(row, "tags")?,
        system_tags: json(row, "system_tags")?,
        created_us: row.try_get("created_us")?,
        last_update_us: row.try_get("last_update_us")?,
        status_changed_us: row.try_get("status_changed_us")?,
        started_us: row.try_get("started_us")?,
        completed_us: row.try_get("completed_us")?,
    })
}

pub(crate) fn task(row: &Row) -> Result<TaskRow, StoreError> {
    Ok(TaskRow {
        index: task_index(row)?,
        owner: row.try_get("owner")?,
        status_reason: row.try_get("status_reason")?,
        status_message: row.try_get("status_message")?,
        stop_asked: flag(row, "stop_asked")?,
        last_worker: row.try_get("last_worker")?,
        last_worker_report_us: row.try_get("last_worker_report_us")?,
        last_iteration: row.try_get("last_iteration")?,
        run: row.try_get("run")?,
        taken_us: row.try_get("taken_us")?,
        node: row.try_get("node")?,
        lease: row.try_get("lease")?,
        slices: json(row, "slices")?,
        exit_code: row.try_get("exit_code")?,
        reason: row.try_get("reason")?,
        terms: terms(row)?,
        evicted: evicted(row)?,
        time: limit(row.try_get("time_limit_s")?),
        idle: idle(row.try_get("idle_limit_s")?),
        doc: json(row, "doc")?,
    })
}

/// The holdings of one or several tasks.
pub(crate) fn amounts(row: &Row) -> Result<Amounts, StoreError> {
    let amount = |column| row.try_get(column).map(i64::unsigned_abs);
    Ok(Amounts([amount("milli")?, amount("cpu_milli")?, amount("memory_bytes")?]))
}

fn terms(row: &Row) -> Result<Terms, StoreError> {
    let Amounts([milli, cpu_milli, memory_bytes]) = amounts(row)?;
    Ok(Terms { cpu_milli, memory_bytes, preemptible: flag(row, "preemptible")?, quota_milli: Some(milli) })
}

fn flag(row: &Row, column: &str) -> Result<bool, StoreError> {
    Ok(row.try_get::<i64, _>(column)? != 0)
}

pub(crate) fn held_sum(row: &Row) -> Result<HeldSum, StoreError> {
    Ok(HeldSum {
        project: row.try_get("project")?,
        preemptible: flag(row, "preemptible")?,
        stopping: flag(row, "stopping")?,
        amounts: amounts(row)?,
        pool_milli: BTreeMap::new(),
    })
}

pub(crate) fn waiting(row: &Row) -> Result<WaitingRow, StoreError> {
    let evicted_for: Option<String> = row.try_get("evicted_for")?;
    Ok(WaitingRow {
        task: row.try_get("id")?,
        queue: row.try_get("queue")?,
        project: row.try_get("project")?,
        evicted: evicted_for.map(|task| json(row, "evicted_cause").map(|cause| (task, cause))).transpose()?,
    })
}

fn evicted(row: &Row) -> Result<Option<Evicted>, StoreError> {
    let for_task: Option<String> = row.try_get("evicted_for")?;
    let Some(for_task) = for_task else { return Ok(None) };
    let (cause, reason) = (json(row, "evicted_cause")?, row.try_get("evicted_reason")?);
    Ok(Some(Evicted { for_task, cause, reason, time_us: row.try_get("evicted_us")? }))
}

pub(crate) fn queue(row: &Row, entries: Vec<(String, i64)>) -> Result<QueueRow, StoreError> {
    Ok(QueueRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        created_us: row.try_get("created_us")?,
        last_update_us: row.try_get("last_update_us")?,
        doc: json(row, "doc")?,
        entries,
    })
}

pub(crate) fn project(row: &Row) -> Result<ProjectRow, StoreError> {
    Ok(ProjectRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        description: row.try_get("description")?,
        created_us: row.try_get("created_us")?,
        last_update_us: row.try_get("last_update_us")?,
        quota: quota(row)?,
        doc: json(row, "doc")?,
    })
}

pub(crate) fn quota(row: &Row) -> Result<Option<ProjectQuota>, StoreError> {
    let text: Option<String> = row.try_get("quota")?;
    text.map(|_| json(row, "quota")).transpose()
}

pub(crate) fn worker(row: &Row) -> Result<WorkerRow, StoreError> {
    Ok(WorkerRow {
        id: row.try_get("id")?,
        registered_us: row.try_get("registered_us")?,
        last_seen_us: row.try_get("last_seen_us")?,
        timeout_s: row.try_get("timeout_s")?,
        task: row.try_get("task")?,
        queue: row.try_get("queue")?,
        queues: json(row, "queues")?,
        tags: json(row, "tags")?,
        ip: row.try_get("ip")?,
        machine_stats: row.try_get("machine_stats")?,
    })
}

pub(crate) fn node(row: &Row) -> Result<NodeRow, StoreError> {
    Ok(NodeRow {
        node: row.try_get("node")?,
        last_seen_us: row.try_get("last_seen_us")?,
        interval_ms: row.try_get("interval_ms")?,
        report: row.try_get("report")?,
    })
}

pub(crate) fn event(row: &Row) -> Result<EventRow, StoreError> {
    Ok(EventRow {
        id: row.try_get("id")?,
        time_us: row.try_get("time_us")?,
        kind: row.try_get("kind")?,
        task: row.try_get("task")?,
        queue: row.try_get("queue")?,
        node: row.try_get("node")?,
        message: row.try_get("message")?,
        who: row.try_get("who")?,
    })
}

pub(crate) fn log_line(row: &Row) -> Result<LogLine, StoreError> {
    Ok(LogLine {
        id: row.try_get("id")?,
        task: row.try_get("task")?,
        timestamp_ms: row.try_get("timestamp_ms")?,
        worker: row.try_get("worker")?,
        level: row.try_get("level")?,
        msg: row.try_get("msg")?,
    })
}

pub(crate) fn scalar(row: &Row) -> Result<Scalar, StoreError> {
    Ok(Scalar {
        task: row.try_get("task")?,
        metric: row.try_get("metric")?,
        variant: row.try_get("variant")?,
        iter: row.try_get("iter")?,
        timestamp_ms: row.try_get("timestamp_ms")?,
        value: row.try_get("value")?,
    })
}

pub(crate) fn latest_scalar(row: &Row) -> Result<LatestScalar, StoreError> {
    let (least, greatest) = (row.try_get("least")?, row.try_get("greatest")?);
    Ok(LatestScalar { last: scalar(row)?, least, greatest })
}

pub(crate) fn report(row: &Row) -> Result<ReportRow, StoreError> {
    Ok(ReportRow {
        task: row.try_get("task")?,
        kind: row.try_get("kind")?,
        metric: row.try_get("metric")?,
        variant: row.try_get("variant")?,
        iter: row.try_get("iter")?,
        timestamp_ms: row.try_get("timestamp_ms")?,
        doc: json(row, "doc")?,
    })
}

pub(crate) fn model(row: &Row) -> Result<ModelRow, StoreError> {
    Ok(ModelRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        task: row.try_get("task")?,
        project: row.try_get("project")?,
        owner: row.try_get("owner")?,
        created_us: row.try_get("created_us")?,
        last_update_us: row.try_get("last_update_us")?,
        doc: json(row, "doc")?,
    })
}

pub(crate) fn run(row: &Row) -> Result<RunRow, StoreError> {
    let outcome: Option<&str> = row.try_get("outcome")?;
    Ok(RunRow {
        task: row.try_get("task")?,
        run: row.try_get("run")?,
        project: row.try_get("project")?,
        queue: row.try_get("queue")?,
        owner: row.try_get("owner")?,
        name: row.try_get("name")?,
        queued_us: row.try_get("queued_us")?,
        taken_us: row.try_get("taken_us")?,
        started_us: row.try_get("started_us")?,
        ended_us: row.try_get("ended_us")?,
        node: row.try_get("node")?,
        lease: row.try_get("lease")?,
        slices: json(row, "slices")?,
        changes: Vec::new(),
        exit_code: row.try_get("exit_code")?,
        outcome: outcome.map(status_of),
        why: row.try_get("why")?,
        tags: row.try_get::<Option<&str>, _>("tags")?.map_or_else(Vec::new, tags_of),
        preemptible: row.try_get::<Option<i64>, _>("preemptible")?.map(|flag| flag != 0),
        measured: Measured {
            peak_bytes: row.try_get::<Option<i64>, _>("peak_bytes")?.map(i64::cast_unsigned),
            gpu_time_us: row.try_get::<Option<i64>, _>("gpu_time_us")?.map(i64::cast_unsigned),
        },
    })
}

/// Tags as they are stored. Tags that another version wrote in another form count as none.
fn tags_of(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_default()
}

pub(crate) fn gpu_time(row: &Row) -> Result<GpuTimeRow, StoreError> {
    Ok(GpuTimeRow {
        gpu: row.try_get("gpu")?,
        from_us: row.try_get("from_us")?,
        to_us: row.try_get("to_us")?,
        node: row.try_get("node")?,
        model: row.try_get("model")?,
        pools: row.try_get("pools")?,
        state: row.try_get("state")?,
    })
}

pub(crate) fn queue_sample(row: &Row) -> Result<QueueSample, StoreError> {
    Ok(QueueSample {
        queue: row.try_get("queue")?,
        time_us: row.try_get("time_us")?,
        waiting: row.try_get("waiting")?,
        total_wait_s: row.try_get("total_wait_s")?,
    })
}

pub(crate) fn worker_sample(row: &Row) -> Result<WorkerSample, StoreError> {
    Ok(WorkerSample {
        worker: row.try_get("worker")?,
        time_us: row.try_get("time_us")?,
        busy: row.try_get::<i64, _>("busy")? != 0,
        machine_stats: json(row, "machine_stats")?,
    })
}
