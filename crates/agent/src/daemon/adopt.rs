//! What a former daemon left: its tasks run on under their limits, and this one answers for them now.

use cantle_model::LeaseId;
use cantle_runtime::alive;
use tokio::time::Instant;

use super::Agent;
use super::entry::{Entry, Stage};
use crate::job::{Job, JobDir};
use crate::refusals::Refusals;
use crate::{AgentError, own_holder};

impl Agent {
    /// Takes over every job of this server that no living daemon answers for. Needs no server.
    ///
    /// # Errors
    /// Names the file that can't be read.
    pub(crate) fn adopt(&mut self) -> Result<(), AgentError> {
        // First the leases: what is not held by a living process now can't be started under its lease any more.
        self.node.lock()?.sweep()?;
        for (dir, job) in JobDir::all(&self.jobs_dir)? {
            if job.server == self.config.server && !alive(&job.daemon) {
                self.adopt_job(dir, job)?;
            }
        }
        Ok(())
    }

    fn adopt_job(&mut self, dir: JobDir, mut job: Job) -> Result<(), AgentError> {
        job.daemon = own_holder();
        dir.write(&job)?;
        let lease = job.lease.clone();
        let stage = match dir.outcome()? {
            Some(_) => Stage::Ended,
            None if job.claimed => Stage::Returning("the agent died before it started the task".to_owned()),
            None => Stage::Unsure(Instant::now()),
        };
        let mut entry = Entry::new(dir, job, stage);
        // What the server wants it says again; it may be tidying up.
        entry.stop = entry.dir.stop()?.filter(|stop| !stop.is_told());
        self.entries.insert(lease.clone(), entry);
        self.readopt(&lease);
        Ok(())
    }

    /// If the runtime knows the task, it was started: from here on it is watched like any other.
    pub(crate) fn readopt(&mut self, lease: &LeaseId) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        if entry.is_ended() {
            return;
        }
        let Some(running) = cantle_runtime::adopt(entry.dir.path()) else { return };
        entry.stage = Stage::Running(running.stopper());
        entry.refusals = Refusals::of(&self.node.slice_dir(lease)).map(Refusals::without_old);
        let (task, name) = (entry.job.task.0.clone(), entry.job.name.clone());
        let stop = entry.stop.clone();
        self.watch(lease.clone(), running);
        self.note(
            "adopt",
            Some(&task),
            None,
            format!("task {name} was started by a former agent; watching it"),
        );
        // The grace that it was given ended with the former daemon; nobody would kill it any more.
        if let Some(stop) = stop {
            self.stop(lease, stop);
        }
    }
}
