//! A task of the daemon, on disk: what to run, what came of it, and how much of its output the server has.
//!
//! The directory of a job is written before its task is taken from the queue and removed when the server knows the
//! result. In between anything may be killed: what the files say is enough to go on.
//!
//! ```text
//! job.json          what to run and for whom                        by the daemon, before the task is claimed
//! supervisor.json   the process that runs it                        by the supervisor, before it starts the task
//! output            what the task prints                            by the task
//! stop.json         why the daemon stops it                         by the daemon, before it signals
//! exit.json         how it ended                                    by the supervisor, before the lease is freed
//! sent              bytes of `output` that the server has           by the daemon
//! ```

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cantle_model::{ComputeMode, Holder, LeaseId, QueueId, Slice, TaskId};
use serde::{Deserialize, Serialize};

use crate::AgentError;
use crate::node::files::{self, Keep};

/// What to run, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The grant it runs under; also the name of its directory.
    pub(crate) lease: LeaseId,
    /// The task, as the server names it.
    pub(crate) task: TaskId,
    /// The queue it was taken from.
    pub(crate) queue: QueueId,
    /// What it was given.
    pub(crate) slices: Vec<Slice>,
    /// What to execute; nothing until the task is claimed.
    pub(crate) command: Option<Command>,
}

/// A command line with its surroundings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    /// Program and arguments, at least one.
    pub(crate) argv: Vec<String>,
    /// Set on top of the daemon's own environment.
    pub(crate) env: Vec<(String, String)>,
    /// Working directory; the daemon's own if none.
    pub(crate) cwd: Option<PathBuf>,
    /// How the compute time of its GPU is divided.
    pub(crate) compute: ComputeMode,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Exit {
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
    /// The task broke a rule; the text names it.
    Enforced(String),
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

    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// All jobs in `jobs`, in order of lease id. A directory without a job is what `create` left when it was killed.
    pub(crate) fn all(jobs: &Path) -> Result<Vec<(Self, Job)>, AgentError> {
        let entries = match fs::read_dir(jobs) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(AgentError::file(jobs, &e)),
        };
        let mut dirs: Vec<Self> = entries.filter_map(|e| e.ok().map(|e| Self(e.path()))).collect();
        dirs.sort_by(|a, b| a.0.cmp(&b.0));
        let mut found = Vec::new();
        for dir in dirs {
            match dir.job()? {
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

    pub(crate) fn job(&self) -> Result<Option<Job>, AgentError> {
        files::read_json(&self.0.join("job.json"))
    }

    pub(crate) fn set_supervisor(&self, holder: &Holder) -> Result<(), AgentError> {
        files::write_json(&self.0.join("supervisor.json"), holder, Keep::Always)
    }

    pub(crate) fn supervisor(&self) -> Result<Option<Holder>, AgentError> {
        files::read_json(&self.0.join("supervisor.json"))
    }

    pub(crate) fn set_exit(&self, exit: &Exit) -> Result<(), AgentError> {
        files::write_json(&self.0.join("exit.json"), exit, Keep::Always)
    }

    pub(crate) fn exit(&self) -> Result<Option<Exit>, AgentError> {
        files::read_json(&self.0.join("exit.json"))
    }

    pub(crate) fn set_stop(&self, stop: &Stop) -> Result<(), AgentError> {
        files::write_json(&self.0.join("stop.json"), stop, Keep::Always)
    }

    pub(crate) fn stop(&self) -> Result<Option<Stop>, AgentError> {
        files::read_json(&self.0.join("stop.json"))
    }

    pub(crate) fn output_path(&self) -> PathBuf {
        self.0.join("output")
    }

    /// Where the task and its supervisor print to.
    pub(crate) fn open_output(&self) -> Result<File, AgentError> {
        let path = self.output_path();
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
        file.map_err(|e| AgentError::file(&path, &e))
    }

    /// How much of the output the server has. Losing the last step of it repeats a part of the log, nothing worse.
    pub(crate) fn sent_bytes(&self) -> u64 {
        fs::read_to_string(self.0.join("sent")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    pub(crate) fn set_sent_bytes(&self, bytes: u64) -> Result<(), AgentError> {
        files::write_json(&self.0.join("sent"), &bytes, Keep::UntilBoot)
    }

    pub(crate) fn remove(&self) -> Result<(), AgentError> {
        files::remove(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(lease: &str) -> Job {
        Job {
            lease: LeaseId(lease.to_owned()),
            task: TaskId::from("t"),
            queue: QueueId::from("q"),
            slices: Vec::new(),
            command: None,
        }
    }

    #[test]
    fn a_job_is_read_back_as_written_and_a_half_made_one_is_tidied_away() {
        let root = tempfile::tempdir().unwrap();
        let jobs = root.path().join("jobs");
        assert_eq!(JobDir::all(&jobs).unwrap(), Vec::new());
        let dir = JobDir::create(&jobs, &job("b")).unwrap();
        let first = JobDir::create(&jobs, &job("a")).unwrap();
        fs::create_dir(jobs.join("c")).unwrap();
        fs::write(jobs.join("c/job.new"), "{").unwrap();
        assert_eq!(JobDir::all(&jobs).unwrap(), vec![(first, job("a")), (dir.clone(), job("b"))]);
        assert!(!jobs.join("c").exists());

        assert_eq!(dir.exit().unwrap(), None);
        let exit = Exit { code: Some(3), message: None };
        dir.set_exit(&exit).unwrap();
        assert_eq!(dir.exit().unwrap(), Some(exit));
        assert_eq!(dir.sent_bytes(), 0);
        dir.set_sent_bytes(70_000).unwrap();
        assert_eq!(dir.sent_bytes(), 70_000);
    }

    #[test]
    fn a_damaged_job_is_an_error_that_names_the_file() {
        let root = tempfile::tempdir().unwrap();
        let dir = JobDir::create(root.path(), &job("a")).unwrap();
        fs::write(dir.path().join("exit.json"), "{\"code\":").unwrap();
        assert!(dir.exit().unwrap_err().to_string().contains("exit.json"));
    }
}
