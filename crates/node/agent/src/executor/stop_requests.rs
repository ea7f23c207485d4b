//! Requests to stop a task, read from the server at every poll. A task may request time for its abort callback before
//! it is stopped.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cantle_clearml::StopRequest;
use cantle_clearml::quotas::{Fleet, HeldTask, Stopping};
use cantle_clearml::{Listing, WireError, tasks};
use cantle_model::{LeaseId, TaskStatus};
use cantle_node::Command;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::make_room::MakingRoom;
use super::run::{PreStop, Run};
use super::{Executor, Update, UpdateSender};
use crate::command;
use crate::entry::LeasedTask;
use crate::environment::Environment;
use crate::task_record::Stop;

/// In a task's `runtime`, written by ClearML's SDK (`register_abort_callback`).
const TIMEOUT: &str = "_abort_callback_timeout";
const POLL: &str = "_abort_poll_freq";
const COMPLETED: &str = "_abort_callback_completed";

/// The administrator's command that runs before a plain command is stopped (`CLEARML_AGENT_ABORT_CALLBACK_CMD`). Code
/// of ClearML's SDK has it run by ClearML's own agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The longest time that the stop waits for it.
    pub within: Duration,
}

/// A task's request for time when it is stopped. It sees the request to stop by itself, and reports when it is done.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AbortCallback {
    within: Duration,
    completed: bool,
}

impl AbortCallback {
    fn of(runtime: &Map<String, Value>, most: Duration) -> Option<Self> {
        let number = |name| match runtime.get(name)? {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        let timeout = number(TIMEOUT).filter(|seconds: &f64| *seconds > 0.0)?;
        let seconds = timeout + number(POLL).unwrap_or(0.0).max(0.0);
        let within = Duration::try_from_secs_f64(seconds).unwrap_or(most).min(most);
        // As Python takes it for true.
        let completed = match runtime.get(COMPLETED) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::String(text)) => !text.is_empty(),
            Some(value) => value.as_f64() != Some(0.0),
        };
        Some(Self { within, completed })
    }
}

impl Executor {
    /// Asks the server, in one call, for requests to stop our tasks.
    pub(crate) async fn handle_aborts(&mut self, env: &Environment) -> Result<(), WireError> {
        let is_watched = |run: &Run| {
            // The status of a task does not show the server's request to preempt it.
            let is_preempted = matches!(run.pre_stop(), Some(PreStop { stop: Stop::Preempted(_), .. }));
            run.is_running_unstopped() && !is_preempted
        };
        let watched = self.tasks.values().filter(|run| is_watched(run));
        let tasks = read_tasks(env, watched.map(task_id).collect()).await?;
        for run in self.tasks.values_mut().filter(|run| is_watched(run)) {
            let id = task_id(run);
            let task = tasks.get(&id);
            let limits = task.map(|task| (task.cantle_time_limit_s, task.cantle_idle_limit_s));
            let (time, idle) = limits.unwrap_or_default();
            run.set_limits(env, time, idle);
            let Some(stop) = requested_stop(task) else { continue };
            if run.pre_stop().is_none() {
                // The server has noted the request itself.
                tracing::info!(task = %id, "{}", stop_message(&stop));
            }
            match task {
                Some(task) if stop == Stop::Aborted => {
                    stop_after_callback(env, run, task, stop, &self.sender)
                }
                _ => run.stop(env, stop),
            }
        }
        Ok(())
    }

    /// Our tasks that the server has evicted for others make room: they are suspended where that is wanted and possible, else stopped as gently
    /// as after a user's request.
    pub(crate) async fn handle_evictions(
        &mut self,
        env: &Environment,
        fleet: &Fleet,
    ) -> Result<(), WireError> {
        let stopping = |held: &HeldTask| {
            let stopping = held.stopping.clone()?;
            Some((LeaseId(held.lease.clone()), stopping))
        };
        let mut evicted: BTreeMap<LeaseId, Stopping> = fleet.held.iter().filter_map(stopping).collect();
        evicted.retain(|lease, _| self.tasks.get(lease).is_some_and(Run::is_running_unstopped));
        evicted.retain(|lease, stopping| {
            let run = self.tasks.get_mut(lease).filter(|_| stopping.preempt.suspends());
            !run.is_some_and(|run| run.suspend(env, &stopping.reason, &self.sender))
        });
        let ids = evicted.keys().filter_map(|lease| self.tasks.get(lease)).map(task_id).collect();
        let tasks = read_tasks(env, ids).await?;
        for (lease, Stopping { reason, .. }) in evicted {
            let Some(mut found) = self.tasks.find(&lease) else { continue };
            let run = found.get_mut();
            // A task that the server does not have any more is stopped by the next poll for aborts.
            let Some(task) = tasks.get(&task_id(run)) else { continue };
            if run.pre_stop().is_none() {
                env.note("stop", Some(&task.id), None, format!("stopping: {reason}"));
                env.meter.counts().preemptions += u64::from(run.room != MakingRoom::Stays);
            }
            stop_after_callback(env, run, task, Stop::Preempted(reason), &self.sender);
        }
        Ok(())
    }
}

fn task_id(run: &Run) -> String {
    run.entry().job.task.0.clone()
}

/// These tasks, by id, with what stopping them depends on; one that is gone is not among them.
async fn read_tasks(env: &Environment, ids: Vec<String>) -> Result<BTreeMap<String, tasks::Task>, WireError> {
    if ids.is_empty() {
        return Ok(BTreeMap::new());
    }
    let fields = [TIMEOUT, POLL, COMPLETED].map(|name| format!("runtime.{name}"));
    let fields = ["id", "status", "status_message", "cantle_time_limit_s", "cantle_idle_limit_s"]
        .into_iter()
        .chain(fields.iter().map(String::as_str));
    let list = Listing::fields(ids, &fields.collect::<Vec<_>>());
    let answer = env.server.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?.tasks;
    Ok(answer.into_iter().map(|task| (task.id.clone(), task)).collect())
}

/// Stops a task after its abort callback; at once if it has none.
fn stop_after_callback(
    env: &Environment,
    run: &mut Run,
    task: &tasks::Task,
    stop: Stop,
    sender: &UpdateSender,
) {
    let config = &env.config;
    let callback = AbortCallback::of(&task.runtime, config.abort_callback_max);
    let callback = callback.filter(|callback| !callback.completed);
    let job = &run.entry().job;
    let command = job.command.as_ref().filter(|command| !command::is_sdk(&command.argv));
    let command = config.abort_command.clone().zip(command.cloned());
    // Nothing else can be run for a plain command in a container.
    let command = command.filter(|_| callback.is_none() && config.docker.is_none());
    let within = callback.map(|callback| callback.within);
    let within = within.or_else(|| Some(command.as_ref()?.0.within.min(config.abort_callback_max)));
    let Some(within) = within else { return run.stop(env, stop) };
    if run.pre_stop().is_some() {
        return;
    }
    run.begin_pre_stop(stop, within);
    if let Some((abort, command)) = command {
        run_pre_stop(run.entry(), abort, command, within, sender);
    }
    let message = format!("to be stopped; it has {:.0} s to tidy up", within.as_secs_f64());
    env.note("stop", Some(&task.id), None, message);
}

/// Runs what is to be run before a plain command is stopped. It is the administrator's, not the task's: it runs outside
/// the task's slice.
fn run_pre_stop(
    entry: &LeasedTask,
    abort: AbortCommand,
    task: Command,
    within: Duration,
    sender: &UpdateSender,
) {
    let (lease, output, sender) = (entry.job.lease.clone(), entry.dir.output_path(), sender.clone());
    tokio::spawn(async move {
        let ran = run_to_end(&abort, &task, &output, within).await;
        let how = ran.unwrap_or_else(|error| format!("could not be run: {error}"));
        let message = format!("the abort callback {} {how}", abort.argv.join(" "));
        let _ = sender.send((lease, Update::PreStopEnded(message)));
    });
}

/// Runs `abort` with a task's environment and directory; its output is appended to the task's. Gives how it ended, as text.
async fn run_to_end(
    abort: &AbortCommand,
    task: &Command,
    output: &Path,
    within: Duration,
) -> io::Result<String> {
    let (program, arguments) = abort.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let log = OpenOptions::new().append(true).open(output)?;
    let mut command = tokio::process::Command::new(program);
    command
        .args(arguments)
        .envs(&task.env)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .kill_on_drop(true);
    if let Some(cwd) = &task.cwd {
        command.current_dir(cwd);
    }
    Ok(match timeout(within, command.status()).await {
        Ok(status) => format!("ended with {}", status?),
        Err(_) => format!("did not end within {:.0} s", within.as_secs_f64()),
    })
}

/// The states that ClearML's agent treats as a request to stop.
fn requested_stop(task: Option<&tasks::Task>) -> Option<Stop> {
    let Some(task) = task else { return Some(Stop::Superseded) };
    match task.status? {
        TaskStatus::InProgress => match StopRequest::parse(&task.status_message)? {
            StopRequest::Abort => Some(Stop::Aborted),
            // Each answer about the fleet names them, and the task for which each is stopped.
            StopRequest::Evict => None,
        },
        TaskStatus::Completed | TaskStatus::Publishing | TaskStatus::Unknown => None,
        TaskStatus::Created
        | TaskStatus::Queued
        | TaskStatus::Stopped
        | TaskStatus::Failed
        | TaskStatus::Closed
        | TaskStatus::Published => Some(Stop::Superseded),
    }
}

fn stop_message(stop: &Stop) -> String {
    match stop {
        Stop::Aborted => "stopping: the server was asked to".to_owned(),
        Stop::Superseded => "stopping: the server has taken the task back".to_owned(),
        Stop::Shutdown => "stopping: the agent is stopping".to_owned(),
        Stop::Preempted(why) | Stop::Enforced(why) => format!("stopping: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(status: TaskStatus, message: &str) -> tasks::Task {
        tasks::Task { status: Some(status), status_message: message.to_owned(), ..tasks::Task::default() }
    }

    #[test]
    fn what_counts_as_a_request_to_stop() {
        let requested = |status, message: &str| requested_stop(Some(&task(status, message)));
        assert_eq!(requested(TaskStatus::InProgress, ""), None);
        assert_eq!(requested(TaskStatus::InProgress, "stopping"), Some(Stop::Aborted));
        assert_eq!(
            requested(TaskStatus::InProgress, StopRequest::Evict.as_str()),
            None,
            "it is queued again"
        );
        assert_eq!(requested(TaskStatus::Completed, "stopping"), None, "the task itself says it is done");
        assert_eq!(requested(TaskStatus::Queued, ""), Some(Stop::Superseded));
        assert_eq!(requested(TaskStatus::Stopped, ""), Some(Stop::Superseded));
        assert_eq!(requested_stop(None), Some(Stop::Superseded), "deleted");
    }

    #[test]
    fn time_to_tidy_up() {
        let of = |runtime: Value| AbortCallback::of(runtime.as_object().unwrap(), Duration::from_secs(1800));
        let callback =
            |seconds, completed| Some(AbortCallback { within: Duration::from_secs_f64(seconds), completed });
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({TIMEOUT: 0, POLL: "5"})), None);
        assert_eq!(of(json!({TIMEOUT: "x"})), None);
        assert_eq!(of(json!({TIMEOUT: 30.5, POLL: 5})), callback(35.5, false));
        assert_eq!(of(json!({TIMEOUT: "30", COMPLETED: "1"})), callback(30.0, true));
        assert_eq!(of(json!({TIMEOUT: "30", COMPLETED: 1})), callback(30.0, true));
        assert_eq!(of(json!({TIMEOUT: 1e9, COMPLETED: ""})), callback(1800.0, false));
        assert_eq!(of(json!({TIMEOUT: 1e300, COMPLETED: 0})), callback(1800.0, false));
    }
}
