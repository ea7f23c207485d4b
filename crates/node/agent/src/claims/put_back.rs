//! Settles tasks between a queue and a start: an answer of the server got lost, or a former daemon died.

use std::time::Duration;

use cantle_clearml::queues::START_GRACE;
use cantle_clearml::{Listing, StatusReason, WireError, cantle, queues, tasks};
use cantle_model::{LeaseId, TaskStatus};

use super::{AGENT_DIED, ClaimState, Claims, Handover, Pending};
use crate::entry::{LeasedTask, TableEntry};
use crate::environment::Environment;
use crate::queues::read_backlog;
use crate::task_record::TaskRecord;

impl Claims {
    /// Brings a task of [`Claims::unsettled`] to a known state, if that can be done now.
    pub(crate) async fn settle(
        &mut self,
        env: &Environment,
        lease: &LeaseId,
    ) -> Result<Option<Handover>, WireError> {
        let Some(mut found) = self.tasks.find(lease) else { return Ok(None) };
        let Pending { entry, state } = found.get();
        match state {
            ClaimState::Returning(why) => {
                let why = why.clone();
                put_back(env, found, &why).await
            }
            ClaimState::Reserved(since) => {
                let settled = settled(env, entry, since.elapsed()).await?;
                match settled {
                    Settled::NotYet => {}
                    Settled::Nothing => found.remove().release(env),
                    Settled::Ours => found.get_mut().state = ClaimState::Returning(AGENT_DIED.to_owned()),
                }
                Ok(None)
            }
            ClaimState::Claimed => Ok(None),
        }
    }

    /// Gives back a claimed task, because the agent stops.
    pub(crate) async fn give_up(
        &mut self,
        env: &Environment,
        lease: &LeaseId,
    ) -> Result<Option<Handover>, WireError> {
        let Some(found) = self.tasks.find(lease) else { return Ok(None) };
        put_back(env, found, "the agent stopped before it started the task").await
    }
}

/// The state of a claim whose answer did not arrive.
enum Settled {
    /// The server may still give it to this agent, or requeue it.
    NotYet,
    /// Nothing has to be done any more.
    Nothing,
    /// The server has it as started, under this very lease.
    Ours,
}

/// Was the task really taken out of its queue when no answer arrived? If so it goes back to the front. A former agent may also have
/// started it for the server, and died before it could write that down and start a process.
async fn settled(
    env: &Environment,
    entry: &LeasedTask,
    reserved_for: Duration,
) -> Result<Settled, WireError> {
    let job = &entry.job;
    let (queue, task) = (&job.queue.0, &job.task.0);
    let backlog = read_backlog(env).await?;
    let is_queued = backlog.values().flat_map(|queue| &queue.waiting).any(|queued| queued.task == *task);
    let status = status(env, task).await?.map(|(status, _)| status);
    if status == Some(TaskStatus::InProgress) {
        let node = holder_of(env, task).await?.flatten();
        let is_ours = node.is_some_and(|node| node == job.node) && is_claimed_by(env, entry).await?;
        return Ok(if is_ours { Settled::Ours } else { Settled::Nothing });
    }
    if is_queued || status != Some(TaskStatus::Queued) {
        return Ok(Settled::Nothing);
    }
    if reserved_for < START_GRACE {
        return Ok(Settled::NotYet);
    }
    // cantle's server requeues unclaimed tasks, and another agent may have claimed it since: that claim must stay. This
    // agent returns its own tasks that were not recorded (the disk was full).
    match holder_of(env, task).await? {
        Some(Some(node)) if node == job.node && is_claimed_by(env, entry).await? => {
            put_in_front(env, queue, task, None).await?;
        }
        Some(_) => {}
        None => put_in_front(env, queue, task, None).await?,
    }
    Ok(Settled::Nothing)
}

/// Does this very lease hold the task? It is claimed once more: the server refuses that under any other lease.
async fn is_claimed_by(env: &Environment, entry: &LeasedTask) -> Result<bool, WireError> {
    match env.server.call_extended(&entry.report(env, None)).await {
        Err(error) if error.is_temporary() => Err(error),
        answer => Ok(answer.is_ok()),
    }
}

/// A task that was claimed and not started goes back to its queue, unless a user or another agent has decided
/// otherwise.
pub(super) async fn put_back(
    env: &Environment,
    found: TableEntry<'_, Pending>,
    why: &str,
) -> Result<Option<Handover>, WireError> {
    let entry = &found.get().entry;
    match entry.dir.disarm() {
        Ok(true) => {}
        Ok(false) => {
            // A former agent has started it after all.
            return match cantle_runtime::adopt(entry.dir.task_directory()) {
                Ok(Some(running)) => {
                    Ok(Some(Handover::Adopt { entry: found.remove().entry, running: Box::new(running) }))
                }
                Ok(None) => Ok(None),
                Err(error) => {
                    tracing::error!(%error, "a task that was started cannot be adopted yet");
                    Ok(None)
                }
            };
        }
        Err(error) => {
            tracing::error!(%error, "a task cannot be returned yet");
            return Ok(None);
        }
    }
    let (queue, task) = (&entry.job.queue.0, &entry.job.task.0);
    let why = StatusReason::PutBack(why).to_string();
    match status(env, task).await? {
        Some((TaskStatus::Queued, _)) if !is_elsewhere(env, &entry.job).await? => {
            put_in_front(env, queue, task, entry.job.run).await?;
        }
        Some((TaskStatus::InProgress, _)) if !is_elsewhere(env, &entry.job).await? => {
            requeue(env, queue, task, &why).await?;
        }
        _ => finish_put_back(env, entry).await?,
    }
    env.note("requeue", Some(task), None, why);
    found.remove().release(env);
    Ok(None)
}

/// Queues a task that a former agent has stopped to put it back; that agent died between the two steps.
pub(super) async fn finish_put_back(env: &Environment, entry: &LeasedTask) -> Result<(), WireError> {
    let (queue, task) = (&entry.job.queue.0, &entry.job.task.0);
    match status(env, task).await? {
        Some((TaskStatus::Stopped, reason)) if StatusReason::parse(&reason).is_put_back() => {
            enqueue_in_front(env, queue, task, &reason).await
        }
        _ => Ok(()),
    }
}

/// Has another node claimed or started the task, after the server gave it back? A server without `cantle.*` cannot
/// report it.
async fn is_elsewhere(env: &Environment, job: &TaskRecord) -> Result<bool, WireError> {
    let node = holder_of(env, &job.task.0).await?.flatten();
    // The job names our node: an agent that is gone may have taken the task under another name.
    Ok(node.is_some_and(|node| node != job.node))
}

/// The node that has claimed a task, if one has; `None` from a server without `cantle.*`.
async fn holder_of(env: &Environment, task: &str) -> Result<Option<Option<String>>, WireError> {
    let request = cantle::GetTasks { id: vec![task.to_owned()], ..cantle::GetTasks::default() };
    let found = env.server.call_extended(&request).await?;
    Ok(found.map(|found| found.tasks.into_iter().next().and_then(|task| task.node)))
}

/// Back into its queue, although the server has it as running already.
async fn requeue(env: &Environment, queue: &str, task: &str, why: &str) -> Result<(), WireError> {
    let reason = Some(why.to_owned());
    let stopped = tasks::Stopped {
        task: task.to_owned(),
        force: true,
        status_reason: reason.clone(),
        status_message: reason,
        run: None,
    };
    env.server.call(&stopped).await?;
    enqueue_in_front(env, queue, task, why).await
}

async fn enqueue_in_front(env: &Environment, queue: &str, task: &str, why: &str) -> Result<(), WireError> {
    let reason = Some(why.to_owned());
    let enqueue = tasks::Enqueue {
        task: task.to_owned(),
        queue: Some(queue.to_owned()),
        status_reason: reason.clone(),
        status_message: reason,
        ..tasks::Enqueue::default()
    };
    env.server.call(&enqueue).await?;
    move_to_front(env, queue, task).await
}

/// A task's status, and why it has it.
async fn status(env: &Environment, task: &str) -> Result<Option<(TaskStatus, String)>, WireError> {
    let list = Listing::fields(vec![task.to_owned()], &["id", "status", "status_reason"]);
    let found = env.server.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?.tasks;
    let found = found.into_iter().find(|found| found.id == task);
    Ok(found.and_then(|found| Some((found.status?, found.status_reason))))
}

/// Puts a task that was taken out of `queue` for this run back as the next one.
pub(super) async fn put_in_front(
    env: &Environment,
    queue: &str,
    task: &str,
    run: Option<i64>,
) -> Result<(), WireError> {
    let add = queues::AddTask { queue: queue.to_owned(), task: task.to_owned(), run };
    match env.server.call(&add).await {
        Err(error) if error.is_temporary() => return Err(error),
        // It is in a queue already, or gone: then a user or another agent has decided.
        Err(error) => tracing::info!(%task, %error, "task is not returned to its queue"),
        Ok(_) => move_to_front(env, queue, task).await?,
    }
    Ok(())
}

async fn move_to_front(env: &Environment, queue: &str, task: &str) -> Result<(), WireError> {
    let front = queues::MoveTaskToFront { queue: queue.to_owned(), task: task.to_owned() };
    env.server.call(&front).await.map(|_| ())
}
