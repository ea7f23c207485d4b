//! Follows one task from its start to its end.

use std::path::PathBuf;
use std::time::Duration;

use cantle_model::Holder;
use cantle_node::{NodeError, OUTSIDE, Refusals, enforced_by, got, note_group, renew_driver_limits};
use cantle_runtime::{Backend, Exit, RunningTask, Stopper};
use cantle_sched::connection;
use tokio::time::Instant;

use super::make_room::MakingRoom;
use super::time::began;
use super::{ActiveTask, Update, UpdateSender};
use crate::command;
use crate::entry::LeasedTask;
use crate::environment::Environment;
use crate::task_record::{Outcome, Stop};

/// A task that has processes, or will have in a moment.
pub(super) struct Run {
    entry: LeasedTask,
    /// How to stop its processes; `None` until they are started.
    stopper: Option<Stopper>,
    /// When its start began, or since when it is known to run.
    since: Instant,
    /// Since when its time counts: a former agent may have started it.
    began: Instant,
    pre_stop: Option<PreStop>,
    /// Its refused allocations.
    refusals: Option<Refusals>,
    /// Its first process, until the lease names it.
    unnoted: Option<FirstProcess>,
    /// The changes of its lease that it knows of.
    pub(super) changes: u32,
    /// The end of the time of the recall that was reported last, in milliseconds since 1970.
    pub(super) recalled_until_ms: Option<i64>,
    /// How far it has got with making room for another task.
    pub(super) room: MakingRoom,
    /// Somebody has changed its limits since the last scan.
    pub(super) is_cared_for: bool,
    /// Its slices have changed, and the server has not confirmed that it knows.
    pub(super) is_changed: bool,
}

/// The data that a lease gets when its task has a process.
struct FirstProcess {
    leader: Holder,
    backend: Backend,
    cgroup: Option<PathBuf>,
    /// The node had no room for it at once.
    is_late: bool,
}

/// The time that a task has between the request to stop it and the stop.
pub(super) struct PreStop {
    pub(super) until: Instant,
    /// Why it is stopped.
    pub(super) stop: Stop,
}

impl Run {
    /// Its first process is about to be started.
    pub(super) fn starting(entry: LeasedTask) -> Self {
        let now = Instant::now();
        Self {
            entry,
            stopper: None,
            since: now,
            began: now,
            pre_stop: None,
            refusals: None,
            unnoted: None,
            changes: 0,
            recalled_until_ms: None,
            room: MakingRoom::default(),
            is_cared_for: false,
            is_changed: false,
        }
    }

    /// A former agent started it: from here on it is watched like any other.
    pub(super) fn adopted(
        env: &Environment,
        entry: LeasedTask,
        running: RunningTask,
        sender: &UpdateSender,
    ) -> Self {
        let mut run = Self::starting(entry);
        run.began = began(run.entry.job.started_ms, run.since);
        let (task, name) = (run.entry.job.task.0.clone(), run.entry.job.name.clone());
        run.refusals = Refusals::of(&env.node.slice_dir(&run.entry.job.lease)).map(Refusals::without_old);
        run.watch(running, sender);
        env.note(
            "adopt",
            Some(&task),
            None,
            format!("task {name} was started by a former agent; watching it"),
        );
        run.renew_driver_limits(env);
        // The grace period that it had ended with the former daemon: no process would kill it any more.
        if let Some(stop) = run.entry.stop.clone() {
            run.stop(env, stop);
        }
        run
    }

    /// The driver's limits outlive an agent. A change by another program meanwhile was made for no task of this agent.
    fn renew_driver_limits(&self, env: &Environment) {
        let lease = env.node.lock().and_then(|locked| locked.lease(&self.entry.job.lease));
        let renewed = lease.and_then(|lease| match lease {
            Some(lease) => renew_driver_limits(env.driver.as_ref(), &lease, &env.gpus),
            None => Ok(false),
        });
        let line = match renewed {
            Ok(false) => return,
            Ok(true) => "the driver's limit of the task had been changed, and is set again".to_owned(),
            Err(error) => {
                format!("the driver's limit of the task is unknown, and the filter enforces it: {error}")
            }
        };
        env.note_in_task_log("adopt", &self.entry, &line);
    }

    /// Has [`Update::Ended`] sent when the task and everything it left behind are gone.
    fn watch(&mut self, mut running: RunningTask, sender: &UpdateSender) {
        self.stopper = Some(running.stopper());
        let (lease, sender) = (self.entry.job.lease.clone(), sender.clone());
        tokio::spawn(async move {
            let exit = running.wait().await;
            let _ = sender.send((lease, Update::Ended(exit)));
        });
    }

    /// Its first process was started; the lease gets it as its leader.
    pub(super) fn started(&mut self, env: &Environment, running: RunningTask, sender: &UpdateSender) {
        self.refusals = Refusals::of(&env.node.slice_dir(&self.entry.job.lease));
        self.since = Instant::now();
        self.began = self.since;
        self.unnoted = Some(FirstProcess {
            leader: running.leader(),
            backend: running.backend().clone(),
            cgroup: running.cgroup(),
            is_late: false,
        });
        self.watch(running, sender);
        self.note_first_process(env);
        self.begin_time(env);
        env.journal.note_node_changed();
    }

    /// The lease gets the first process as its leader. Where the node has no room to write that down, the next scan tries again: until
    /// then this agent and the lock of the supervisor keep the lease.
    pub(super) fn note_first_process(&mut self, env: &Environment) {
        let Some(FirstProcess { leader, backend, cgroup, is_late }) = self.unnoted.take() else { return };
        let (lease, name) = (&self.entry.job.lease, &self.entry.job.name);
        let noted = env.node.lock().and_then(|locked| match locked.lease(lease)? {
            Some(mut lease) => {
                lease.name.clone_from(name);
                lease.leader = Some(leader);
                lease.enforcement = backend.enforcement();
                let is_outside = note_group(&mut lease, cgroup.clone());
                locked.put(&lease).map(|()| (lease.limited_by(), lease.slices, is_outside))
            }
            None => Err(NodeError::LeaseGone(lease.clone())),
        });
        match noted {
            Ok((limited_by, slices, is_outside)) => {
                if is_outside {
                    env.note_in_task_log("run", &self.entry, OUTSIDE);
                }
                let enforced = enforced_by(&backend, limited_by);
                let connected = connection(&env.driver.topology(), &env.gpus, &slices);
                let connected = connected.map_or_else(String::new, |how| format!("; {how}"));
                let message = format!("task {name} runs: {}, {enforced}{connected}", got(&slices, &env.gpus));
                // The lease knows the names of its MIG instances by now.
                self.entry.job.slices = slices;
                env.note("run", Some(&self.entry.job.task.0), None, message);
            }
            Err(error) if error.is_out_of_room() => {
                if !is_late {
                    tracing::warn!(%error, "the first process of a task is not in its lease yet");
                }
                self.unnoted = Some(FirstProcess { leader, backend, cgroup, is_late: true });
            }
            // Without its first process in it the lease would end when we do.
            Err(error) => self.stop(env, Stop::Enforced(format!("its lease cannot be kept: {error}"))),
        }
    }

    pub(super) fn entry(&self) -> &LeasedTask {
        &self.entry
    }

    pub(super) const fn entry_mut(&mut self) -> &mut LeasedTask {
        &mut self.entry
    }

    pub(super) const fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn into_entry(self) -> LeasedTask {
        self.entry
    }

    /// Is it running, and not being stopped?
    pub(super) const fn is_running_unstopped(&self) -> bool {
        self.stopper.is_some() && self.entry.stop.is_none()
    }

    /// Is it being stopped because of what it took?
    pub(super) const fn is_enforced(&self) -> bool {
        matches!(self.entry.stop, Some(Stop::Enforced(_)))
    }

    /// Only if it has processes already.
    pub(super) fn running(&self) -> Option<ActiveTask<'_>> {
        self.stopper.as_ref().map(|_| ActiveTask { entry: &self.entry, since: self.since })
    }

    /// Notes what was refused to it since the last time.
    pub(super) fn scan_refusals(&mut self, env: &Environment, now: Instant) {
        let (Some(stopper), Some(refusals)) = (&self.stopper, &mut self.refusals) else { return };
        let slices = &self.entry.job.slices;
        let line = refusals.report(slices, &env.gpus, || stopper.pids(), now);
        env.meter.refused(slices, &refusals.take_counts());
        if let Some(line) = line {
            env.note_in_task_log("refuse", &self.entry, &line);
        }
    }

    /// Starts to stop it; [`Update::Ended`] follows when it is gone.
    pub(super) fn stop(&mut self, env: &Environment, stop: Stop) {
        self.stop_within(stop, env.config.stop_grace);
    }

    pub(super) fn stop_within(&mut self, stop: Stop, grace: Duration) {
        let Some(stopper) = self.stopper.clone() else { return };
        if let Err(error) = self.entry.dir.set_stop(&stop) {
            tracing::error!(%error, "the reason for stopping a task is not on disk");
        }
        self.entry.stop = Some(stop);
        tokio::spawn(async move { stopper.stop(grace).await });
    }

    pub(super) const fn pre_stop(&self) -> Option<&PreStop> {
        self.pre_stop.as_ref()
    }

    /// Leaves it time before it is stopped.
    pub(super) fn begin_pre_stop(&mut self, stop: Stop, within: Duration) {
        // Now, so that one that ends by itself meanwhile is known to have been stopped, by every agent that sees its end.
        if let Err(error) = self.entry.dir.set_stop(&stop) {
            tracing::error!(%error, "the reason for stopping a task is not on disk");
        }
        self.pre_stop = Some(PreStop { until: Instant::now() + within, stop });
    }

    /// Stops it if its time is over, independently of the server.
    pub(super) fn end_pre_stop(&mut self, env: &Environment, now: Instant) {
        let is_over = self.pre_stop.as_ref().is_some_and(|pre_stop| now >= pre_stop.until);
        if is_over {
            self.stop_after_pre_stop(env);
        }
    }

    /// The command that runs before the stop has ended: now it is stopped.
    pub(super) fn pre_stop_ended(&mut self, env: &Environment, how: &str) {
        env.note_in_task_log("stop", &self.entry, how);
        self.stop_after_pre_stop(env);
    }

    fn stop_after_pre_stop(&mut self, env: &Environment) {
        if self.is_running_unstopped()
            && let Some(pre_stop) = self.pre_stop.take()
        {
            self.stop(env, pre_stop.stop);
        }
    }

    /// It has not started, because of this error.
    pub(super) fn not_started(self, env: &Environment, error: &NodeError) -> LeasedTask {
        let message = Some(format!("not started: {}", command::explain(error)));
        self.settle(env, Outcome { code: Some(i32::from(error.exit_code())), message, ..Outcome::default() })
    }

    /// It and everything it left behind are gone.
    pub(super) fn ended(self, env: &Environment, exit: Exit) -> LeasedTask {
        let code = (exit != Exit::Lost).then(|| exit.code());
        // Before its slice is free: its files go with it.
        let measured = env.measured(&self.entry.job.lease);
        self.settle(env, Outcome { code, message: exit.reason(), measured })
    }

    /// Writes down how it ended, then frees its slice.
    fn settle(self, env: &Environment, outcome: Outcome) -> LeasedTask {
        let Self { mut entry, refusals, .. } = self;
        let refused = refusals.and_then(|mut refusals| {
            let line = refusals.final_report(&entry.job.slices, &env.gpus, Vec::new);
            env.meter.refused(&entry.job.slices, &refusals.take_counts());
            line
        });
        if let Err(error) = entry.dir.set_outcome(&outcome) {
            // On a full disk. The next agent would find the end of its process, which has space of its own.
            tracing::error!(%error, "the result of a task is not on disk");
        }
        entry.outcome = Some(outcome);
        if let Some(line) = refused {
            env.note_in_task_log("refuse", &entry, &line);
        }
        env.free(&entry.job.lease);
        entry
    }
}
