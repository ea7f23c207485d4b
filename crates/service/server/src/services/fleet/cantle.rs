//! `cantle.*`: the reports of nodes, and the views for users.

use std::collections::BTreeMap;

use cantle_clearml::cantle::{
    AddEvents, EventView, EventViews, ExplainTask, GetEvents, GetNodes, GetQueues, GetTasks, NodeView, Nodes,
    QueueView, QueueViews, ReportNode, ReportTask, SubmitTask, TaskExplanation, TaskView, TaskViews,
};
use cantle_clearml::projects::Created;
use cantle_clearml::queues::is_cpu_auto;
use cantle_clearml::runs::{GetRuns, RunView, RunViews};
use cantle_clearml::{ArrayView, Empty, subcode};
use cantle_model::{HostLimit, TaskStatus};
use cantle_store::{
    ArrayProgress, EventRow, NodeRow, QueueRow, RunRow, StoreError, TaskClaim, TaskFilter, TaskRow, Terms,
};
use serde_json::Value;

use super::nodes;
use crate::app::Call;
use crate::clock::{is_id, rfc3339};
use crate::error::ApiError;
use crate::gpu_times;
use crate::projection::few;
use crate::rights::act::See;
use crate::rights::{Register, Right};
use crate::routes::Routes;
use crate::services::people::quotas;
use crate::services::tasks::explain::Board;
use crate::services::tasks::{sizes, wishes};
use crate::task_json;

const TASKS: u64 = 500;
const EVENTS: u64 = 200;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(report_node);
    routes.typed(get_nodes);
    routes.typed(report_task);
    routes.typed(get_tasks);
    routes.typed(get_runs);
    routes.typed(get_queues);
    routes.typed(add_events);
    routes.typed(get_events);
    routes.typed(explain_task);
    routes.typed(submit_task);
}

async fn report_node(call: Call, request: ReportNode) -> Result<Empty, ApiError> {
    if request.node.is_empty() {
        return Err(ApiError::invalid("node is missing"));
    }
    let row = NodeRow {
        node: request.node.clone(),
        last_seen_us: call.now_us,
        interval_ms: i64::try_from(request.interval_ms).unwrap_or(i64::MAX),
        report: serde_json::to_string(&request).map_err(ApiError::unreadable)?,
    };
    call.store.report_node(&row).await?;
    gpu_times::reported(&call.store, &request, call.now_us).await?;
    Ok(Empty {})
}

async fn get_nodes(call: Call, _request: GetNodes) -> Result<Nodes, ApiError> {
    let mut nodes: Vec<NodeView> = nodes::all(&call).await?.into_iter().map(nodes::Node::view).collect();
    if let Some(seen) = call.active_seen().await? {
        // Everybody may see how much of a GPU is taken, but not who took it.
        let slices = nodes.iter_mut().flat_map(|node| &mut node.gpus).flat_map(|gpu| &mut gpu.slices);
        for slice in slices.filter(|slice| !seen.contains(&slice.task)) {
            slice.task.clear();
            slice.direct = None;
        }
    }
    Ok(Nodes { nodes })
}

async fn report_task(call: Call, request: ReportTask) -> Result<Empty, ApiError> {
    let ReportTask { task, node, lease, run, slices, quota_milli, host, exit_code, message, measured } =
        request;
    let exit_code = exit_code.map(i64::from);
    let held = call.task(&task).await?;
    let terms = Terms { quota_milli, ..quotas::terms(&call.store.task(&held).await?) };
    // Its own amounts count, unless it has left them to its node.
    let terms = match host.filter(|_| terms.cpu_milli == 0) {
        Some(HostLimit { cpu_milli, memory_bytes }) => Terms { cpu_milli, memory_bytes, ..terms },
        None => terms,
    };
    let claim = TaskClaim { task, node, lease, run, slices, terms, exit_code, reason: message, measured };
    let done = call.store.claim(&held, claim, call.now_us).await;
    // So that it is not tried again before its user holds less.
    if let Err(StoreError::OverLimit { task, asked_milli, .. }) = &done {
        call.store.note_asked(task, *asked_milli).await?;
    }
    done?;
    Ok(Empty {})
}

async fn get_tasks(call: Call, request: GetTasks) -> Result<TaskViews, ApiError> {
    few(&request.id)?;
    // The page's own stream asks for the server itself, and waits for no other caller.
    let list = call.lists.begin(&call.who.user).await?;
    let _part = list.part().await?;
    let board = Board::read(&call).await?;
    let projects = call.projects().await?;
    let people = call.people.register();
    let project_names: BTreeMap<&str, &str> =
        projects.iter().map(|project| (project.id.as_str(), project.name.as_str())).collect();
    let project = match &request.project {
        None => None,
        Some(wanted) => {
            let found = projects.iter().find(|p| p.id == *wanted || p.name == *wanted);
            let unknown =
                || ApiError::new(400, subcode::INVALID_PROJECT_ID, format!("no project \"{wanted}\""));
            Some(found.ok_or_else(unknown)?.id.clone())
        }
    };
    let queue = match &request.queue {
        None => None,
        Some(wanted) => {
            let unknown = || ApiError::new(400, subcode::INVALID_QUEUE_ID, format!("no queue \"{wanted}\""));
            Some(board.queue_id(wanted).ok_or_else(unknown)?)
        }
    };
    let owner = match &request.user {
        None => None,
        Some(wanted) => {
            Some(people.id_of(wanted).ok_or_else(|| StoreError::NoUser(wanted.clone()))?.to_owned())
        }
    };
    let mine = request.mine.then(|| call.who.user.clone());
    let limit = request.limit.unwrap_or(TASKS);
    let views = async |rows: Vec<TaskRow>| {
        let ids: Vec<String> = rows.iter().map(|row| row.index.id.clone()).collect();
        let mut arrays = call.store.arrays(&ids).await?;
        let view = |row: &TaskRow| {
            let array = arrays.remove(&row.index.id).map(array_view);
            TaskView { array, ..task_view(row, &board, &project_names, &people) }
        };
        Ok(TaskViews { tasks: rows.iter().map(view).collect() })
    };
    if let Some(word) = &request.find {
        return views(called(&call, word, i64::try_from(limit).ok()).await?).await;
    }
    let older_than = match request.older_than {
        None => None,
        Some(id) => Some((created_us(&call, &id).await?, id)),
    };
    let is_listed = request.id.is_empty() && request.status.is_empty() && request.array.is_none();
    let filter = TaskFilter {
        older_than,
        is_folded: is_listed,
        array: request.array,
        ids: request.id,
        statuses: request.status,
        projects: project.into_iter().collect(),
        queue,
        limit: i64::try_from(limit).ok(),
        owners: owner.into_iter().chain(mine).collect(),
        without_doc: true,
        ..TaskFilter::default()
    };
    views(call.store.tasks(&call.seen(), filter).await?).await
}

fn array_view(progress: ArrayProgress) -> ArrayView {
    let ArrayProgress { spec, waiting, running, completed, failed, stopped } = progress;
    ArrayView { indices: spec.to_string(), waiting, running, completed, failed, stopped }
}

/// The least beginning of an id that is looked for, and how many ids are.
const LEAST_OF_ID: usize = 4;
const WITH_BEGINNING: i64 = 200;

/// The tasks that the caller sees with this name, or whose ids begin with it.
async fn called(call: &Call, word: &str, limit: Option<i64>) -> Result<Vec<TaskRow>, ApiError> {
    let seen = call.seen();
    let named = TaskFilter { name: Some(word.to_owned()), limit, without_doc: true, ..TaskFilter::default() };
    let mut found = call.store.tasks(&seen, named).await?;
    let is_beginning = word.len() >= LEAST_OF_ID && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    // Imported tasks may have other ids.
    let mut ids = vec![word.to_owned()];
    if is_beginning {
        ids.extend(call.store.task_ids_from(word, WITH_BEGINNING).await?);
    }
    let filter = TaskFilter { ids, limit, without_doc: true, ..TaskFilter::default() };
    let others = call.store.tasks(&seen, filter).await?;
    found.extend(others.into_iter().filter(|row| row.index.name != word));
    Ok(found)
}

/// When a task that the caller may see was made.
async fn created_us(call: &Call, id: &str) -> Result<i64, ApiError> {
    let filter = TaskFilter { ids: vec![id.to_owned()], ..TaskFilter::default() };
    let found = call.store.task_index(&call.seen(), filter).await?;
    Ok(found.first().ok_or_else(|| StoreError::NoTask(id.to_owned()))?.created_us)
}

fn task_view(row: &TaskRow, board: &Board, projects: &BTreeMap<&str, &str>, people: &Register) -> TaskView {
    let name_of = |id: &String| projects.get(id.as_str()).map(|name| (*name).to_owned());
    TaskView {
        id: row.index.id.clone(),
        name: row.index.name.clone(),
        user: people.name(&row.owner).to_owned(),
        project: row.index.project.as_ref().and_then(name_of),
        queue: row.index.queue.as_ref().and_then(|id| board.queue_name(id)).map(str::to_owned),
        state: row.index.status,
        // Stock agents hold no lease here: their worker names its node.
        node: row.node.clone().or_else(|| row.last_worker.clone()),
        gpus: row.slices.iter().map(|slice| slice.gpu.0.clone()).collect(),
        milli: row.slices.iter().map(|slice| slice.milli.0).sum(),
        memory_limit_bytes: row.slices.iter().map(|slice| slice.memory_limit_bytes).sum(),
        reason: board.reason(row),
        exit_code: row.exit_code.and_then(|code| i32::try_from(code).ok()),
        created: rfc3339(row.index.created_us),
        started: row.index.started_us.map(rfc3339),
        ended: row.index.completed_us.map(rfc3339),
        time_limit_s: row.time,
        idle_limit_s: row.idle,
        host: Some(HostLimit { cpu_milli: row.terms.cpu_milli, memory_bytes: row.terms.memory_bytes })
            .filter(|host| *host != HostLimit::default()),
        array: None,
    }
}

async fn get_runs(call: Call, request: GetRuns) -> Result<RunViews, ApiError> {
    let task = call.task::<See>(&request.task).await?;
    let rows = call.store.runs(&task).await?;
    if rows.is_empty() {
        // A task that never ran has none; one that does not exist is a mistake of the caller.
        call.store.task(&task).await?;
    }
    let names: BTreeMap<String, String> = call.store.queue_names().await?.into_iter().collect();
    let view = |row: RunRow| RunView {
        run: row.run,
        queue: row.queue.map(|id| names.get(&id).cloned().unwrap_or(id)),
        node: row.node,
        gpus: row.slices.iter().map(|slice| slice.gpu.0.clone()).collect(),
        milli: row.slices.iter().map(|slice| slice.milli.0).sum(),
        memory_limit_bytes: row.slices.iter().map(|slice| slice.memory_limit_bytes).sum(),
        measured: row.measured,
        taken: row.taken_us.map(rfc3339),
        started: row.started_us.map(rfc3339),
        ended: row.ended_us.map(rfc3339),
        outcome: row.outcome,
        exit_code: row.exit_code.and_then(|code| i32::try_from(code).ok()),
        why: row.why,
    };
    Ok(RunViews { runs: rows.into_iter().map(view).collect() })
}

async fn get_queues(call: Call, _request: GetQueues) -> Result<QueueViews, ApiError> {
    let nodes = nodes::all(&call).await?;
    let running = TaskFilter { statuses: vec![TaskStatus::InProgress], ..TaskFilter::default() };
    let mut running_in: BTreeMap<String, u64> = BTreeMap::new();
    // They are only counted.
    for task in call.app.store.task_index(&running).await? {
        *running_in.entry(task.queue.unwrap_or_default()).or_default() += 1;
    }
    let requeues = call.store.requeues().await?;
    let (times, preempts) = (call.store.queue_times().await?, call.store.queue_preempts().await?);
    let seen = call.active_seen().await?;
    let view = |queue: QueueRow| {
        let serving = nodes.iter().filter(|node| node.alive && node.serves(&queue.name));
        QueueView {
            nodes: serving.map(|node| node.report.node.clone()).collect(),
            waiting: u64::try_from(queue.entries.len()).unwrap_or(u64::MAX),
            running: running_in.get(&queue.id).copied().unwrap_or(0),
            requeue_after_s: requeues.get(&queue.id).and_then(|ms| u64::try_from(ms / 1000).ok()),
            max_time_s: times.get(&queue.id).and_then(|times| times.max),
            default_time_s: times.get(&queue.id).and_then(|times| times.default),
            max_idle_s: times.get(&queue.id).and_then(|times| times.max_idle),
            default_idle_s: times.get(&queue.id).and_then(|times| times.default_idle),
            cpu_auto: queue.doc.get("metadata").and_then(Value::as_object).is_some_and(is_cpu_auto),
            preempt: preempts.get(&queue.id).copied(),
            tasks: queue
                .entries
                .into_iter()
                .map(|(task, _)| task)
                .filter(|task| seen.as_ref().is_none_or(|seen| seen.contains(task)))
                .collect(),
            name: queue.name,
            id: queue.id,
        }
    };
    // The order in which an agent names its queues is their priority.
    let place = |name: &str| {
        let alive = nodes.iter().filter(|node| node.alive);
        let places = alive.filter_map(|node| node.report.queues.iter().position(|queue| queue.name == name));
        places.min().unwrap_or(usize::MAX)
    };
    let mut queues: Vec<QueueView> = call.store.queues().await?.into_iter().map(view).collect();
    queues.sort_by_cached_key(|queue| (place(&queue.name), queue.name.clone()));
    Ok(QueueViews { queues })
}

async fn add_events(call: Call, request: AddEvents) -> Result<Empty, ApiError> {
    let event = |event: EventView| EventRow {
        id: 0,
        time_us: call.now_us,
        kind: event.kind,
        task: event.task,
        queue: event.queue,
        node: event.node,
        message: event.message,
        who: call.who.label(),
    };
    let ids: Vec<String> = request.events.iter().filter_map(|event| event.task.clone()).collect();
    let seen = match call.seen() {
        seen if !seen.is_all() && !ids.is_empty() => {
            Some(call.store.task_ids(&seen, TaskFilter { ids, ..TaskFilter::default() }).await?)
        }
        _ => None,
    };
    // An agent may be late: the task it reports about may be gone, or another's by now.
    let is_own = |event: &EventView| match (&seen, &event.task) {
        (Some(seen), Some(task)) => seen.contains(task),
        _ => true,
    };
    call.store.add_events(request.events.into_iter().filter(is_own).map(event).collect()).await?;
    Ok(Empty {})
}

async fn get_events(call: Call, request: GetEvents) -> Result<EventViews, ApiError> {
    let limit = i64::try_from(request.limit.unwrap_or(EVENTS)).unwrap_or(i64::MAX);
    let found = call.store.events(&call.seen(), request.task.as_deref(), request.after, limit).await?;
    let names_people = call.who.may_somewhere(Right::See);
    let view = |event: EventRow| EventView {
        id: event.id,
        time: rfc3339(event.time_us),
        kind: event.kind,
        task: event.task,
        queue: event.queue,
        node: event.node,
        message: event.message,
        who: if names_people { event.who } else { String::new() },
    };
    Ok(EventViews { events: found.into_iter().map(view).collect() })
}

async fn submit_task(call: Call, request: SubmitTask) -> Result<Created, ApiError> {
    let SubmitTask { queue, id, task } = request;
    if !is_id(&id) {
        return Err(ApiError::invalid("id: 32 hex digits in lower case are needed"));
    }
    let ids = std::slice::from_ref(&id);
    let known = call.store.owned_tasks(ids).await?;
    let is_others = known.iter().any(|task| task.owner != call.who.user);
    if is_others || !call.store.owned_models(ids).await?.is_empty() {
        return Err(ApiError::invalid("id: it is in use; choose another one"));
    }
    // The remains of a deleted task, its runs and events, would become the new one's.
    if known.is_empty() && call.store.was_task(&id).await? {
        return Err(ApiError::invalid("id: a task that was deleted had it; choose another one"));
    }
    let mut new = task_json::new_task(&call.who, id.clone(), task.name, task.kind, task.fields)?;
    sizes::check(&call, &queue, std::iter::once(new.doc.get("hyperparams"))).await?;
    new.wishes =
        wishes::of_new(&call, &queue, new.project.as_deref(), &id, new.doc.get("hyperparams")).await?;
    let change = call.change(false, None, None);
    match call.store.submit(&new, &queue, &change).await {
        // The first request arrived, its answer did not. Whose it is, is asked of the store itself.
        Err(_) if call.app.store.task(&id).await.is_ok_and(|task| task.owner == call.who.user) => {
            Ok(Created { id })
        }
        done => Ok(done.map(|()| Created { id })?),
    }
}

async fn explain_task(call: Call, request: ExplainTask) -> Result<TaskExplanation, ApiError> {
    let task = call.store.task(&call.task::<See>(&request.task).await?).await?;
    Ok(Board::read(&call).await?.explain(&task))
}
