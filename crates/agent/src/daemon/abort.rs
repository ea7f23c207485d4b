//! Somebody wants a task stopped: noticed at the next poll. A task may ask for time to tidy up first.

use std::time::Duration;

use cantle_clearml::{Error as WireError, Listing, tasks};
use cantle_model::{LeaseId, TaskStatus};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::Agent;
use crate::job::Stop;

/// In a task's `runtime`, written by ClearML's SDK (`register_abort_callback`).
const TIMEOUT: &str = "_abort_callback_timeout";
const POLL: &str = "_abort_poll_freq";
const COMPLETED: &str = "_abort_callback_completed";

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
        let watched: Vec<(LeaseId, String)> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_running() && entry.stop.is_none())
            .map(|(lease, entry)| (lease.clone(), entry.job.task.0.clone()))
            .collect();
        if watched.is_empty() {
            return Ok(());
        }
        let ids = watched.iter().map(|(_, task)| task.clone()).collect();
        let fields = [TIMEOUT, POLL, COMPLETED].map(|name| format!("runtime.{name}"));
        let fields = ["id", "status", "status_message"].into_iter().chain(fields.iter().map(String::as_str));
        let list = Listing::fields(ids, &fields.collect::<Vec<_>>());
        let answer = self.link.call(&tasks::GetAll { list, ..tasks::GetAll::default() }).await?.tasks;
        for (lease, id) in watched {
            let task = answer.iter().find(|task| task.id == id);
            let Some(stop) = wanted_stop(task) else { continue };
            if stop == Stop::Aborted && !task.is_none_or(|task| self.has_tidied(&lease, task)) {
                continue;
            }
            // The server has noted the wish itself.
            tracing::info!(task = %id, "{}", stop_words(&stop));
            self.stop(&lease, stop);
        }
        Ok(())
    }

    /// Has a task that somebody stopped tidied up, if it wanted to, or had its time for it?
    fn has_tidied(&mut self, lease: &LeaseId, task: &tasks::Task) -> bool {
        let Some(callback) = AbortCallback::of(&task.runtime, self.config.abort_callback_max) else {
            return true;
        };
        let Some(entry) = self.entries.get_mut(lease) else { return true };
        let is_news = entry.tidy_until.is_none();
        let until = *entry.tidy_until.get_or_insert_with(|| Instant::now() + callback.within);
        if is_news && !callback.completed {
            let words = format!("to be stopped; it has {:.0} s to tidy up", callback.within.as_secs_f64());
            self.note("stop", Some(&task.id), None, words);
        }
        callback.completed || Instant::now() >= until
    }

    /// A task that tidied up and ended by itself was stopped all the same.
    pub(crate) fn note_tidied(&mut self, lease: &LeaseId) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        if entry.tidy_until.is_none() || entry.stop.is_some() {
            return;
        }
        if let Err(error) = entry.dir.set_stop(&Stop::Aborted) {
            tracing::error!(%error, "why a task ended is not on disk");
        }
        entry.stop = Some(Stop::Aborted);
    }
}

/// What ClearML's agent takes for a wish to stop.
fn wanted_stop(task: Option<&tasks::Task>) -> Option<Stop> {
    let Some(task) = task else { return Some(Stop::Superseded) };
    match task.status? {
        TaskStatus::InProgress if task.status_message.contains("stopping") => Some(Stop::Aborted),
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
