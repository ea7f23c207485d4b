//! A task of the daemon, on disk: for whom it runs, what came of it, and how much of its output the server has.
//!
//! The directory of a job is written before its task is taken from the queue and removed when the server knows the
//! result. In between anything may be killed: what the files say is enough to go on. The runtime keeps its own files in
//! the same directory (`task.json`, `lock`, `state.json`, `output.log`, `exit.json`).
//!
//! ```text
//! job.json      the task and what it was given           before the task is claimed
//! stop.json     why the daemon stops it                  before it is signalled
//! outcome.json  how it ended                             before the server is told
//! sent          bytes of the output that the server has
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cantle_model::{Holder, LeaseId, QueueId, Slice, TaskId};
use serde::{Deserialize, Serialize};

use crate::AgentError;
use crate::launch::Command;
use crate::node::files::{self, Keep};

/// A task and what it was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The grant it runs under; also the name of its directory.
    pub(crate) lease: LeaseId,
    /// The task, as the server names it.
    pub(crate) task: TaskId,
    /// What people call it.
    pub(crate) name: String,
    /// The queue it was taken from.
    pub(crate) queue: QueueId,
    /// The server it belongs to.
    pub(crate) server: String,
    /// The node for which it was taken.
    #[serde(default)]
    pub(crate) node: String,
    /// The worker that it is on the server, if not the daemon's own.
    #[serde(default)]
    pub(crate) worker: Option<String>,
    /// The daemon that answers for it.
    pub(crate) daemon: Holder,
    /// What it was given.
    pub(crate) slices: Vec<Slice>,
    /// The task was taken from its queue: nobody else gives it back.
    pub(crate) claimed: bool,
    /// What to execute; known from the moment that the task is ours and about to be started.
    pub(crate) command: Option<Command>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Its exit code; 128 + N for signal N; 125 to 127 if it could not be started. None if nobody saw the end.
    pub(crate) code: Option<i32>,
    /// What to tell beyond the code.
    pub(crate) message: Option<String>,
}

/// Why the daemon stops a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// Somebody asked the server to.
    Aborted,
    /// The server has put it into another state (deleted, reset, queued again): there is nothing to report.
    Superseded,
    /// The daemon itself is stopping.
    Shutdown,
    /// Its place is needed for another task, the server says: it goes back to the front of its queue; the text says why.
    Preempted(String),
    /// The task broke a rule; the text names it.
    Enforced(String),
}

impl Stop {
    /// Does the server say so, again and again?
    pub(crate) const fn is_told(&self) -> bool {
        matches!(self, Self::Aborted | Self::Preempted(_))
    }
}

/// The directory of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobDir(PathBuf);

impl JobDir {
    /// Writes down a job that is about to be claimed.
    pub(crate) fn create(jobs: &Path, job: &Job) -> Result<Self, AgentError> {
        let dir = Self(jobs.join(&job.lease.0));
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir.0);
        made.map_err(|e| AgentError::file(&dir.0, &e))?;
        dir.write(job)?;
        Ok(dir)
    }

    /// All jobs in `jobs`, in order of lease id. A directory without a job is what `create` left when it was killed.
    pub(crate) fn all(jobs: &Path) -> Result<Vec<(Self, Job)>, AgentError> {
        let entries = fs::read_dir(jobs).map_err(|e| AgentError::file(jobs, &e))?;
        let mut dirs: Vec<Self> = entries.filter_map(|e| e.ok().map(|e| Self(e.path()))).collect();
        dirs.sort_by(|a, b| a.0.cmp(&b.0));
        let mut found = Vec::new();
        for dir in dirs {
            match files::read_json(&dir.0.join("job.json"))? {
                Some(job) => found.push((dir, job)),
                None => dir.remove()?,
            }
        }
        Ok(found)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn write(&self, job: &Job) -> Result<(), AgentError> {
        files::write_json(&self.0.join("job.json"), job, Keep::Always)
    }

    pub(crate) fn set_outcome(&self, outcome: &Outcome) -> Result<(), AgentError> {
        files::write_json(&self.0.join("outcome.json"), outcome, Keep::Always)
    }

    pub(crate) fn outcome(&self) -> Result<Option<Outcome>, AgentError> {
        files::read_json(&self.0.join("outcome.json"))
    }

    pub(crate) fn set_stop(&self, stop: &Stop) -> Result<(), AgentError> {
        files::write_json(&self.0.join("stop.json"), stop, Keep::Always)
    }

    pub(crate) fn stop(&self) -> Result<Option<Stop>, AgentError> {
        files::read_json(&self.0.join("stop.json"))
    }

    /// What the task prints, as the runtime keeps it.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.0.join("output.log")
    }

    /// How much of the output the server has. Losing the last step of it repeats a part of the log, nothing worse.
    pub(crate) fn sent_bytes(&self) -> u64 {
        fs::read_to_string(self.0.join("sent")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    pub(crate) fn set_sent_bytes(&self, bytes: u64) -> Result<(), AgentError> {
        files::write_json(&self.0.join("sent"), &bytes, Keep::UntilBoot)
    }

    /// Makes sure that nothing will start from this directory any more; false if a supervisor lives that may.
    ///
    /// A supervisor takes the lock before it reads what to start, so whoever holds the lock and removes that file has
    /// the last word, also against one that has not got so far yet.
    pub(crate) fn disarm(&self) -> Result<bool, AgentError> {
        let path = self.0.join("lock");
        let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock: File = open.map_err(|e| AgentError::file(&path, &e))?;
        match lock.try_lock() {
            Ok(()) => files::remove(&self.0.join("task.json")).map(|()| true),
            Err(fs::TryLockError::WouldBlock) => Ok(false),
            Err(fs::TryLockError::Error(e)) => Err(AgentError::file(&path, &e)),
        }
    }

    pub(crate) fn remove(&self) -> Result<(), AgentError> {
        files::remove(&self.0)
    }
}

/// Was the lock of the job in `dir` taken by a supervisor that still lives?
pub(crate) fn is_supervised(dir: &Path) -> bool {
    let lock = File::open(dir.join("lock"));
    lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(lease: &str) -> Job {
        Job {
            lease: LeaseId(lease.to_owned()),
            task: TaskId::from("t"),
            name: "train".to_owned(),
            queue: QueueId::from("q"),
            slices: Vec::new(),
            server: "http://127.0.0.1:1".to_owned(),
            node: "n".to_owned(),
            worker: None,
            daemon: Holder { pid: 1, start_ticks: 0 },
            claimed: false,
            command: None,
        }
    }

    #[test]
    fn a_job_is_read_back_as_written_and_a_half_made_one_is_tidied_away() {
        let root = tempfile::tempdir().unwrap();
        let jobs = root.path();
        assert_eq!(JobDir::all(jobs).unwrap(), Vec::new());
        let dir = JobDir::create(jobs, &job("b")).unwrap();
        let first = JobDir::create(jobs, &job("a")).unwrap();
        fs::create_dir(jobs.join("c")).unwrap();
        fs::write(jobs.join("c/job.new"), "{").unwrap();
        assert_eq!(JobDir::all(jobs).unwrap(), vec![(first, job("a")), (dir.clone(), job("b"))]);
        assert!(!jobs.join("c").exists());

        assert_eq!(dir.outcome().unwrap(), None);
        let outcome = Outcome { code: Some(3), message: None };
        dir.set_outcome(&outcome).unwrap();
        assert_eq!(dir.outcome().unwrap(), Some(outcome));
        assert_eq!(dir.sent_bytes(), 0);
        dir.set_sent_bytes(70_000).unwrap();
        assert_eq!(dir.sent_bytes(), 70_000);
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::create(root.path(), &job("a")).unwrap();
        fs::write(dir.path().join("outcome.json"), "{\"code\":").unwrap();
        assert!(dir.outcome().unwrap_err().to_string().contains("outcome.json"));
    }

    #[test]
    fn nothing_starts_from_a_disarmed_job() {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::create(root.path(), &job("a")).unwrap();
        fs::write(dir.path().join("task.json"), "{}").unwrap();
        let supervisor = File::create(dir.path().join("lock")).unwrap();
        supervisor.lock().unwrap();
        assert!(is_supervised(dir.path()));
        assert!(!dir.disarm().unwrap());
        assert!(dir.path().join("task.json").exists());
        drop(supervisor);
        assert!(!is_supervised(dir.path()));
        assert!(dir.disarm().unwrap());
        assert!(!dir.path().join("task.json").exists());
    }
}
