//! The directory of one task: its state on disk, and the right to start it.
//!
//! ```text
//! lock         locked by the task's supervisor as long as it lives, or by the guard of its container
//! task.json    what is to be started, with the task's variables
//! state.json   processes and backend, written before the task's first instruction
//! output.log   stdout and stderr
//! exit.json    how it ended, once nothing of it is left
//! fence.json   until when it may run, renewed by its owner ([`Fence`])
//! fenced       it was ended because of that
//! reserve      the space of `exit.json`, for a disk that is full at the end
//! ```
//!
//! A task in a container has no `task.json`: the engine is its supervisor. It has a `lock` once it has a guard, which ends it at its fence
//! ([`crate::start_guard`]). The program that starts tasks may keep files of its own in the directory ([`TaskDirectory::owner_file`]).
//!
//! # Who may start a task from this directory
//!
//! The supervisor is a process that gets only this directory, and the program that started it may be killed at any
//! instant. The lock decides:
//!
//! 1. The supervisor takes the lock, and ends at once if another process has it.
//! 2. Only then it reads `task.json`, and ends if there is none.
//! 3. It keeps the lock until nothing of the task is left and `exit.json` is written. The kernel releases the lock when
//!    the supervisor dies, however it dies.
//!
//! So a taken lock means that a supervisor lives ([`TaskDirectory::is_supervised`]). To make sure that nothing starts
//! any more, take the lock and remove `task.json` while holding it ([`TaskDirectory::disarm`]): a supervisor that comes
//! later finds nothing to start.
//!
//! `state.json` is written between the start of the task's first process, which is cantle's own, and the start of the task. If the supervisor
//! is killed in between, the first process ends, and the task does not start. So a directory without `state.json` has no process, and a
//! task with one is never taken for a task that has not started.
//!
//! # What survives what
//!
//! All of it survives the death of any process. `exit.json` survives a loss of power too, and so does the `state.json` by
//! which an ended task is found: the end must still be reported to the server, which keeps its power. The start of a task
//! is not synced to disk, because a loss of power ends the task as well.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::files::{self, Durability, FileError, FileSystem, Kernel, is_no_room};
use crate::processes::Scope;
use crate::{Backend, Exit, Fence, TaskSpec};

const LOCK: &str = "lock";
const TASK: &str = "task.json";
const STATE: &str = "state.json";
const OUTPUT: &str = "output.log";
const EXIT: &str = "exit.json";
const FENCE: &str = "fence.json";
const FENCED: &str = "fenced";
const RESERVE: &str = "reserve";
/// Enough for a small file and its name on any file system.
const RESERVE_BYTES: usize = 16 << 10;

/// The directory of one task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskDirectory(PathBuf);

/// The contents of `state.json`: enough to find a started task again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TaskState {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    /// The container, if it is one.
    #[serde(default)]
    pub(crate) container: Option<ContainerRef>,
    /// The length of cantle's own lines at the beginning of a container's output file.
    #[serde(default)]
    pub(crate) head_len: u64,
}

/// A container by its name on its engine, which lasts over a restart of this program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRef {
    pub(crate) socket: PathBuf,
    pub(crate) id: String,
}

impl TaskDirectory {
    /// The names that belong to the runtime.
    pub const FILES: [&str; 8] = [LOCK, TASK, STATE, OUTPUT, EXIT, FENCE, FENCED, RESERVE];

    /// The directory at `path`, which need not exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Makes the directory, for its owner only. It is made durable by [`files::sync_directory`] of its parent.
    ///
    /// # Errors
    /// Names the directory.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, FileError> {
        let directory = Self::new(path);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory.0);
        made.map_err(|why| FileError::new(&directory.0, why))?;
        Ok(directory)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The output of the task.
    #[must_use]
    pub fn output(&self) -> PathBuf {
        self.0.join(OUTPUT)
    }

    /// A file of the program that starts tasks. Its name must be none of [`Self::FILES`].
    #[must_use]
    pub fn owner_file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Does a supervisor live that may have started the task, or a guard of its container?
    #[must_use]
    pub fn is_supervised(&self) -> bool {
        match File::open(self.0.join(LOCK)) {
            Ok(lock) => matches!(lock.try_lock_shared(), Err(fs::TryLockError::WouldBlock)),
            // A process without a free file descriptor cannot tell, and must not take the slice of a running task.
            Err(why) => is_no_room(&why),
        }
    }

    /// Makes sure that nothing starts from this directory any more; false if a supervisor lives, which may have started the
    /// task or be about to.
    ///
    /// # Errors
    /// Names the file that cannot be locked or removed.
    pub fn disarm(&self) -> Result<bool, FileError> {
        match self.try_lock() {
            Ok(Some(_lock)) => files::remove(&self.0.join(TASK)).map(|()| true),
            Ok(None) => Ok(false),
            Err(why) => Err(FileError::new(&self.0.join(LOCK), why)),
        }
    }

    /// Removes the directory with all that is in it.
    ///
    /// # Errors
    /// Names what could not be removed.
    pub fn remove(&self) -> Result<(), FileError> {
        files::remove(&self.0)
    }

    /// Until when the task may run; `None` for as long as it likes, or if that cannot be read.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        // Its owner sets it again with the next renewal.
        self.read_fence().ok().flatten()
    }

    /// [`Self::fence`] for the process that ends the task at it.
    pub(crate) fn read_fence(&self) -> Result<Option<Fence>, FileError> {
        files::read_json(&self.0.join(FENCE))
    }

    /// Sets or renews it; `None` removes it. A restart of the machine ends the task anyway.
    ///
    /// # Errors
    /// Names the file.
    pub fn set_fence(&self, fence: Option<Fence>) -> Result<(), FileError> {
        let path = self.0.join(FENCE);
        match fence {
            Some(fence) => files::write_json(&path, &fence, Durability::Crash),
            None => files::remove(&path),
        }
    }

    /// Was the task ended at its fence?
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.0.join(FENCED).exists()
    }

    pub(crate) fn mark_fenced(&self) -> io::Result<()> {
        File::create(self.0.join(FENCED)).map(drop)
    }

    /// The supervisor's lock; `None` if another process has it.
    pub(crate) fn try_lock(&self) -> io::Result<Option<File>> {
        let mut open = OpenOptions::new();
        let lock = open.write(true).create(true).truncate(false).mode(0o600).open(self.0.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(why)) => Err(why),
        }
    }

    /// Makes the directory if need be, and removes what an earlier run under the same name may have left: it must not be
    /// taken for this one's.
    pub(crate) fn prepare(&self) -> Result<(), FileError> {
        Self::create(&self.0)?;
        [STATE, EXIT, OUTPUT, FENCE, FENCED].iter().try_for_each(|old| files::remove(&self.0.join(old)))?;
        self.reserve()
    }

    pub(crate) fn write_spec(&self, spec: &TaskSpec) -> Result<(), FileError> {
        files::write_json(&self.0.join(TASK), spec, Durability::Crash)
    }

    /// Nothing of the task is left, and it was not started.
    pub(crate) fn forget_state(&self) {
        // If it stays, the task counts as one that has ended unobserved.
        let _ = files::remove(&self.0.join(STATE));
    }

    pub(crate) fn read_spec(&self) -> Result<TaskSpec, FileError> {
        let path = self.0.join(TASK);
        files::read_json(&path)?.ok_or_else(|| FileError::new(&path, io::ErrorKind::NotFound.into()))
    }

    pub(crate) fn write_state(&self, state: &TaskState) -> Result<(), FileError> {
        files::write_json(&self.0.join(STATE), state, Durability::Crash)
    }

    /// `None` if the task was never started.
    pub(crate) fn read_state(&self) -> Result<Option<TaskState>, FileError> {
        files::read_json(&self.0.join(STATE))
    }

    /// Takes the space that the end of the task will need.
    fn reserve(&self) -> Result<(), FileError> {
        let path = self.0.join(RESERVE);
        let made = File::create(&path).and_then(|mut file| file.write_all(&[0; RESERVE_BYTES]));
        made.map_err(|why| FileError::new(&path, why))
    }

    pub(crate) fn write_exit(&self, exit: Exit) -> io::Result<()> {
        self.write_exit_to(&Kernel, exit).or_else(|_| {
            files::remove(&self.0.join(RESERVE)).map_err(|why| why.source)?;
            self.write_exit_to(&Kernel, exit)
        })
    }

    fn write_exit_to(&self, files: &impl FileSystem, exit: Exit) -> io::Result<()> {
        match files::sync(files, &self.0.join(STATE)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        files::write_json_to(files, &self.0.join(EXIT), &exit, Durability::PowerLoss)
    }

    /// `None` too if it cannot be read.
    pub(crate) fn read_exit(&self) -> Option<Exit> {
        self.find_exit().ok().flatten()
    }

    pub(crate) fn find_exit(&self) -> Result<Option<Exit>, FileError> {
        files::read_json(&self.0.join(EXIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::disk::Disk;

    #[test]
    fn nothing_starts_from_a_disarmed_directory() {
        let root = tempfile::tempdir().unwrap();
        let directory = TaskDirectory::create(root.path().join("a")).unwrap();
        assert!(!directory.is_supervised());
        fs::write(directory.path().join(TASK), "{}").unwrap();
        let supervisor = directory.try_lock().unwrap().unwrap();
        assert!(directory.is_supervised());
        assert!(!directory.disarm().unwrap());
        assert!(directory.path().join(TASK).exists());
        drop(supervisor);
        assert!(!directory.is_supervised());
        assert!(directory.disarm().unwrap());
        assert!(!directory.path().join(TASK).exists());
        assert!(directory.read_spec().is_err(), "a supervisor that comes later finds nothing");
    }

    #[test]
    fn an_ended_task_is_found_after_a_loss_of_power() {
        let (disk, directory) = (Disk::default(), TaskDirectory::new("/tasks/a"));
        let state = directory.path().join(STATE);
        files::write_json_to(&disk, &state, &"its processes", Durability::Crash).unwrap();
        directory.write_exit_to(&disk, Exit::Code(3)).unwrap();
        let found = disk.restart();
        assert_eq!(found.get(&state).unwrap(), b"\"its processes\"");
        assert_eq!(found.get(&directory.path().join(EXIT)).unwrap(), b"{\"code\":3}");
    }
}
