//! Time limits, and idle times. They are kept without the server: the limit and the start are in the task's record, so a task ends in time also
//! when the server is away, and when the agent was started again.

use std::time::Duration;

use cantle_clearml::{TaskRequest, tasks};
use cantle_model::{IdleTime, TimeLimit};
use cantle_node::clock::now_ms;
use tokio::time::Instant;

use super::run::Run;
use crate::environment::Environment;
use crate::idle::{IdleNews, shown};
use crate::task_record::{Stop, TaskRecord};

/// How long a task may run. cantle's server knows the limits of its queues; from another server it is what the task asks for.
pub(crate) fn limit_of(task: &tasks::Task) -> Option<TimeLimit> {
    // A request that cannot be read is refused with the task's command.
    let asked = || TaskRequest::flow_of(&task.hyperparams).ok()?.time;
    task.cantle_time_limit_s.or_else(asked)
}

/// For how long a task may be idle, in the same way.
pub(crate) fn idle_limit_of(task: &tasks::Task) -> Option<IdleTime> {
    let asked = || TaskRequest::flow_of(&task.hyperparams).ok()?.idle;
    task.cantle_idle_limit_s.or_else(asked)
}

/// The end of a run that began at `began`, by a clock that cannot be set; `None` if it has no limit.
fn end(job: &TaskRecord, began: Instant) -> Option<Instant> {
    began.checked_add(job.time_limit?.duration())
}

/// When a run of a former agent began. A clock that was set back meanwhile makes it no longer than its limit.
pub(super) fn began(started_ms: Option<i64>, now: Instant) -> Instant {
    let ran_ms = started_ms.map_or(0, |started_ms| now_ms().saturating_sub(started_ms));
    let ran = Duration::from_millis(u64::try_from(ran_ms).unwrap_or(0));
    now.checked_sub(ran).unwrap_or(now)
}

impl Run {
    /// Its processes were started just now: its time begins.
    pub(super) fn begin_time(&mut self, env: &Environment) {
        self.entry_mut().job.started_ms = Some(now_ms());
        self.keep_time(env);
    }

    /// The server has these limits for it. Where it names none, it does not know limits. A change shows that somebody cares about the task.
    pub(super) fn set_limits(&mut self, env: &Environment, time: Option<TimeLimit>, idle: Option<IdleTime>) {
        let job = &mut self.entry_mut().job;
        let (time, idle) = (time.or(job.time_limit), idle.or(job.idle_limit));
        if (time, idle) == (job.time_limit, job.idle_limit) {
            return;
        }
        (job.time_limit, job.idle_limit) = (time, idle);
        self.is_cared_for = true;
        self.keep_time(env);
    }

    /// Writes down how long it may run, and tells the planner by way of its lease.
    fn keep_time(&self, env: &Environment) {
        let job = &self.entry().job;
        if let Err(error) = self.entry().dir.write(job) {
            tracing::error!(%error, "the time limit of a task is not on disk");
        }
        let ends_ms = job.started_ms.zip(job.time_limit).map(|(started_ms, limit)| started_ms + limit.ms());
        let noted = env.node.lock().and_then(|locked| match locked.lease(&job.lease)? {
            Some(mut lease) if lease.ends_ms != ends_ms => {
                lease.ends_ms = ends_ms;
                locked.put(&lease)
            }
            _ => Ok(()),
        });
        if let Err(error) = noted {
            tracing::warn!(%error, "the end of a task is not in its lease: no other task is planned up to it");
        }
    }

    /// Stops it if its time is over, as gently as after a user's request.
    pub(super) fn end_time(&mut self, env: &Environment, now: Instant) {
        let Some(limit) = self.entry().job.time_limit else { return };
        let is_over = end(&self.entry().job, self.began()).is_some_and(|end| now >= end);
        if is_over {
            self.end_for(env, "time", limit.is_over());
        }
    }

    fn end_for(&mut self, env: &Environment, kind: &str, why: String) {
        if self.is_running_unstopped() && self.pre_stop().is_none() {
            env.note_in_task_log(kind, self.entry(), &format!("stopped: {why}"));
            self.stop(env, Stop::Enforced(why));
        }
    }

    /// Warns it, or ends it, as its activity says.
    pub(super) fn idle_news(&mut self, env: &Environment, news: IdleNews) {
        match news {
            IdleNews::Warn { idle, left } => {
                let text = format!(
                    "idle for {}: it is stopped in {} unless it works, or somebody uses its terminal or notebook",
                    shown(idle),
                    shown(left)
                );
                env.note_in_task_log("idle", self.entry(), &text);
            }
            IdleNews::Resumed => env.note_in_task_log("active", self.entry(), "active again: it goes on"),
            IdleNews::Unknown(why) => {
                let text = format!("it is not stopped for being idle, which cannot be measured: {why}");
                env.note_in_task_log("watch", self.entry(), &text);
            }
            // The executor may have got another limit since.
            IdleNews::Over(limit) if self.entry().job.idle_limit == Some(limit) => {
                self.end_for(env, "time", limit.is_over());
            }
            IdleNews::Over(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_has_the_last_word_on_a_limit() {
        let asked = TaskRequest { time: "1h".parse().ok(), ..TaskRequest::default() };
        let task = tasks::Task { hyperparams: asked.to_hyperparams(), ..tasks::Task::default() };
        assert_eq!(limit_of(&task), "1h".parse().ok(), "ClearML's server knows no limits");
        let task = tasks::Task { cantle_time_limit_s: "2h".parse().ok(), ..task };
        assert_eq!(limit_of(&task), "2h".parse().ok());
        assert_eq!(limit_of(&tasks::Task::default()), None);

        let asked = TaskRequest { idle: "1h".parse().ok(), ..TaskRequest::default() };
        let task = tasks::Task { hyperparams: asked.to_hyperparams(), ..tasks::Task::default() };
        assert_eq!(idle_limit_of(&task), "1h".parse().ok());
        let task = tasks::Task { cantle_idle_limit_s: "2h".parse().ok(), ..task };
        assert_eq!(idle_limit_of(&task), "2h".parse().ok());
    }

    #[test]
    fn the_time_before_a_restart_of_the_agent_counts() {
        let now = Instant::now();
        assert_eq!(began(None, now), now);
        assert_eq!(began(Some(now_ms() + 60_000), now), now, "the clock was set back");
        let ran = now.duration_since(began(Some(now_ms() - 1000), now));
        assert!(ran >= Duration::from_secs(1), "{ran:?}");
    }
}
