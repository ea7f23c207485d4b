//! A task that the daemon has to do with, and how far it has come.

use cantle_runtime::Stopper;
use tokio::time::Instant;

use crate::job::{Job, JobDir, Stop};
use crate::refusals::Refusals;

/// One task under one lease.
pub(crate) struct Entry {
    /// Its files.
    pub(crate) dir: JobDir,
    /// What its `job.json` says.
    pub(crate) job: Job,
    /// How far it is.
    pub(crate) stage: Stage,
    /// Why it is being stopped.
    pub(crate) stop: Option<Stop>,
    /// It is to be stopped and asked for time to tidy up before that.
    pub(crate) tidying: Option<Tidying>,
    /// When the server last heard of it.
    pub(crate) pinged: Instant,
    /// When its own worker was reported last, if it has one.
    pub(crate) reported: Option<Instant>,
    /// What was refused to it, while it runs.
    pub(crate) refusals: Option<Refusals>,
}

/// What a task that tidies up has before it.
pub(crate) struct Tidying {
    /// It has until then.
    pub(crate) until: Instant,
    /// Why it is stopped.
    pub(crate) then: Stop,
}

/// How far a task has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The queue was asked for the task and the answer got lost; since when.
    Unsure(Instant),
    /// Ours, not started yet.
    Claimed,
    /// Claimed and not started, for this reason: goes back to its queue.
    Returning(String),
    /// Its first process is about to be started.
    Starting,
    /// It has processes; how to stop them.
    Running(Stopper),
    /// `outcome.json` says how; the server does not know yet.
    Ended,
}

impl Entry {
    pub(crate) fn new(dir: JobDir, job: Job, stage: Stage) -> Self {
        Self {
            dir,
            job,
            stage,
            stop: None,
            tidying: None,
            pinged: Instant::now(),
            reported: None,
            refusals: None,
        }
    }

    pub(crate) const fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running(_))
    }

    /// It has processes, or will have in a moment.
    pub(crate) const fn is_busy(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Running(_))
    }

    pub(crate) const fn is_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    pub(crate) const fn is_claimed(&self) -> bool {
        matches!(self.stage, Stage::Claimed)
    }

    pub(crate) const fn is_unsettled(&self) -> bool {
        matches!(self.stage, Stage::Unsure(_) | Stage::Returning(_))
    }
}
