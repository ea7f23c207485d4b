//! The agent's files about a task: what it runs, how it ended, and how much of its output the server has.
//!
//! The agent's files are in the task's directory, next to those of the runtime ([`TaskDirectory`]). They are written before
//! the task is taken from its queue and removed when the server knows the result. In between any process may be killed: the
//! files are enough to continue.
//!
//! ```text
//! job.json      the task and what it was given           before the task is claimed
//! stop.json     why the agent stops it                   before it is signaled
//! outcome.json  how it ended                             before the report to the server
//! sent          bytes of the output that the server has
//! spare         the space of `outcome.json`, for a disk that is full at the end
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use cantle_model::{Holder, HostLimit, IdleTime, LeaseId, Measured, QueueId, Slice, TaskId, TimeLimit};
use cantle_node::{Command, NodeError};
use cantle_runtime::TaskDirectory;
use cantle_runtime::files::{self, Durability, FileError};
use serde::{Deserialize, Serialize};

/// The agent's files in a task's directory.
const RECORD: &str = "job.json";
const STOP: &str = "stop.json";
const OUTCOME: &str = "outcome.json";
const SENT: &str = "sent";
const SPARE: &str = "spare";
/// Enough for an outcome on any file system.
const SPARE_BYTES: usize = 4 << 10;

/// A task and what it was given: the contents of `job.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TaskRecord {
    /// The lease it runs under; also the name of its directory.
    pub(crate) lease: LeaseId,
    /// The task, as the server names it.
    pub(crate) task: TaskId,
    /// Its name for people.
    pub(crate) name: String,
    /// The queue it was taken from.
    pub(crate) queue: QueueId,
    /// The server it belongs to.
    pub(crate) server: String,
    /// The node for which it was taken.
    #[serde(default)]
    pub(crate) node: String,
    /// The worker that it is on the server, if not the agent's own.
    #[serde(default)]
    pub(crate) worker: Option<String>,
    /// The agent that answers for it.
    pub(crate) daemon: Holder,
    /// Its slices.
    pub(crate) slices: Vec<Slice>,
    /// The task was taken from its queue: no other process returns it.
    pub(crate) claimed: bool,
    /// The number of the run, from a server that gives one: it refuses what an older run reports.
    #[serde(default)]
    pub(crate) run: Option<i64>,
    /// The directory in which ClearML's agent sets it up; it is removed with these files.
    #[serde(default)]
    pub(crate) workspace: Option<PathBuf>,
    /// How long it may run, from `started_ms` on.
    #[serde(default)]
    pub(crate) time_limit: Option<TimeLimit>,
    /// For how long it may be idle.
    #[serde(default)]
    pub(crate) idle_limit: Option<IdleTime>,
    /// The processor time and main memory that it may use, if they are limited.
    #[serde(default)]
    pub(crate) host: Option<HostLimit>,
    /// When its first process was started, in milliseconds since 1970.
    #[serde(default)]
    pub(crate) started_ms: Option<i64>,
    /// The command; known as soon as the task is claimed and about to start.
    pub(crate) command: Option<Command>,
}

/// How a task ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Its exit code; 128 + N for signal N; 125 to 127 if it could not be started. `None` if no process saw the end.
    pub(crate) code: Option<i32>,
    /// Further facts to report.
    pub(crate) message: Option<String>,
    /// The resources that it used.
    #[serde(default)]
    pub(crate) measured: Measured,
}

/// Why the agent stops a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stop {
    /// On a request to the server.
    Aborted,
    /// The server has put it into another state (deleted, reset, queued again): there is nothing to report.
    Superseded,
    /// The agent itself is stopping.
    Shutdown,
    /// The server preempts it for another task: it goes back to the front of its queue; the text has the reason.
    Preempted(String),
    /// The task broke a rule; the text names it.
    Enforced(String),
}

impl Stop {
    /// Does the server repeat this request?
    pub(crate) const fn is_told(&self) -> bool {
        matches!(self, Self::Aborted | Self::Preempted(_))
    }
}

/// The directory of a task, with the agent's files in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskFiles(TaskDirectory);

impl TaskFiles {
    /// Writes down a task that is about to be claimed.
    pub(crate) fn create(parent: &Path, record: &TaskRecord) -> Result<Self, NodeError> {
        let dir = Self(TaskDirectory::create(parent.join(&record.lease.0))?);
        dir.write(record)?;
        let spare = dir.0.owner_file(SPARE);
        fs::write(&spare, [0; SPARE_BYTES]).map_err(|why| FileError::new(&spare, why))?;
        // The directory is new: its own name has to last as well.
        files::sync_directory(parent)?;
        Ok(dir)
    }

    /// All that are in `parent`, in order of lease id. A directory without a record is what `create` left when it was killed.
    pub(crate) fn all(parent: &Path) -> Result<Vec<(Self, TaskRecord)>, NodeError> {
        let fail = |why| FileError::new(parent, why);
        let entries = fs::read_dir(parent).map_err(fail)?;
        // An entry that cannot be read is not left out: it may be a running task.
        let entries = entries.collect::<std::io::Result<Vec<_>>>().map_err(fail)?;
        let mut dirs: Vec<Self> =
            entries.into_iter().map(|entry| Self(TaskDirectory::new(entry.path()))).collect();
        dirs.sort();
        let mut found = Vec::new();
        for dir in dirs {
            match files::read_json(&dir.0.owner_file(RECORD))? {
                Some(record) => found.push((dir, record)),
                None => dir.remove()?,
            }
        }
        Ok(found)
    }

    /// For the runtime, which starts the task from it.
    pub(crate) const fn task_directory(&self) -> &TaskDirectory {
        &self.0
    }

    pub(crate) fn write(&self, record: &TaskRecord) -> Result<(), NodeError> {
        self.save(RECORD, record)
    }

    pub(crate) fn set_outcome(&self, outcome: &Outcome) -> Result<(), NodeError> {
        self.save(OUTCOME, outcome).or_else(|_| {
            files::remove(&self.0.owner_file(SPARE))?;
            self.save(OUTCOME, outcome)
        })
    }

    pub(crate) fn outcome(&self) -> Result<Option<Outcome>, NodeError> {
        Ok(files::read_json(&self.0.owner_file(OUTCOME))?)
    }

    pub(crate) fn set_stop(&self, stop: &Stop) -> Result<(), NodeError> {
        self.save(STOP, stop)
    }

    pub(crate) fn stop(&self) -> Result<Option<Stop>, NodeError> {
        Ok(files::read_json(&self.0.owner_file(STOP))?)
    }

    /// The output of the task, as the runtime stores it.
    pub(crate) fn output_path(&self) -> PathBuf {
        self.0.output()
    }

    /// How much of the output the server has. Losing the last step of it repeats a part of the log, nothing worse.
    pub(crate) fn sent_bytes(&self) -> u64 {
        files::read_json(&self.0.owner_file(SENT)).ok().flatten().unwrap_or(0)
    }

    pub(crate) fn set_sent_bytes(&self, bytes: u64) -> Result<(), NodeError> {
        Ok(files::write_json(&self.0.owner_file(SENT), &bytes, Durability::Crash)?)
    }

    /// See [`TaskDirectory::disarm`].
    pub(crate) fn disarm(&self) -> Result<bool, NodeError> {
        Ok(self.0.disarm()?)
    }

    pub(crate) fn remove(&self) -> Result<(), NodeError> {
        Ok(self.0.remove()?)
    }

    fn save<T: Serialize>(&self, file: &str, value: &T) -> Result<(), NodeError> {
        Ok(files::write_json(&self.0.owner_file(file), value, Durability::PowerLoss)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(lease: &str) -> TaskRecord {
        TaskRecord {
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
            run: None,
            workspace: None,
            time_limit: None,
            idle_limit: None,
            host: None,
            started_ms: None,
            command: None,
        }
    }

    #[test]
    fn a_record_is_read_back_as_written_and_a_half_made_one_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let tasks = root.path();
        assert_eq!(TaskFiles::all(tasks).unwrap(), Vec::new());
        let dir = TaskFiles::create(tasks, &record("b")).unwrap();
        let first = TaskFiles::create(tasks, &record("a")).unwrap();
        fs::create_dir(tasks.join("c")).unwrap();
        fs::write(tasks.join("c/job.new"), "{").unwrap();
        assert_eq!(TaskFiles::all(tasks).unwrap(), vec![(first, record("a")), (dir.clone(), record("b"))]);
        assert!(!tasks.join("c").exists());

        assert_eq!(dir.outcome().unwrap(), None);
        let outcome = Outcome { code: Some(3), message: None, measured: Measured::default() };
        dir.set_outcome(&outcome).unwrap();
        assert_eq!(dir.outcome().unwrap(), Some(outcome));
        assert_eq!(dir.sent_bytes(), 0);
        dir.set_sent_bytes(70_000).unwrap();
        assert_eq!(dir.sent_bytes(), 70_000);
    }

    #[test]
    fn output_that_was_sent_is_not_sent_again_where_nothing_can_be_written() {
        let root = tempfile::tempdir().unwrap();
        let record = record("a");
        let dir = TaskFiles::create(root.path(), &record).unwrap();
        // A stand-in for a full disk.
        fs::create_dir(dir.task_directory().owner_file(SENT)).unwrap();
        let entry = crate::entry::LeasedTask::new(dir, record, None);
        assert!(entry.set_sent_bytes(70_000).is_err());
        assert_eq!(entry.sent_bytes(), 70_000);
    }

    /// A disk of its own for the test that starts itself again with this variable.
    const SMALL_DISK: &str = "CANTLE_TEST_SMALL_DISK";

    #[test]
    fn the_result_of_a_task_has_space_on_a_full_disk() {
        let Some(disk) = std::env::var_os(SMALL_DISK) else {
            let root = tempfile::tempdir().unwrap();
            let script = "mount -t tmpfs -o size=64k tmpfs \"$0\" && exec \"$1\" --exact \"$2\" --nocapture";
            let mut inside = std::process::Command::new("unshare");
            inside.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
            inside.arg(root.path()).arg(std::env::current_exe().unwrap());
            inside.arg("task_record::tests::the_result_of_a_task_has_space_on_a_full_disk");
            let done = inside.env(SMALL_DISK, root.path()).output().unwrap();
            assert!(done.status.success(), "{done:?}");
            return;
        };
        let dir = TaskFiles::create(Path::new(&disk), &record("a")).unwrap();
        let filler = Path::new(&disk).join("filler");
        let full = fs::write(&filler, [0; 65 << 10]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        assert!(dir.set_stop(&Stop::Aborted).is_err(), "the control: there is no space");
        let outcome =
            Outcome { code: Some(3), message: Some("not started".to_owned()), ..Outcome::default() };
        dir.set_outcome(&outcome).unwrap();
        assert_eq!(dir.outcome().unwrap(), Some(outcome));
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let dir = TaskFiles::create(root.path(), &record("a")).unwrap();
        fs::write(dir.task_directory().owner_file(OUTCOME), "{\"code\":").unwrap();
        assert!(dir.outcome().unwrap_err().to_string().contains("outcome.json"));
    }

    #[test]
    fn the_agents_files_are_none_of_the_runtimes() {
        for name in [RECORD, STOP, OUTCOME, SENT, SPARE] {
            assert!(!TaskDirectory::FILES.contains(&name), "{name}");
        }
    }
}
