//! Somebody wants a task stopped: noticed at the next poll. A task may ask for time to tidy up first.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use cantle_clearml::{Error as WireError, Listing, tasks};
use cantle_model::{ASKED_TO_MAKE_ROOM, ASKED_TO_STOP, LeaseId, TaskStatus};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout};

use super::entry::{Entry, Tidying};
use super::execute::News;
use super::{Agent, command};
use crate::job::Stop;
use crate::launch::Command;

/// In a task's `runtime`, written by ClearML's SDK (`register_abort_callback`).
const TIMEOUT: &str = "_abort_callback_timeout";
const POLL: &str = "_abort_poll_freq";
const COMPLETED: &str = "_abort_callback_completed";

/// What an administrator has run for a task that is a plain command before it is stopped
/// (`CLEARML_AGENT_ABORT_CALLBACK_CMD`). Code of ClearML's SDK has it run by ClearML's own agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// So long the task is left alone for it.
    pub within: Duration,
}

/// A task's wish to tidy up when it is stopped. It sees the stop for itself, and says when it is done.
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

impl Agent {
    /// Asks the server, in one call, whether somebody wants one of our tasks stopped.
    pub(crate) async fn heed_aborts(&mut self) -> Result<(), WireError> {
        let watched = self.leases_where(|entry| {
            // Whatever becomes of a task that makes room, the server knows it better than its state says.
            let makes_room = matches!(entry.tidying, Some(Tidying { then: Stop::Preempted(_), .. }));
            entry.is_running() && entry.stop.is_none() && !makes_room
        });
        for (lease, id, task) in self.look_at(watched).await? {
            let Some(stop) = wanted_stop(task.as_ref()) else { continue };
            if self.entries.get(&lease).is_some_and(|entry| entry.tidying.is_none()) {
                // The server has noted the wish itself.
                tracing::info!(task = %id, "{}", stop_words(&stop));
            }
            match task {
                Some(task) if stop == Stop::Aborted => self.stop_when_tidy(&lease, &task, stop),
                _ => self.stop(&lease, stop),
            }
        }
        Ok(())
    }

    /// The tasks under these leases, with what stopping them depends on; `None` for one that is gone.
    pub(crate) async fn look_at(
        &self,
        leases: Vec<LeaseId>,
    ) -> Result<Vec<(LeaseId, String, Option<tasks::Task>)>, WireError> {
        let id = |lease: LeaseId| Some((self.entries.get(&lease)?.job.task.0.clone(), lease));
        let watched: Vec<(String, LeaseId)> = leases.into_iter().filter_map(id).collect();
        if watched.is_empty() {
            return Ok(Vec::new());
        }
        let ids = watched.iter().map(|(id, _)| id.clone()).collect();
        let fields = [TIMEOUT, POLL, COMPLETED].map(|name| format!("runtime.{name}"));
        let fields = ["id", "status", "status_message"].into_iter().chain(fields.iter().map(String::as_str));
        let list = Listing::fields(ids, &fields.collect::<Vec<_>>());
        let answer = self.link.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?.tasks;
        let found = |id: &String| answer.iter().find(|task| task.id == *id).cloned();
        Ok(watched.into_iter().map(|(id, lease)| (lease, id.clone(), found(&id))).collect())
    }

    /// Stops who has had its time to tidy up, whatever the server says meanwhile.
    pub(crate) fn end_tidying(&mut self) {
        let now = Instant::now();
        let over = |entry: &Entry| entry.tidying.as_ref().is_some_and(|tidying| now >= tidying.until);
        let leases = self.leases_where(|entry| entry.is_running() && entry.stop.is_none() && over(entry));
        for lease in leases {
            if let Some(tidying) = self.entries.get_mut(&lease).and_then(|entry| entry.tidying.take()) {
                self.stop(&lease, tidying.then);
            }
        }
    }

    /// Runs what is to be run before a plain command is stopped. It is the administrator's, not the task's: it runs beside
    /// the task, not in its slice.
    fn run_beside(
        &self,
        lease: &LeaseId,
        abort: &AbortCommand,
        task: &Command,
        output: &Path,
        within: Duration,
    ) {
        let (abort, task, output) = (abort.clone(), task.clone(), output.to_owned());
        let (news, lease) = (self.news_sender.clone(), lease.clone());
        tokio::spawn(async move {
            let ran = run_to_end(&abort, &task, &output, within).await;
            let how = ran.unwrap_or_else(|error| format!("could not be run: {error}"));
            let told = format!("the abort callback {} {how}", abort.argv.join(" "));
            // The receiver is gone only when the daemon is; then the next one stops the task.
            let _ = news.send((lease, News::Tidied(told)));
        });
    }

    /// What was run before a task is stopped has ended: now the task is stopped.
    pub(crate) fn tidied(&mut self, lease: &LeaseId, how: &str) {
        self.tell_task("stop", lease, how);
        let tidying = self.entries.get_mut(lease).filter(|entry| entry.is_running() && entry.stop.is_none());
        if let Some(tidying) = tidying.and_then(|entry| entry.tidying.take()) {
            self.stop(lease, tidying.then);
        }
    }

    /// Stops a task once it has tidied up; at once if it never asked for time to do so.
    pub(crate) fn stop_when_tidy(&mut self, lease: &LeaseId, task: &tasks::Task, stop: Stop) {
        let callback = AbortCallback::of(&task.runtime, self.config.abort_callback_max);
        let Some(entry) = self.entries.get_mut(lease) else { return };
        let callback = callback.filter(|callback| !callback.completed);
        let command = entry.job.command.as_ref().filter(|command| !command::is_sdk(&command.argv));
        let command = self.config.abort_command.clone().zip(command.cloned());
        // A plain command in a container has no place to run something else in.
        let command = command.filter(|_| callback.is_none() && self.config.docker.is_none());
        let within = callback.map(|callback| callback.within);
        let within = within.or_else(|| Some(command.as_ref()?.0.within.min(self.config.abort_callback_max)));
        let Some(within) = within else { return self.stop(lease, stop) };
        if entry.tidying.is_some() {
            return;
        }
        // Now, so that one that ends by itself meanwhile is known to have been stopped, whoever sees its end.
        if let Err(error) = entry.dir.set_stop(&stop) {
            tracing::error!(%error, "why a task is stopped is not on disk");
        }
        entry.tidying = Some(Tidying { until: Instant::now() + within, then: stop });
        if let Some((abort, command)) = command {
            let output = entry.dir.output_path();
            self.run_beside(lease, &abort, &command, &output, within);
        }
        let words = format!("to be stopped; it has {:.0} s to tidy up", within.as_secs_f64());
        self.note("stop", Some(&task.id), None, words);
    }
}

/// Runs `abort` with a task's surroundings; what it prints goes to the end of the task's output. Says how it ended.
async fn run_to_end(
    abort: &AbortCommand,
    task: &Command,
    output: &Path,
    within: Duration,
) -> io::Result<String> {
    let (program, words) = abort.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let log = OpenOptions::new().append(true).open(output)?;
    let mut command = tokio::process::Command::new(program);
    command
        .args(words)
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

/// What ClearML's agent takes for a wish to stop.
fn wanted_stop(task: Option<&tasks::Task>) -> Option<Stop> {
    let Some(task) = task else { return Some(Stop::Superseded) };
    match task.status? {
        // The server says so with every answer about the fleet, and for whom.
        TaskStatus::InProgress if task.status_message == ASKED_TO_MAKE_ROOM => None,
        TaskStatus::InProgress if task.status_message.contains(ASKED_TO_STOP) => Some(Stop::Aborted),
        TaskStatus::InProgress | TaskStatus::Completed | TaskStatus::Publishing | TaskStatus::Unknown => None,
        TaskStatus::Created
        | TaskStatus::Queued
        | TaskStatus::Stopped
        | TaskStatus::Failed
        | TaskStatus::Closed
        | TaskStatus::Published => Some(Stop::Superseded),
    }
}

fn stop_words(stop: &Stop) -> String {
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
    fn what_counts_as_a_wish_to_stop() {
        let wanted = |status, message: &str| wanted_stop(Some(&task(status, message)));
        assert_eq!(wanted(TaskStatus::InProgress, ""), None);
        assert_eq!(wanted(TaskStatus::InProgress, "stopping"), Some(Stop::Aborted));
        assert_eq!(wanted(TaskStatus::InProgress, ASKED_TO_MAKE_ROOM), None, "it is queued again");
        assert_eq!(wanted(TaskStatus::Completed, "stopping"), None, "the task itself says it is done");
        assert_eq!(wanted(TaskStatus::Queued, ""), Some(Stop::Superseded));
        assert_eq!(wanted(TaskStatus::Stopped, ""), Some(Stop::Superseded));
        assert_eq!(wanted_stop(None), Some(Stop::Superseded), "deleted");
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
