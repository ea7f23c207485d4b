//! `tasks.*`: the calls that change the state of a task.

use cantle_clearml::batch::{CompleteTasks, TaskRun};
use cantle_clearml::tasks::{
    Close, Completed, Dequeue, Dequeued, Enqueue, Enqueued, Failed, Ping, Publish, Reset, ResetReply,
    Started, StartedReply, Stop, Stopped,
};
use cantle_clearml::{Empty, StopRequest, Updated};
use cantle_model::TaskStatus;
use cantle_store::{Change, Store, StoreError, TaskEdit, TaskRow};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::many::{Many, for_each};
use super::{sizes, wishes};
use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::rights::Right;
use crate::routes::Routes;
use crate::services::fleet::nodes;
use crate::services::fleet::queues::queue_name;

/// ClearML's rule: a worker that reported for the task within this time still runs it.
const WORKER_ALIVE_US: i64 = 600 * 1_000_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(enqueue);
    routes.typed(dequeue);
    routes.typed(started);
    routes.typed(stop);
    routes.typed(completed);
    routes.typed(reset);
    routes.typed(ping);
    routes.typed(|call, r: Stopped| {
        let change = Change { run: r.run, ..call.change(r.force, r.status_reason, r.status_message) };
        become_status(call, TaskStatus::Stopped, r.task, change)
    });
    routes.typed(|call, r: Failed| {
        let change = Change { run: r.run, ..call.change(r.force, r.status_reason, r.status_message) };
        become_status(call, TaskStatus::Failed, r.task, change)
    });
    routes.typed(|call, r: Close| {
        let change = Change { run: r.run, ..call.change(r.force, r.status_reason, r.status_message) };
        become_status(call, TaskStatus::Closed, r.task, change)
    });
    routes.typed(publish);
    routes.on("tasks.archive", |call, r| archive(call, r, true));
    routes.on("tasks.unarchive", |call, r| archive(call, r, false));
    routes.on("tasks.enqueue_many", enqueue_many);
    routes.typed(complete_tasks);
    routes.on("tasks.stop_many", |call, many: Many| async move { for_each(&call, "task", many, stop).await });
    routes.on("tasks.dequeue_many", |call, many: Many| async move {
        for_each(&call, "task", many, dequeue).await
    });
    routes
        .on("tasks.reset_many", |call, many: Many| async move { for_each(&call, "task", many, reset).await });
    routes.on("tasks.publish_many", |call, many: Many| async move {
        for_each(&call, "task", many, publish).await
    });
    routes.on("tasks.archive_many", |call, many: Many| async move {
        for_each(&call, "task", many, |call, r| archive_one(call, r, true)).await
    });
    routes.on("tasks.unarchive_many", |call, many: Many| async move {
        for_each(&call, "task", many, |call, r| archive_one(call, r, false)).await
    });
}

fn status_field(status: TaskStatus) -> Map<String, Value> {
    Map::from_iter([("status".to_owned(), json!(status))])
}

async fn enqueue(call: Call, request: Enqueue) -> Result<Enqueued, ApiError> {
    let queue = queue_of(&call, &request).await?;
    sizes::check_tasks(&call, &queue, std::slice::from_ref(&request.task)).await?;
    let force = request.force.unwrap_or(false);
    let change = call.change(force, request.status_reason, request.status_message);
    let task = call.task(&request.task).await?;
    wishes::set(&call, &queue, std::slice::from_ref(&task)).await?;
    call.store.enqueue(&task, &queue, &change).await?;
    let queue_watched = match request.verify_watched_queue {
        Some(true) => Some(is_watched(&call, &queue).await?),
        _ => None,
    };
    Ok(Enqueued { queued: 1, updated: 1, fields: status_field(TaskStatus::Queued), queue_watched })
}

/// All at once if all may enter; else one by one, because each gets an answer of its own.
async fn enqueue_many(call: Call, many: Many) -> Result<Value, ApiError> {
    let rest: Enqueue = many.request("task", "")?;
    let queue = queue_of(&call, &rest).await?;
    let change = call.change(rest.force.unwrap_or(false), rest.status_reason, rest.status_message);
    let (mut succeeded, mut failed) = (Vec::new(), Vec::new());
    for ids in many.ids.chunks(Store::BATCH) {
        let tasks = call.tasks(ids).await?;
        let at_once =
            rest.verify_watched_queue.is_none() && sizes::check_tasks(&call, &queue, ids).await.is_ok();
        let at_once = at_once && wishes::set(&call, &queue, &tasks).await.is_ok();
        if at_once && call.store.enqueue_many(&tasks, &queue, &change).await.is_ok() {
            let fields = status_field(TaskStatus::Queued);
            succeeded
                .extend(ids.iter().map(|id| json!({"id": id, "queued": 1, "updated": 1, "fields": fields})));
            continue;
        }
        let each = for_each(&call, "task", many.of(ids), enqueue).await?;
        for (all, name) in [(&mut succeeded, "succeeded"), (&mut failed, "failed")] {
            all.extend(each[name].as_array().into_iter().flatten().cloned());
        }
    }
    Ok(json!({ "succeeded": succeeded, "failed": failed }))
}

/// The queue that a request names for a task.
async fn queue_of(call: &Call, request: &Enqueue) -> Result<String, ApiError> {
    match (&request.queue, &request.queue_name) {
        (Some(id), _) => Ok(id.clone()),
        (None, Some(name)) => queue_by_name(call, name).await,
        (None, None) => Err(ApiError::invalid("queue or queue_name is needed")),
    }
}

/// The queue of this name; it is made if there is none.
async fn queue_by_name(call: &Call, name: &str) -> Result<String, ApiError> {
    let name = queue_name(name)?;
    if let Some(found) = call.store.queues().await?.into_iter().find(|queue| queue.name == name) {
        return Ok(found.id);
    }
    if !call.who.may_everywhere(Right::Manage) {
        let what = format!("to make the queue {name}, which does not exist,");
        return Err(ApiError::forbidden(&call.who, Right::Manage, &what, None));
    }
    let id = new_id();
    match call.store.create_queue(&id, name, &Map::new(), call.now_us).await {
        Ok(()) => return Ok(id),
        Err(StoreError::NameTaken { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let found = call.store.queues().await?.into_iter().find(|queue| queue.name == name);
    found.map(|queue| queue.id).ok_or_else(|| StoreError::NoQueue(name.to_owned()).into())
}

async fn is_watched(call: &Call, queue: &str) -> Result<bool, ApiError> {
    let since_us = call.now_us - WORKER_ALIVE_US;
    let workers = call.store.workers(since_us).await?;
    Ok(workers.iter().any(|worker| worker.queues.iter().any(|id| id == queue)))
}

async fn dequeue(call: Call, request: Dequeue) -> Result<Dequeued, ApiError> {
    let to = request.new_status.unwrap_or(TaskStatus::Created);
    let change = call.change(false, request.status_reason, request.status_message);
    let task = call.task(&request.task).await?;
    if !call.store.dequeue(&task, None, to, &change).await? {
        // A task that an agent started has left its queue already; agents call this once more to be sure.
        let status = call.store.task(&task).await?.index.status;
        return Ok(Dequeued { fields: status_field(status), ..Dequeued::default() });
    }
    Ok(Dequeued { dequeued: 1, updated: 1, fields: status_field(to) })
}

async fn started(call: Call, request: Started) -> Result<StartedReply, ApiError> {
    let change = call.change(request.force, request.status_reason, request.status_message);
    let change = Change { run: request.run, ..change };
    let from =
        call.store.set_status(&call.task(&request.task).await?, TaskStatus::InProgress, &change).await?;
    let started = u64::from(from != TaskStatus::InProgress);
    Ok(StartedReply { updated: 1, started, fields: status_field(TaskStatus::InProgress) })
}

/// Asks the worker that runs the task to stop it; a task that no worker runs is stopped at once.
async fn stop(call: Call, request: Stop) -> Result<Updated, ApiError> {
    let task = call.task(&request.task).await?;
    let row = call.store.task(&task).await?;
    let status = row.index.status;
    if status == TaskStatus::InProgress && is_run_by_agent(&call, &row).await? {
        let message = StopRequest::Abort.to_string();
        let change = call.change(request.force, request.status_reason, Some(message.clone()));
        call.store.ask_to_stop(&task, &change).await?;
        let fields = Map::from_iter([("status_message".to_owned(), json!(message))]);
        return Ok(Updated { updated: 1, fields });
    }
    if status.is_final() {
        // Stopping a task that has ended changes nothing, least of all how it ended.
        return Ok(Updated { updated: 0, fields: status_field(status) });
    }
    let change = call.change(request.force, request.status_reason.clone(), request.status_message.clone());
    call.store.set_status(&task, TaskStatus::Stopped, &change).await?;
    // No more are made of an array that is stopped; those that it has are stopped, too.
    for element in call.store.live_elements(&task).await? {
        Box::pin(stop(call.clone(), Stop { task: element, ..request.clone() })).await?;
    }
    Ok(Updated { updated: 1, fields: status_field(TaskStatus::Stopped) })
}

async fn is_run_by_agent(call: &Call, row: &TaskRow) -> Result<bool, ApiError> {
    if let (Some(node), Some(_), None) = (&row.node, &row.lease, row.exit_code) {
        return nodes::is_alive(call, node).await;
    }
    let reported_us = row.last_worker.as_ref().and(row.last_worker_report_us);
    let worker_lives = reported_us.is_some_and(|us| call.now_us - us < WORKER_ALIVE_US);
    let by_hand = row.index.system_tags.iter().any(|tag| tag == "development");
    Ok(worker_lives && !by_hand)
}

async fn completed(call: Call, request: Completed) -> Result<Updated, ApiError> {
    let Completed { task, force, publish, status_reason, status_message, run } = request;
    let change = Change { run, ..call.change(force, status_reason, status_message) };
    let mut answer = become_status(call.clone(), TaskStatus::Completed, task.clone(), change.clone()).await?;
    if publish {
        become_status(call, TaskStatus::Published, task, change).await?;
        answer.fields.insert("published".to_owned(), json!(1));
    }
    Ok(answer)
}

async fn complete_tasks(call: Call, request: CompleteTasks) -> Result<Empty, ApiError> {
    let change = call.change(request.force, None, None);
    for runs in request.runs.chunks(Store::BATCH) {
        let ids: Vec<String> = runs.iter().map(|TaskRun { task, .. }| task.clone()).collect();
        let tasks = call.tasks(&ids).await?;
        let runs = tasks.into_iter().zip(runs.iter().map(|TaskRun { run, .. }| *run)).collect();
        call.store.end_many(runs, TaskStatus::Completed, &change).await?;
    }
    Ok(Empty {})
}

async fn become_status(
    call: Call,
    to: TaskStatus,
    task: String,
    change: Change,
) -> Result<Updated, ApiError> {
    call.store.set_status(&call.task(&task).await?, to, &change).await?;
    Ok(Updated { updated: 1, fields: status_field(to) })
}

async fn reset(call: Call, request: Reset) -> Result<ResetReply, ApiError> {
    let change = call.change(request.force, Some("reset".to_owned()), None);
    let clear_all = request.clear_all;
    let forget = |doc: &mut Map<String, Value>| {
        let run = ["runtime", "models", "output", "active_duration"];
        let code = ["script", "hyperparams", "configuration", "container", "execution"];
        run.iter().for_each(|name| drop(doc.remove(*name)));
        if clear_all {
            code.iter().for_each(|name| drop(doc.remove(*name)));
        } else if let Some(Value::Object(execution)) = doc.get_mut("execution") {
            execution.remove("artifacts");
        }
    };
    call.store.reset(&call.task(&request.task).await?, &change, forget).await?;
    Ok(ResetReply { updated: 1, fields: status_field(TaskStatus::Created), ..ResetReply::default() })
}

async fn ping(call: Call, request: Ping) -> Result<Empty, ApiError> {
    call.store.ping_task(&call.task(&request.task).await?, call.now_us).await?;
    Ok(Empty {})
}

#[derive(Deserialize)]
struct Archive {
    tasks: Option<Vec<String>>,
    ids: Option<Vec<String>>,
}

/// The system tag that hides something from lists.
pub(crate) const ARCHIVED: &str = "archived";

async fn archive(call: Call, request: Archive, archived: bool) -> Result<Value, ApiError> {
    let mut changed = 0;
    for task in request.tasks.or(request.ids).unwrap_or_default() {
        archive_one(call.clone(), OneTask { task }, archived).await?;
        changed += 1;
    }
    Ok(if archived { json!({ "archived": changed }) } else { json!({ "unarchived": changed }) })
}

#[derive(Deserialize)]
struct OneTask {
    task: String,
}

async fn archive_one(call: Call, OneTask { task }: OneTask, archived: bool) -> Result<Value, ApiError> {
    let task = call.task(&task).await?;
    let mut system_tags = call.store.task(&task).await?.index.system_tags;
    system_tags.retain(|tag| tag != ARCHIVED);
    if archived {
        system_tags.push(ARCHIVED.to_owned());
    }
    let edit = TaskEdit { system_tags: Some(system_tags), ..TaskEdit::default() };
    call.store.edit_task(&task, &edit, false, call.now_us).await?;
    Ok(if archived { json!({ "archived": true }) } else { json!({ "unarchived": true }) })
}

async fn publish(call: Call, r: Publish) -> Result<Updated, ApiError> {
    let change = call.change(r.force, r.status_reason, r.status_message);
    become_status(call, TaskStatus::Published, r.task, change).await
}
