//! The requests of a task that enters a queue, apart from its size ([`super::sizes`]): how long it may run, and which
//! tasks end before. It is read from the task's parameters, so that tasks of ClearML's SDK and clones have it, too.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::tasks::HyperParams;
use cantle_clearml::times::{ExtendTask, NewTimeLimit, SetQueueTimes, ShortenTask};
use cantle_clearml::{Empty, RequestedFlow, TaskRequest, subcode};
use cantle_model::{After, IdleTime, Met, TimeLimit};
use cantle_store::{AfterRow, ChangedLimit, QueueTimes, StoreError, TaskFilter, Wishes, WithParams};
use serde::Deserialize as _;
use serde_json::Value;

use crate::app::Call;
use crate::error::ApiError;
use crate::rights::act::Run;
use crate::rights::object::Task;
use crate::rights::{Allowed, Right};
use crate::routes::Routes;
use crate::services::people::quotas::project_path;
use crate::services::runs::leases::queue_named;

/// The most tasks that one waits for.
const MOST_AFTER: usize = 100;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(set_queue_times);
    routes.typed(|call, request: ExtendTask| extend(call, request));
    routes.typed(|call, request: ShortenTask| shorten(call, request));
}

/// The wishes of a new task of the caller with these parameters, as far as its queue, its project (by its id) and the caller's
/// limits allow them.
pub(crate) async fn of_new(
    call: &Call,
    queue: &str,
    project: Option<&str>,
    id: &str,
    params: Option<&Value>,
) -> Result<Wishes, ApiError> {
    let times = Times::read(call, queue).await?;
    let project = match project {
        Some(project) => Some(call.app.store.project(project).await?.name),
        None => None,
    };
    let most = times.of_others(call, &call.who.user, project.as_deref());
    // They were readable when they were written; a wish that is not is refused below.
    let found = params.and_then(|params| HyperParams::deserialize(params).ok()).unwrap_or_default();
    let RequestedFlow { notify, secrets, .. } = TaskRequest::flow_of(&found).unwrap_or_default();
    crate::services::people::notify::check_named(call, &notify).await?;
    crate::services::people::secrets::check_named(call, &secrets).await?;
    Ok(Wishes { secrets, ..wishes(call, &times, most, id, params).await? })
}

/// Sets the wishes of tasks that are about to enter a queue.
pub(crate) async fn set(call: &Call, queue: &str, tasks: &[Allowed<Task, Run>]) -> Result<(), ApiError> {
    let times = Times::read(call, queue).await?;
    let found = call.store.tasks_with_params(tasks).await?.into_iter();
    let found: BTreeMap<String, WithParams> = found.map(|task| (task.id.clone(), task)).collect();
    for task in tasks {
        let doc = found.get(task.id()).map(|found| &found.doc);
        crate::services::people::secrets::give(call, task, doc.and_then(|doc| doc.get("hyperparams")))
            .await?;
    }
    let mut all = Vec::with_capacity(found.len());
    for (id, WithParams { owner, project, doc, .. }) in found {
        let most = times.of_others(call, &owner, project.as_deref());
        let wishes = wishes(call, &times, most, &id, doc.get("hyperparams")).await?;
        all.push((id, wishes));
    }
    call.store.set_wishes(&all).await?;
    Ok(())
}

/// The limits of a queue, by its id.
async fn times_of(call: &Call, queue: &str) -> Result<QueueTimes, ApiError> {
    Ok(call.store.queue_times().await?.get(queue).copied().unwrap_or_default())
}

/// How long tasks that enter a queue may run, and be idle.
struct Times {
    queue: String,
    of_queue: QueueTimes,
    /// Of the projects that limit it, by name.
    of_projects: BTreeMap<String, TimeLimit>,
}

/// A limit that is not of a queue.
struct MostTime {
    time: TimeLimit,
    whose: String,
}

impl Times {
    async fn read(call: &Call, queue: &str) -> Result<Self, ApiError> {
        let of_queue = times_of(call, queue).await?;
        // A task's owner may not see the projects above that of the task.
        let of_projects = call.app.store.project_times().await?;
        Ok(Self { queue: queue.to_owned(), of_queue, of_projects })
    }

    /// The shortest of the limits of a task's owner, its project and those above it.
    fn of_others(&self, call: &Call, owner: &str, project: Option<&str>) -> Option<MostTime> {
        let of_project = |name: &str| {
            self.of_projects.get(name).map(|&time| MostTime { time, whose: format!("project {name}") })
        };
        let register = call.people.register();
        let of_user = register.most_time(owner);
        let of_user = of_user.map(|time| MostTime { time, whose: format!("user {}", register.name(owner)) });
        let of_projects = project.into_iter().flat_map(project_path).filter_map(of_project);
        of_projects.chain(of_user).min_by_key(|most| most.time)
    }

    /// How long a task runs that asks for `own`.
    async fn of_task(
        &self,
        call: &Call,
        own: Option<TimeLimit>,
        most: Option<MostTime>,
    ) -> Result<Option<TimeLimit>, ApiError> {
        let Some(asked) = own else {
            let of_queue = self.of_queue.default.or(self.of_queue.max);
            return Ok(of_queue.into_iter().chain(most.map(|most| most.time)).min());
        };
        let refusal = |what: String| too_long(format!("{what}; this task asks for {asked}"));
        if let Some(max) = self.of_queue.max.filter(|max| asked > *max) {
            return Err(refusal(format!("queue {} gives tasks at most {max}", self.queue_name(call).await?)));
        }
        if let Some(MostTime { time, whose }) = most.filter(|most| asked > most.time) {
            return Err(refusal(format!("tasks of {whose} run at most {time}")));
        }
        Ok(Some(asked))
    }

    /// For how long a task may be idle that asks for `own`.
    async fn idle_of_task(&self, call: &Call, own: Option<IdleTime>) -> Result<Option<IdleTime>, ApiError> {
        let Some(asked) = own else { return Ok(self.of_queue.default_idle.or(self.of_queue.max_idle)) };
        match self.of_queue.max_idle.filter(|max| asked > *max) {
            Some(max) => Err(too_long(format!(
                "queue {} lets tasks be idle for at most {max}; this task asks for {asked}",
                self.queue_name(call).await?
            ))),
            None => Ok(Some(asked)),
        }
    }

    async fn queue_name(&self, call: &Call) -> Result<String, ApiError> {
        let mut names = call.store.queue_names().await?.into_iter();
        Ok(names.find(|(id, _)| *id == self.queue).map_or_else(|| self.queue.clone(), |(_, name)| name))
    }
}

fn too_long(text: String) -> ApiError {
    ApiError::new(400, subcode::OVER_TIME, text)
}

async fn wishes(
    call: &Call,
    times: &Times,
    most: Option<MostTime>,
    task: &str,
    params: Option<&Value>,
) -> Result<Wishes, ApiError> {
    // They were readable when they were written.
    let params = params.and_then(|params| HyperParams::deserialize(params).ok()).unwrap_or_default();
    let RequestedFlow { time: own, idle, after, array, .. } = TaskRequest::flow_of(&params)
        .map_err(|error| ApiError::invalid(error.to_string()).caused_by(error))?;
    let time = times.of_task(call, own, most).await?;
    let idle = times.idle_of_task(call, idle).await?;
    Ok(Wishes { time, idle, after: open(call, task, after.0).await?, array, ..Wishes::default() })
}

/// Those of the tasks to wait for that have not ended yet. A condition that can never be met is refused.
async fn open(call: &Call, task: &str, after: Vec<After>) -> Result<Vec<After>, ApiError> {
    if after.is_empty() {
        return Ok(after);
    }
    let refused = |text: String| ApiError::new(400, subcode::NEVER_MET, text);
    if after.len() > MOST_AFTER {
        let text = format!("after: {} tasks; a task waits for at most {MOST_AFTER}", after.len());
        return Err(ApiError::invalid(text));
    }
    let mut ids = BTreeSet::new();
    if let Some(twice) = after.iter().find(|after| !ids.insert(after.task.clone())) {
        return Err(ApiError::invalid(format!("after: task {} is named twice", twice.task)));
    }
    if ids.contains(task) {
        return Err(refused("a task cannot wait for itself".to_owned()));
    }
    let filter = TaskFilter { ids: ids.iter().cloned().collect(), ..TaskFilter::default() };
    // An agent puts back what it took, and sees little else.
    let found = match call.who.may_everywhere(Right::Serve) {
        true => call.app.store.task_index(&filter).await?,
        false => call.store.task_index(&call.seen(), filter).await?,
    };
    let mut found: BTreeMap<String, _> =
        found.into_iter().map(|index| (index.id, (index.name, index.status))).collect();
    let mut open = Vec::new();
    for after in after {
        // A task that the caller may not see is as if it did not exist.
        let now = found.remove(&after.task).ok_or_else(|| StoreError::NoTask(after.task.clone()))?;
        let (other, ending) = (after.task.clone(), after.ending);
        let row = AfterRow { task: task.to_owned(), other, ending, now: Some(now) };
        match row.met() {
            Met::Yes => {}
            Met::NotYet => open.push(after),
            Met::Never => return Err(refused(format!("{} already", row.why_never(row.name())))),
        }
    }
    let others: Vec<String> = open.iter().map(|after| after.task.clone()).collect();
    if call.store.waits_for(&others, task).await? {
        return Err(refused("the tasks would wait for each other, and never start".to_owned()));
    }
    Ok(open)
}

async fn set_queue_times(call: Call, request: SetQueueTimes) -> Result<Empty, ApiError> {
    let SetQueueTimes { queue, max_time_s, default_time_s, max_idle_s, default_idle_s } = request;
    let (id, name) = queue_named(&call, &queue).await?;
    let mut times = times_of(&call, &id).await?;
    let limit = |what: &str, seconds: u64| match seconds {
        0 => Ok(None),
        _ => TimeLimit::of_seconds(seconds).map(Some).ok_or_else(|| {
            ApiError::invalid(format!("{what}: {seconds} is not between 0 and {}", TimeLimit::MOST_S))
        }),
    };
    if let Some(seconds) = max_time_s {
        times.max = limit("max_time_s", seconds)?;
    }
    if let Some(seconds) = default_time_s {
        times.default = limit("default_time_s", seconds)?;
    }
    let idle = |what: &str, seconds: u64| match seconds {
        0 => Ok(None),
        _ => IdleTime::of_seconds(seconds).map(Some).ok_or_else(|| {
            let (least, most) = (IdleTime::LEAST_S, TimeLimit::MOST_S);
            ApiError::invalid(format!("{what}: {seconds} is neither 0 nor between {least} and {most}"))
        }),
    };
    if let Some(seconds) = max_idle_s {
        times.max_idle = idle("max_idle_s", seconds)?;
    }
    if let Some(seconds) = default_idle_s {
        times.default_idle = idle("default_idle_s", seconds)?;
    }
    if let (Some(default), Some(max)) = (times.default, times.max)
        && default > max
    {
        let text = format!("queue {name} would give tasks {default} by default, and at most {max}");
        return Err(too_long(text));
    }
    if let (Some(default), Some(max)) = (times.default_idle, times.max_idle)
        && default > max
    {
        let text =
            format!("queue {name} would let tasks be idle for {default} by default, and for at most {max}");
        return Err(too_long(text));
    }
    call.store.set_queue_times(&id, times).await?;
    Ok(Empty {})
}

async fn extend(call: Call, request: ExtendTask) -> Result<NewTimeLimit, ApiError> {
    let (task, change) = (call.task(&request.task).await?, call.change(false, None, None));
    let more = |was: TimeLimit| TimeLimit::of_seconds(was.seconds().checked_add(request.by_s)?);
    Ok(NewTimeLimit { time_limit_s: call.store.extend(&task, changed(request.idle), &change, more).await? })
}

async fn shorten(call: Call, request: ShortenTask) -> Result<NewTimeLimit, ApiError> {
    let (task, change) = (call.task(&request.task).await?, call.change(false, None, None));
    let less = |was: TimeLimit| TimeLimit::of_seconds(was.seconds().checked_sub(request.by_s)?);
    Ok(NewTimeLimit { time_limit_s: call.store.shorten(&task, changed(request.idle), &change, less).await? })
}

const fn changed(idle: bool) -> ChangedLimit {
    if idle { ChangedLimit::Idle } else { ChangedLimit::Run }
}
