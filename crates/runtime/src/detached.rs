//! A task with a supervisor process of its own. Its folder on disk is all that is needed to find it again:
//!
//! ```text
//! task.json    what was asked for
//! lock         locked as long as the supervisor lives
//! state.json   processes and backend, once started
//! output.log   stdout and stderr
//! exit.json    how it ended, once everything of it is gone
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::container::{Container, ContainerRef};
use crate::files::{Survives, read_json, write_json};
use crate::processes::Scope;
use crate::running::Kind;
use crate::{Backend, Exit, Running, StartError, TASK_INIT_COMMAND, TaskSpec};

/// How often an adopted task, which is not our child, is looked at.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    /// The container, if it is one.
    #[serde(default)]
    pub(crate) container: Option<ContainerRef>,
    /// How many bytes at the beginning of a container's output file are cantle's own.
    #[serde(default)]
    pub(crate) head_len: u64,
}

/// What the supervisor tells whoever started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Started(State),
    /// The error's text and exit code: a [`StartError`] itself can't cross a process boundary.
    Failed {
        message: String,
        exit_code: u8,
    },
}

impl Report {
    pub(crate) fn failed(error: &StartError) -> Self {
        Self::Failed { message: error.to_string(), exit_code: error.exit_code() }
    }

    fn into_state(self) -> Result<State, StartError> {
        match self {
            Self::Started(state) => Ok(state),
            Self::Failed { message, exit_code } => Err(StartError::Supervisor { message, exit_code }),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    dir: TaskDir,
    /// The supervisor, if this process started it.
    child: Option<Child>,
}

/// Starts a task that outlives this process. `dir` becomes the task's folder; `exe` is the program to run as its
/// supervisor, which must call [`crate::task_init_main`] when its first argument is [`TASK_INIT_COMMAND`]
/// (`/proc/self/exe` for cantle itself). Output goes to `output.log` in the folder.
///
/// # Errors
/// If the task does not start; nothing runs then.
pub async fn start_detached(spec: &TaskSpec, dir: &Path, exe: &Path) -> Result<Running, StartError> {
    let dir = TaskDir::new(dir);
    dir.write_spec(spec).map_err(|why| StartError::setup(format!("write {}", dir.0.display()), why))?;
    let mut command = Command::new(exe);
    command.arg(TASK_INIT_COMMAND).arg(&dir.0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|why| StartError::setup("start the supervisor", why))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let read = BufReader::new(out).read_line(&mut line).await;
        read.map_err(|why| StartError::setup("hear from the supervisor", why))?;
    }
    let report: Report = serde_json::from_str(&line)
        .map_err(|_| StartError::setup("supervisor", "it ended without a word"))?;
    let state = match report.into_state() {
        Ok(state) => state,
        Err(error) => {
            // It has said its last word and ends by itself; waiting only collects it.
            let _ = child.wait().await;
            return Err(error);
        }
    };
    let task = Detached { scope: state.scope, backend: state.backend, dir, child: Some(child) };
    Ok(Running { kind: Kind::Detached(task) })
}

/// Finds the task of a folder again after a restart; `None` if it was never started. It may have ended meanwhile:
/// [`Running::wait`] tells. Needs a tokio runtime.
#[must_use]
pub fn adopt(dir: &Path) -> Option<Running> {
    let path = dir;
    let dir = TaskDir::new(path);
    let state: State = read_json(&dir.state()).ok()?;
    if let Some(at) = &state.container {
        return Some(Running { kind: Kind::Container(Container::adopt(path, at, &state)?) });
    }
    let task = Detached { scope: state.scope, backend: state.backend, dir, child: None };
    Some(Running { kind: Kind::Detached(task) })
}

impl Detached {
    pub(crate) async fn wait(&mut self) -> Exit {
        match &mut self.child {
            // How the supervisor ended does not matter: what it wrote does.
            Some(child) => drop(child.wait().await),
            None => {
                while self.dir.is_supervised() {
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
        if let Some(exit) = self.dir.read_exit() {
            return exit;
        }
        // The supervisor was killed. What it watched over may still run, and nobody else will end it.
        self.scope.end(Duration::ZERO).await;
        Exit::Lost
    }
}

/// A task's folder.
#[derive(Clone, Debug)]
pub(crate) struct TaskDir(PathBuf);

impl TaskDir {
    pub(crate) fn new(dir: &Path) -> Self {
        Self(dir.to_owned())
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.0.join("output.log")
    }

    fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    fn exit(&self) -> PathBuf {
        self.0.join("exit.json")
    }

    /// Makes the folder, without what an earlier task of the same name may have left: adopting must not take it for
    /// this one's.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.0)?;
        for old in [self.state(), self.exit(), self.output()] {
            match fs::remove_file(old) {
                Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
                _ => {}
            }
        }
        Ok(())
    }

    fn write_spec(&self, spec: &TaskSpec) -> io::Result<()> {
        self.prepare()?;
        write_json(&self.0.join("task.json"), spec, Survives::Crash)
    }

    pub(crate) fn read_spec(&self) -> Result<TaskSpec, StartError> {
        let path = self.0.join("task.json");
        read_json(&path).map_err(|why| StartError::setup(format!("read {}", path.display()), why))
    }

    pub(crate) fn write_state(&self, state: &State) -> io::Result<()> {
        write_json(&self.state(), state, Survives::Crash)
    }

    pub(crate) fn write_exit(&self, exit: Exit) -> io::Result<()> {
        write_json(&self.exit(), &exit, Survives::PowerCut)
    }

    pub(crate) fn read_exit(&self) -> Option<Exit> {
        read_json(&self.exit()).ok()
    }

    pub(crate) fn lock(&self, how: FlockArg) -> io::Result<Flock<File>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(self.0.join("lock"))?;
        Flock::lock(file, how).map_err(|(_, errno)| errno.into())
    }

    /// The kernel gives the lock back when the supervisor dies, however it dies.
    fn is_supervised(&self) -> bool {
        match self.lock(FlockArg::LockSharedNonblock) {
            Ok(_) => false,
            Err(why) => why.raw_os_error() == Some(Errno::EWOULDBLOCK as i32),
        }
    }
}
