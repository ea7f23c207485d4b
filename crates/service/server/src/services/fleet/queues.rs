//! `queues.*`.

use std::time::Duration;

use cantle_clearml::batch::{Rung, TakeTasks, TakenTasks, WaitForTasks};
use cantle_clearml::projects::Created;
use cantle_clearml::queues::{
    AddTask, Added, ClearQueue, Create, DefaultQueue, Delete, Deleted, Entry, GetById, GetDefault,
    GetNextTask, GetNumEntries, MoveTaskBackward, MoveTaskForward, MoveTaskToBack, MoveTaskToFront, NextTask,
    NumEntries, Position, RemoveTask, Removed, TaskInfo, Update,
};
use cantle_clearml::{Empty, Updated, subcode};
use cantle_model::TaskStatus;
use cantle_store::{Change, QueueRow, Taken};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use crate::app::{COMPANY, Call, USER};
use crate::clock::{new_id, now_us, rfc3339};
use crate::error::ApiError;
use crate::filter::QUEUES;
use crate::projection::{Listed, list};
use crate::routes::Routes;
use crate::services::tasks::{sizes, wishes};

/// A server that ends waits no longer for its calls.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Poll interval of a waiting call.
const LOOK_EVERY: Duration = Duration::from_secs(2);

pub(crate) fn add(routes: &mut Routes) {
    routes.on("queues.get_all", get_all);
    routes.on("queues.get_all_ex", get_all);
    routes.typed(get_by_id);
    routes.typed(create);
    routes.typed(update);
    routes.typed(delete);
    routes.typed(get_default);
    routes.typed(get_next_task);
    routes.typed(take_tasks);
    routes.typed(wait_for_tasks);
    routes.typed(get_num_entries);
    routes.typed(add_task);
    routes.typed(remove_task);
    routes.typed(clear_queue);
    routes.typed(|call, r: MoveTaskToFront| move_forward(call, r.queue, r.task, None));
    routes.typed(|call, r: MoveTaskToBack| move_back(call, r.queue, r.task, None));
    routes.typed(|call, r: MoveTaskForward| move_forward(call, r.queue, r.task, Some(r.count.unwrap_or(1))));
    routes.typed(|call, r: MoveTaskBackward| move_back(call, r.queue, r.task, Some(r.count.unwrap_or(1))));
}

async fn get_all(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let mut rows = call.store.queues().await?;
    if let Some(seen) = call.active_seen().await? {
        rows.iter_mut().for_each(|row| row.entries.retain(|(task, _)| seen.contains(task)));
    }
    if let Some(most) = body.get("max_task_entries") {
        let most = most.as_u64().and_then(|most| usize::try_from(most).ok());
        let most = most.ok_or_else(|| ApiError::invalid("max_task_entries: a number is needed"))?;
        rows.iter_mut().for_each(|row| row.entries.truncate(most));
    }
    list(&rows, &QUEUES, &body, "queues")
}

async fn get_by_id(call: Call, request: GetById) -> Result<Value, ApiError> {
    let mut row = call.store.queue(&request.queue).await?;
    if let Some(seen) = call.active_seen().await? {
        row.entries.retain(|(task, _)| seen.contains(task));
    }
    Ok(json!({ "queue": queue(&row) }))
}

async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    let name = queue_name(&request.name)?;
    let id = new_id();
    call.store.create_queue(&id, name, &doc(request.fields)?, call.now_us).await?;
    Ok(Created { id })
}

async fn update(call: Call, request: Update) -> Result<Updated, ApiError> {
    let changed = request.fields.clone();
    let name = match request.fields.get("name") {
        None => None,
        Some(Value::String(name)) => Some(queue_name(name)?.to_owned()),
        Some(_) => return Err(ApiError::invalid("name must be text")),
    };
    call.store.update_queue(&request.queue, name.as_deref(), doc(request.fields)?, call.now_us).await?;
    Ok(Updated { updated: 1, fields: changed })
}

async fn delete(call: Call, request: Delete) -> Result<Deleted, ApiError> {
    if request.force {
        let change = call.change(false, Some("queue deleted".to_owned()), None);
        call.store.clear_queue(&request.queue, &change).await?;
    }
    call.store.delete_queue(&request.queue).await?;
    Ok(Deleted { deleted: 1 })
}

async fn get_default(call: Call, _request: GetDefault) -> Result<DefaultQueue, ApiError> {
    let is_default = |row: &QueueRow| {
        let tags = row.doc.get("system_tags").and_then(Value::as_array);
        tags.is_some_and(|tags| tags.iter().any(|tag| tag == "default"))
    };
    match call.store.queues().await?.into_iter().find(is_default) {
        Some(row) => Ok(DefaultQueue { id: row.id, name: row.name }),
        None => {
            let message = "No queue is tagged as the default queue for this company";
            Err(ApiError::new(400, subcode::NO_DEFAULT_QUEUE, message))
        }
    }
}

/// Takes the next task, or waits for one.
async fn next(call: &Call, request: &GetNextTask) -> Result<Option<Taken>, ApiError> {
    let wait = Duration::from_millis(request.wait_ms.unwrap_or(0)).min(LONGEST_WAIT);
    let end = Instant::now() + wait;
    loop {
        let taken = call.store.take_next(&request.queue, request.task.as_deref(), now_us()).await?;
        if taken.is_some() || wait.is_zero() {
            return Ok(taken);
        }
        if !is_rung(call, &request.queue, end).await? {
            return Ok(None);
        }
    }
}

/// Waits until a task may have come into the queue; `false` if none has by then, or the server stops.
async fn is_rung(call: &Call, queue: &str, end: Instant) -> Result<bool, ApiError> {
    let queues = [queue.to_owned()];
    loop {
        // A ring may be lost, so it looks now and then.
        let look = end.min(Instant::now() + LOOK_EVERY);
        if let Ok(rung) = timeout_at(look, call.store.woken(&queues)).await {
            return Ok(rung);
        }
        if Instant::now() >= end {
            return Ok(false);
        }
        if call.store.is_waited_in(queue).await? {
            return Ok(true);
        }
    }
}

/// The callers poll as well, so a lost ring costs one of their intervals.
async fn wait_for_tasks(call: Call, request: WaitForTasks) -> Result<Rung, ApiError> {
    call.store.check_queues(&request.queues).await?;
    let end = Instant::now() + Duration::from_millis(request.wait_ms).min(LONGEST_WAIT);
    let rung = timeout_at(end, call.store.woken(&request.queues)).await.unwrap_or(false);
    Ok(Rung { rung })
}

async fn get_next_task(call: Call, request: GetNextTask) -> Result<NextTask, ApiError> {
    let taken = next(&call, &request).await?;
    let Some(Taken { task, added_us, run }) = taken else {
        return Ok(NextTask::default());
    };
    let info = match request.get_task_info {
        Some(true) => {
            // The caller that took a task may know its owner.
            let user = call.app.store.task(&task).await?.owner;
            Some(TaskInfo { company: COMPANY.to_owned(), user })
        }
        _ => None,
    };
    let entry = Some(Entry { task, added: rfc3339(added_us), run: Some(run) });
    Ok(NextTask { entry, task_info: info })
}

async fn take_tasks(call: Call, request: TakeTasks) -> Result<TakenTasks, ApiError> {
    let taken = call.store.take_many(&request.queue, request.count, call.now_us).await?;
    let entry = |Taken { task, added_us, run }| Entry { task, added: rfc3339(added_us), run: Some(run) };
    Ok(TakenTasks { entries: taken.into_iter().map(entry).collect() })
}

async fn get_num_entries(call: Call, request: GetNumEntries) -> Result<NumEntries, ApiError> {
    let waiting = call.store.queue(&request.queue).await?.entries.len();
    Ok(NumEntries { num: u64::try_from(waiting).unwrap_or(u64::MAX) })
}

async fn add_task(call: Call, request: AddTask) -> Result<Added, ApiError> {
    // An agent that gives a task back names its run: it has been in the queue before.
    let task = call.task(&request.task).await?;
    if request.run.is_none() {
        sizes::check_tasks(&call, &request.queue, std::slice::from_ref(&request.task)).await?;
        wishes::set(&call, &request.queue, std::slice::from_ref(&task)).await?;
    }
    let change = Change { run: request.run, ..call.change(true, None, None) };
    call.store.enqueue(&task, &request.queue, &change).await?;
    Ok(Added { added: 1 })
}

async fn remove_task(call: Call, request: RemoveTask) -> Result<Removed, ApiError> {
    let change = call.change(false, Some("removed from queue".to_owned()), None);
    let queue = Some(request.queue.as_str());
    let removed =
        call.store.dequeue(&call.task(&request.task).await?, queue, TaskStatus::Created, &change).await?;
    Ok(Removed { removed: u64::from(removed) })
}

async fn clear_queue(call: Call, request: ClearQueue) -> Result<Empty, ApiError> {
    let change = call.change(false, Some("queue cleared".to_owned()), None);
    call.store.clear_queue(&request.queue, &change).await?;
    Ok(Empty {})
}

/// A number of places; more than there are leads to the end.
fn places(by: Option<u64>) -> Option<usize> {
    by.map(|by| usize::try_from(by).unwrap_or(usize::MAX))
}

fn position(at: usize) -> Position {
    Position { position: u64::try_from(at).unwrap_or(u64::MAX) }
}

async fn move_forward(
    call: Call,
    queue: String,
    task: String,
    by: Option<u64>,
) -> Result<Position, ApiError> {
    let task = call.task(&task).await?;
    Ok(position(call.store.move_forward(&queue, &task, places(by)).await?))
}

async fn move_back(call: Call, queue: String, task: String, by: Option<u64>) -> Result<Position, ApiError> {
    let task = call.task(&task).await?;
    Ok(position(call.store.move_back(&queue, &task, places(by)).await?))
}

/// Names of queues are written on command lines as `NAME=SPEC`.
pub(crate) fn queue_name(name: &str) -> Result<&str, ApiError> {
    if name.trim().is_empty() {
        return Err(ApiError::invalid("a queue needs a name"));
    }
    Ok(name)
}

/// Members that are kept unchanged, each of the type that clients require.
fn doc(mut fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    fields.retain(|name, _| matches!(name.as_str(), "tags" | "system_tags" | "metadata"));
    for (name, value) in &fields {
        let right = match name.as_str() {
            "metadata" => value.is_object(),
            _ => value.as_array().is_some_and(|words| words.iter().all(Value::is_string)),
        };
        if !right {
            return Err(ApiError::invalid(format!("{name} has the wrong type")));
        }
    }
    Ok(fields)
}

impl Listed for QueueRow {
    fn object(&self) -> Value {
        queue(self)
    }
}

fn queue(row: &QueueRow) -> Value {
    let mut queue = Map::new();
    let entry = |(task, added_us): &(String, i64)| json!({"task": task, "added": rfc3339(*added_us)});
    for (name, value) in [
        ("id", json!(row.id)),
        ("name", json!(row.name)),
        ("display_name", json!(row.name)),
        ("user", json!(USER)),
        ("company", json!(COMPANY)),
        ("created", json!(rfc3339(row.created_us))),
        ("last_update", json!(rfc3339(row.last_update_us))),
        ("tags", json!([])),
        ("system_tags", json!([])),
        ("metadata", json!({})),
        ("entries", row.entries.iter().map(entry).collect()),
    ] {
        queue.insert(name.to_owned(), value);
    }
    queue.extend(row.doc.clone());
    Value::Object(queue)
}
