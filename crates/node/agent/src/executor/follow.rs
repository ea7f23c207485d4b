//! Follows the changes of the slices of running tasks: a task is suspended, resumed, moved or resized by a command on
//! this machine, which says so in its lease.

use std::time::Duration;

use cantle_clearml::leases::ReportSlices;
use cantle_clearml::{SuspendedView, WireError};
use cantle_model::{Bytes, Lease, SuspensionStep};
use cantle_node::clock::now_ms;
use cantle_node::got;

use super::Executor;
use super::make_room::MakingRoom;
use super::run::Run;
use crate::environment::Environment;
use crate::task_record::Stop;
use crate::view;

impl Executor {
    /// Reads the leases of the tasks, and brings to an end what a dead command has left unfinished. Each pass does it: the server must know what
    /// a task has given back before another one claims that.
    pub(super) fn follow(&mut self, env: &Environment) {
        // The watchdog reports leases that cannot be read.
        let Ok(leases) = env.node.leases() else { return };
        self.recovery.look(&env.node, &leases);
        for lease in &leases {
            if let Some(run) = self.tasks.get_mut(&lease.id) {
                run.follow(env, lease);
            }
        }
        self.suspended = view::suspended(&leases);
    }

    /// Reports the slices that have changed.
    pub(crate) async fn report_changes(&mut self, env: &Environment) -> Result<(), WireError> {
        for run in self.tasks.values_mut().filter(|run| run.is_changed) {
            let job = &run.entry().job;
            let report = ReportSlices {
                task: job.task.0.clone(),
                node: env.node_name.clone(),
                lease: job.lease.0.clone(),
                slices: job.slices.clone(),
                stays: run.room == MakingRoom::Stays,
            };
            match env.server.call_extended(&report).await {
                Err(error) if error.is_temporary() => return Err(error),
                // Another node holds the task, or no node does; the next renewal of the leases reports that.
                Err(error) => tracing::warn!(task = report.task, %error, "changed slices were refused"),
                Ok(_) => {}
            }
            run.is_changed = false;
        }
        Ok(())
    }

    /// The suspended tasks of this node: no report names one before its log does.
    pub(crate) fn suspended(&self) -> Vec<SuspendedView> {
        self.suspended.clone()
    }
}

impl Run {
    /// Another task needs memory that is lent to it.
    fn note_recall(&mut self, env: &Environment, lease: &Lease) {
        let Some(burst) = &lease.burst else { return };
        let until_ms = burst.recall.map(|recall| recall.until_ms);
        if let Some(recall) = burst.recall
            && self.recalled_until_ms != until_ms
        {
            env.note_in_task_log("lend", self.entry(), &recall.notice(now_ms()));
        }
        self.recalled_until_ms = until_ms;
    }

    /// Its slices are those of its lease; what has changed goes to the task's log.
    fn follow(&mut self, env: &Environment, lease: &Lease) {
        self.note_room(lease);
        self.note_recall(env, lease);
        let step = lease.suspension.as_ref().map(|suspension| suspension.step);
        if step == Some(SuspensionStep::Failed) && !self.is_enforced() {
            let reason = lease.suspension.as_ref().and_then(|suspension| suspension.reason.clone());
            let why = reason.unwrap_or_else(|| "the driver lost its GPU memory".to_owned());
            env.note_in_task_log("suspend", self.entry(), &format!("ended: {why}"));
            self.stop_within(Stop::Enforced(why), Duration::ZERO);
            return;
        }
        if lease.changes == self.changes
            || matches!(step, Some(SuspensionStep::Resuming | SuspensionStep::Failed))
        {
            return;
        }
        self.changes = lease.changes;
        // Lent memory is not counted.
        let slices = lease.counted_slices();
        if slices == self.entry().job.slices && lease.suspension.is_none() {
            return;
        }
        let line = match &lease.suspension {
            Some(suspension) => {
                format!("suspended: {} of GPU memory are in host memory", Bytes(suspension.parked_bytes))
            }
            None => format!("it has now {}", got(&lease.slices, &env.gpus)),
        };
        self.entry_mut().job.slices = slices;
        self.is_changed = true;
        env.note_in_task_log("suspend", self.entry(), &line);
        env.journal.note_node_changed();
    }
}
