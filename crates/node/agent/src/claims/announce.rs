//! Announces a claimed task to the server as started; repeats that after the server was unreachable.

use cantle_clearml::leases::{GetTaskToken, TaskToken};
use cantle_clearml::{WireError, subcode, tasks};
use cantle_model::{LeaseId, TaskStatus};
use cantle_node::{Command, NodeError};
use tracing::{Instrument as _, info_span};

use super::put_back::{finish_put_back, put_back};
use super::{Claims, Handover};
use crate::container::written_back;
use crate::entry::LeasedTask;
use crate::environment::Environment;

/// The server's answer to the start of a task.
enum Answer {
    Started(Box<tasks::Task>, Result<Command, NodeError>),
    /// Another node was faster, for another task of the project.
    OverQuota(String),
    /// It is stopped or deleted meanwhile, or another agent has it.
    Refused,
}

impl Claims {
    /// Tells the server that a claimed task starts.
    pub(crate) async fn announce(
        &mut self,
        env: &Environment,
        lease: &LeaseId,
    ) -> Result<Option<Handover>, WireError> {
        let Some(mut found) = self.tasks.find(lease) else { return Ok(None) };
        let span = info_span!("start", task = found.get().entry.job.task.0, %lease);
        let announced = async {
            match announce(env, &mut found.get_mut().entry).await? {
                Answer::Started(task, command) => {
                    let entry = found.remove().entry;
                    Ok(Some(Handover::Start { entry, task, command }))
                }
                Answer::OverQuota(why) => put_back(env, found, &why).await,
                Answer::Refused => {
                    finish_put_back(env, &found.get().entry).await?;
                    found.remove().release(env);
                    Ok(None)
                }
            }
        };
        announced.instrument(span).await
    }
}

async fn announce(env: &Environment, entry: &mut LeasedTask) -> Result<Answer, WireError> {
    let task = entry.job.task.0.clone();
    let reported = env.server.call_extended(&entry.report(env, None)).await;
    if let Err(error) = &reported
        && error.is_subcode(subcode::OVER_QUOTA)
    {
        return Ok(Answer::OverQuota(error.to_string()));
    }
    if unless_refused(entry, reported)?.is_none() {
        return Ok(Answer::Refused);
    }
    // As late as possible: ClearML's own server lets a stopped task be started, so a request to stop it would be lost.
    let found = env.server.call(&tasks::GetById { task: task.clone() }).await;
    let Some(found) = unless_refused(entry, found)? else { return Ok(Answer::Refused) };
    let found = found.task;
    if found.status.is_some_and(TaskStatus::is_final) {
        tracing::info!(%task, "not started: it was stopped meanwhile");
        return Ok(Answer::Refused);
    }
    let token = unless_refused(entry, token(env, entry).await)?;
    let Some(given) = token else { return Ok(Answer::Refused) };
    let command = command_of(env, entry, &found, given).await;
    let reason = Some("pulled by agent".to_owned());
    let run = entry.job.run;
    let started =
        tasks::Started { task, force: true, status_reason: reason.clone(), status_message: reason, run };
    let started = env.server.call(&started).await;
    if unless_refused(entry, started)?.is_none() {
        return Ok(Answer::Refused);
    }
    if let Ok(command) = &command {
        write_image_back(env, &found, command).await;
    }
    Ok(Answer::Started(Box::new(found), command))
}

/// The command that will be run, recorded without the secrets: they are on no disk of this node.
async fn command_of(
    env: &Environment,
    entry: &mut LeasedTask,
    task: &tasks::Task,
    given: TaskToken,
) -> Result<Command, NodeError> {
    if let Some(why) = given.no_secret {
        return Err(NodeError::Task { name: task.name.clone(), why });
    }
    let user = env.task_user(&task.name, given.user).await?;
    let command = entry.write_command(env, task, &given.token, user)?;
    Ok(Command { secrets: given.secrets, ..command })
}

/// The data of the task that the server gets: a token for this run alone. ClearML's own server has none, so there the
/// task gets one of the agent's.
async fn token(env: &Environment, entry: &LeasedTask) -> Result<TaskToken, WireError> {
    let (task, lease) = (entry.job.task.0.clone(), entry.job.lease.0.clone());
    match env.server.call_extended(&GetTaskToken { task, lease }).await? {
        Some(made) => Ok(made),
        None => Ok(TaskToken { token: env.server.new_token().await?, ..TaskToken::default() }),
    }
}

/// `None` for a task that the server refuses to hand over: deleted, or another agent has it.
fn unless_refused<T>(entry: &LeasedTask, answer: Result<T, WireError>) -> Result<Option<T>, WireError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_temporary() => Err(error),
        Err(error) => {
            tracing::warn!(lease = %entry.job.lease, %error, "not started");
            Ok(None)
        }
    }
}

/// Writes the image of [`written_back`] into the task. Only people read it: the task starts in any case.
async fn write_image_back(env: &Environment, task: &tasks::Task, command: &Command) {
    let Some(container) = written_back(env.config.docker.as_ref(), task, command) else { return };
    let fields = [("container".to_owned(), serde_json::json!(container))].into_iter().collect();
    let edit = tasks::Edit { task: task.id.clone(), force: true, fields };
    if let Err(error) = env.server.call(&edit).await {
        tracing::warn!(task = %task.id, %error, "its image is not recorded in the task");
    }
}
