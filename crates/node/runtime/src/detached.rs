//! A task with a supervisor process of its own. Its [`TaskDirectory`] is enough to find it again.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{User, geteuid};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::container::Container;
use crate::files::FileError;
use crate::processes::Scope;
use crate::running::TaskKind;
use crate::supervisor::Report;
use crate::{Backend, Exit, RunningTask, StartError, TASK_INIT_COMMAND, TaskDirectory, TaskSpec};

/// How often an adopted task, which is not our child, is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The variables that the agent reads and its tasks must not see: neither they nor their supervisors, whose environment they
/// could read, get it.
const OF_THE_AGENT: [&str; 6] = [
    "CANTLE_CLIENT_CERT",
    "CANTLE_CLIENT_KEY",
    "CANTLE_KEYS_FILE",
    "CLEARML_API_ACCESS_KEY",
    "CLEARML_API_SECRET_KEY",
    "CREDENTIALS_DIRECTORY",
];

/// Variables that a service manager sets for the agent alone (systemd.exec(5), sd_listen_fds(3),
/// sd_watchdog_enabled(3)): a program that finds them takes itself for the service.
const OF_THE_SERVICE: [&str; 17] = [
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "FDSTORE",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGS_DIRECTORY",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "SYSTEMD_EXEC_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
];

#[derive(Debug)]
pub(crate) struct Detached {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    directory: TaskDirectory,
    /// The supervisor, if this process started it.
    child: Option<Child>,
}

/// Starts a task that outlives this process. `exe` is the program to run as its supervisor, which must call
/// `task_init_main` when its first argument is [`TASK_INIT_COMMAND`] (`/proc/self/exe` for cantle itself).
///
/// # Errors
/// If the task does not start; nothing runs then.
pub async fn start_detached(
    spec: &TaskSpec,
    directory: &TaskDirectory,
    exe: &Path,
) -> Result<RunningTask, StartError> {
    let written = directory.prepare().and_then(|()| directory.write_spec(spec));
    written.map_err(|why| StartError::setup("write the task directory", why))?;
    let mut command = supervisor_command(exe);
    command.arg(directory.path());
    let stdin = if spec.secrets.is_empty() { Stdio::null() } else { Stdio::piped() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|why| StartError::setup("start the supervisor", why))?;
    if let Some(mut to) = child.stdin.take() {
        let secrets = serde_json::to_vec(&spec.secrets).map_err(std::io::Error::from);
        let secrets = secrets.map_err(|why| StartError::setup("pass the secrets on", why))?;
        // A supervisor that was killed reports nothing, which comes next.
        let _ = to.write_all(&secrets).await;
    }
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        let read = BufReader::new(out).read_line(&mut line).await;
        read.map_err(|why| StartError::setup("read the supervisor's report", why))?;
    }
    let Ok(report) = serde_json::from_str::<Report>(&line) else {
        // It was killed. If it has started the task, its processes are found by the directory.
        let _ = child.wait().await;
        return adopt(directory).ok().flatten().ok_or_else(|| StartError::Setup {
            what: "supervisor".to_owned(),
            why: "it was killed before it started the task".to_owned(),
            is_out_of_room: true,
        });
    };
    let state = match report.into_state() {
        Ok(state) => state,
        Err(error) => {
            // The supervisor ends by itself after its report; waiting only collects it.
            let _ = child.wait().await;
            return Err(error);
        }
    };
    let (scope, backend, directory) = (state.scope, state.backend, directory.clone());
    Ok(RunningTask { kind: TaskKind::Detached(Detached { scope, backend, directory, child: Some(child) }) })
}

/// A process of this program that outlives it and has nothing of its secrets.
pub(crate) fn supervisor_command(exe: &Path) -> Command {
    let mut command = Command::new(exe);
    command.arg(TASK_INIT_COMMAND);
    for name in OF_THE_AGENT.iter().chain(&OF_THE_SERVICE) {
        command.env_remove(name);
    }
    command.envs(of_the_user().into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
    command
}

/// Settings that a login gives a program, and that systemd does not give a service of root: without a home directory
/// caches land in `/`, and git refuses to work.
fn of_the_user() -> Vec<(&'static str, OsString)> {
    let Ok(Some(user)) = User::from_uid(geteuid()) else { return Vec::new() };
    let name = OsString::from(&user.name);
    vec![("HOME", user.dir.into()), ("USER", name.clone()), ("LOGNAME", name), ("SHELL", user.shell.into())]
}

/// Finds the task of a directory again after a restart; `None` if it was never started. It may have ended meanwhile:
/// [`RunningTask::wait`] tells. Needs a tokio runtime.
///
/// # Errors
/// If the state of the task cannot be read: whether it was started is not known then.
pub fn adopt(directory: &TaskDirectory) -> Result<Option<RunningTask>, FileError> {
    let Some(state) = directory.read_state()? else { return Ok(None) };
    let directory = directory.clone();
    if state.container.is_some() {
        let container = Container::adopt(directory, state);
        return Ok(container.map(|container| RunningTask { kind: TaskKind::Container(container) }));
    }
    let (scope, backend) = (state.scope, state.backend);
    Ok(Some(RunningTask { kind: TaskKind::Detached(Detached { scope, backend, directory, child: None }) }))
}

impl Detached {
    pub(crate) async fn wait(&mut self) -> Exit {
        match &mut self.child {
            // The exit code of the supervisor does not matter: what it wrote does.
            Some(child) => drop(child.wait().await),
            None => {
                while self.directory.is_supervised() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
        let found = loop {
            match self.directory.find_exit() {
                // The end is on disk, and this process has no free file descriptor now.
                Err(why) if why.is_out_of_room() => tokio::time::sleep(POLL_INTERVAL).await,
                found => break found.ok().flatten(),
            }
        };
        if let Some(exit) = found {
            return exit;
        }
        // The supervisor was killed. Its task may still run, and no other process will end it.
        self.scope.end(Duration::ZERO).await;
        self.scope.close();
        Exit::Lost
    }
}
