//! Starts, adopts and stops tasks, and watches those that run. Slow steps run outside the agent's loop and come back as
//! an [`Update`].

mod fence;
mod follow;
mod launch;
mod make_room;
mod run;
mod scan;
mod stop_requests;
mod time;
mod watchdog_thread;

use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::SuspendedView;
use cantle_model::LeaseId;
use cantle_node::{Finding, NodeError, Recovery};
use cantle_runtime::{Exit, RunningTask, TaskDirectory};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument as _;

use crate::claims::{Handover, no_room};
use crate::entry::{LeasedTask, Tasks};
use crate::environment::Environment;
use crate::idle::{IdleNews, IdleWatch};
use crate::task_record::Stop;
use launch::Launch;
use run::Run;
use watchdog_thread::WatchdogThread;

pub use stop_requests::AbortCommand;
pub(crate) use time::{idle_limit_of, limit_of};

/// How long a node without room for a task starts none.
const FULL_FOR: Duration = Duration::from_secs(5);

/// The result of a step that runs outside the loop.
pub(crate) enum Update {
    /// The task was started, or not.
    Started(Box<Result<RunningTask, NodeError>>),
    /// The command that runs before the task is stopped has ended, with this result.
    PreStopEnded(String),
    /// It was suspended for another task, or cannot be, for this reason.
    MadeRoom(Result<(), String>),
    /// The watchdog has found something out.
    Found(Finding),
    /// It is idle, or not any more.
    Idle(IdleNews),
    /// The task and all processes it left behind are gone.
    Ended(Exit),
}

/// An update and the task it is about. The receiver is gone only when the daemon is; then the next daemon finds the task by
/// its files.
type UpdateSender = mpsc::UnboundedSender<(LeaseId, Update)>;

/// A task that the executor is done with.
pub(crate) enum Departure {
    /// It lost its place before it started, for this reason: to the claims.
    Returned(LeasedTask, String),
    /// It has an outcome: to the reporter.
    Ended(LeasedTask),
}

/// A task that has processes.
pub(crate) struct ActiveTask<'a> {
    pub(crate) entry: &'a LeasedTask,
    /// Since when it is known to run.
    pub(crate) since: Instant,
}

/// The tasks that have processes, or will have in a moment.
pub(crate) struct Executor {
    tasks: Tasks<Run>,
    updates: mpsc::UnboundedReceiver<(LeaseId, Update)>,
    sender: UpdateSender,
    watchdog: WatchdogThread,
    idle: IdleWatch,
    /// When the GPUs were last described for the metrics.
    described_at: Option<Instant>,
    /// The suspended tasks of this node, whether this agent started them or not.
    suspended: Vec<SuspendedView>,
    /// Ends what a dead command has left unfinished.
    recovery: Recovery,
    /// When the leases were last renewed.
    renewed_at: Option<Instant>,
    /// Until then no task is started: the node had no room for one.
    full_until: Option<Instant>,
}

impl Executor {
    pub(crate) fn new(env: &Arc<Environment>) -> Self {
        let (sender, updates) = mpsc::unbounded_channel();
        let watchdog = WatchdogThread::start(env, sender.clone());
        let news = sender.clone();
        let idle = IdleWatch::start(env, move |lease, what| drop(news.send((lease, Update::Idle(what)))));
        Self {
            tasks: Tasks::default(),
            updates,
            sender,
            watchdog,
            idle,
            described_at: None,
            suspended: Vec::new(),
            recovery: Recovery::new(&env.config.installation),
            renewed_at: None,
            full_until: None,
        }
    }

    /// Takes a task over from the claims.
    pub(crate) fn take(&mut self, env: &Arc<Environment>, handover: Handover) -> Option<Departure> {
        match handover {
            Handover::Start { entry, task, command } => {
                let lease = entry.job.lease.clone();
                match command.and_then(|command| Launch::new(env, &entry, *task, command)) {
                    Ok(launch) => {
                        self.launch(&lease, launch, entry.dir.task_directory().clone());
                        self.tasks.insert(lease, Run::starting(entry));
                        None
                    }
                    Err(error) => Some(self.not_started(env, Run::starting(entry), &error)),
                }
            }
            Handover::Adopt { entry, running } => {
                let lease = entry.job.lease.clone();
                self.watchdog.add(lease.clone(), running.stopper());
                self.idle.add(lease.clone(), running.stopper());
                self.tasks.insert(lease, Run::adopted(env, entry, *running, &self.sender));
                None
            }
        }
    }

    /// Decides about a task that has not started because of this error. Where the node has no room for it, nothing is
    /// wrong with the task: it goes back to its queue, and the node starts nothing for a while.
    fn not_started(&mut self, env: &Environment, run: Run, error: &NodeError) -> Departure {
        match error {
            NodeError::PlacementLost { .. } => Departure::Returned(run.into_entry(), error.to_string()),
            error if error.is_out_of_room() => {
                self.wait_for_room();
                Departure::Returned(run.into_entry(), no_room(error))
            }
            error => Departure::Ended(run.not_started(env, error)),
        }
    }

    fn launch(&self, lease: &LeaseId, launch: Launch, dir: TaskDirectory) {
        let (sender, lease) = (self.sender.clone(), lease.clone());
        let span = tracing::info_span!("launch", task = launch.task_id(), %lease);
        tokio::spawn(async move {
            let started = launch.start(dir).instrument(span).await;
            let _ = sender.send((lease, Update::Started(Box::new(started))));
        });
    }

    /// Waits for the next update.
    pub(crate) async fn next_update(&mut self) -> Option<(LeaseId, Update)> {
        self.updates.recv().await
    }

    /// The next update, if there is one already.
    pub(crate) fn try_next_update(&mut self) -> Option<(LeaseId, Update)> {
        self.updates.try_recv().ok()
    }

    /// Carries out an update; returns the task if it goes elsewhere now.
    pub(crate) fn handle(&mut self, env: &Environment, lease: &LeaseId, update: Update) -> Option<Departure> {
        let mut found = self.tasks.find(lease)?;
        match update {
            Update::Started(started) => match *started {
                Ok(running) => {
                    self.watchdog.add(lease.clone(), running.stopper());
                    self.idle.add(lease.clone(), running.stopper());
                    found.get_mut().started(env, running, &self.sender);
                    None
                }
                Err(error) => {
                    let run = found.remove();
                    Some(self.not_started(env, run, &error))
                }
            },
            Update::PreStopEnded(how) => {
                found.get_mut().pre_stop_ended(env, &how);
                None
            }
            Update::MadeRoom(made) => {
                found.get_mut().made_room(env, made);
                None
            }
            Update::Found(finding) => {
                found.get_mut().found(env, finding);
                None
            }
            Update::Idle(news) => {
                found.get_mut().idle_news(env, news);
                None
            }
            Update::Ended(exit) => {
                self.watchdog.remove(lease);
                self.idle.remove(lease);
                Some(Departure::Ended(found.remove().ended(env, exit)))
            }
        }
    }

    /// The node had no room for a task: it starts nothing for a while.
    pub(crate) fn wait_for_room(&mut self) {
        self.full_until = Some(Instant::now() + FULL_FOR);
    }

    /// Had the node no room for a task a moment ago?
    pub(crate) fn is_full(&self) -> bool {
        self.full_until.is_some_and(|until| Instant::now() < until)
    }

    /// Are there tasks that have processes, or will have in a moment?
    pub(crate) fn is_busy(&self) -> bool {
        self.tasks.values().next().is_some()
    }

    /// Starts to stop every task that runs, because the daemon stops.
    pub(crate) fn stop_all(&mut self, env: &Environment) {
        for run in self.tasks.values_mut().filter(|run| run.is_running_unstopped()) {
            run.stop(env, Stop::Shutdown);
        }
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &LeasedTask> {
        self.tasks.values().map(Run::entry)
    }

    /// The tasks that have processes, by lease.
    pub(crate) fn running(&self) -> Vec<ActiveTask<'_>> {
        self.tasks.values().filter_map(Run::running).collect()
    }
}
