//! Tasks that run: watched here, stopped when the server says so.

use std::time::Duration;

use cantle_clearml::{Error as WireError, tasks};
use cantle_model::{Holder, LeaseId, TaskStatus};
use tokio::time::{Instant, sleep};

use super::Agent;
use super::entry::{Entry, Stage};
use crate::job::{Exit, Stop};

/// How often the end of a process is looked for that is not our child.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// On top of the grace that a task gets: its supervisor's own time.
const SUPERVISOR_EXTRA: Duration = Duration::from_secs(5);

impl Agent {
    /// Has a note sent when a process that is not our child (a supervisor that a former daemon started) is gone.
    pub(crate) fn watch_stranger(&self, lease: LeaseId, holder: Holder) {
        let ended = self.ended_sender.clone();
        tokio::spawn(async move {
            while cantle_runtime::alive(&holder) {
                sleep(WATCH_EVERY).await;
            }
            // The receiver is gone only when the daemon is.
            let _ = ended.send(lease);
        });
    }

    /// A supervisor has ended: normally after it wrote how its task did.
    pub(crate) fn supervisor_ended(&mut self, lease: &LeaseId) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        if !matches!(entry.dir.exit(), Ok(None)) {
            entry.stage = Stage::Ended;
            entry.region = None;
            return;
        }
        // It was killed. Its task may live on; then the lease stands until that has ended too.
        let leader = self.node.lease(lease).ok().flatten().and_then(|lease| lease.leader);
        match leader.filter(cantle_runtime::alive) {
            Some(leader) => self.watch_stranger(lease.clone(), leader),
            None => self.lost(lease),
        }
    }

    /// Nobody is left who could say how the task ended.
    fn lost(&mut self, lease: &LeaseId) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        let message = "its supervisor was killed, or the machine restarted: nobody saw how the task ended";
        let exit = Exit { code: None, message: Some(message.to_owned()) };
        if let Err(error) = entry.dir.set_exit(&exit) {
            tracing::error!(%error, "can't note the end of a task");
        }
        entry.stage = Stage::Ended;
        entry.region = None;
    }

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
        let request = tasks::GetAll {
            id: watched.iter().map(|(_, task)| task.clone()).collect(),
            only_fields: ["id", "status", "status_message"].map(str::to_owned).to_vec(),
            ..tasks::GetAll::default()
        };
        let answer = self.link.call(&request).await?.tasks;
        for (lease, id) in watched {
            let task = answer.iter().find(|task| task.id == id);
            if let Some(stop) = wanted_stop(task) {
                self.note("stop", Some(&id), None, stop_words(&stop));
                self.stop(&lease, stop);
            }
        }
        Ok(())
    }

    /// Starts to stop a task; its supervisor does the rest.
    pub(crate) fn stop(&mut self, lease: &LeaseId, stop: Stop) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        let Stage::Running(supervisor) = entry.stage else { return };
        if let Err(error) = entry.dir.set_stop(&stop) {
            tracing::error!(%error, "the reason of a stop is not on disk");
        }
        entry.stop = Some(stop);
        cantle_runtime::terminate(&supervisor);
    }

    /// The end of the daemon: its tasks end with it, as with ClearML's agent.
    pub(crate) async fn stop_everything(&mut self) {
        let running: Vec<LeaseId> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_running() && entry.stop.is_none())
            .map(|(lease, _)| lease.clone())
            .collect();
        for lease in running {
            self.stop(&lease, Stop::Shutdown);
        }
        let until = Instant::now() + self.config.stop_grace + SUPERVISOR_EXTRA;
        while self.entries.values().any(Entry::is_running) && Instant::now() < until {
            tokio::select! {
                Some(lease) = self.ended.recv() => self.supervisor_ended(&lease),
                () = sleep(WATCH_EVERY) => {}
            }
        }
        if let Err(error) = self.say_goodbye().await {
            // What is not delivered is on disk; the next daemon delivers it.
            tracing::warn!(%error, "not everything could be reported");
        }
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
        Stop::Enforced(why) => format!("stopping: {why}"),
    }
}

#[cfg(test)]
mod tests {
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
}
