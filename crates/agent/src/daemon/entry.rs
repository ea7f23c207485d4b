//! A task that the daemon has to do with, and how far it has come.

use cantle_ledger::host::Observer;
use cantle_model::Holder;
use tokio::time::Instant;

use crate::job::{Job, JobDir, Stop};

/// One task under one lease.
pub(crate) struct Entry {
    /// Its files.
    pub(crate) dir: JobDir,
    /// What its `job.json` says.
    pub(crate) job: Job,
    /// What people call the task.
    pub(crate) name: String,
    /// How far it is.
    pub(crate) stage: Stage,
    /// Why it is being stopped.
    pub(crate) stop: Option<Stop>,
    /// When the server last heard of it.
    pub(crate) pinged: Option<Instant>,
    /// Its accounting region, while it runs.
    pub(crate) region: Option<Observer>,
}

/// How far a task has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The queue was asked for the task and the answer got lost; since when.
    Unsure(Instant),
    /// Taken from the queue, not started yet.
    Claimed,
    /// Taken by a former daemon that died before it started the task: goes back to its queue.
    Returning,
    /// Its supervisor has been started; who it is.
    Running(Holder),
    /// `exit.json` is there; the server does not know yet.
    Ended,
}

impl Entry {
    pub(crate) const fn new(dir: JobDir, job: Job, name: String, stage: Stage) -> Self {
        Self { dir, job, name, stage, stop: None, pinged: None, region: None }
    }

    /// Running, and not asked to stop.
    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }
}
