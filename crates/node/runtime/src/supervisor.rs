//! Waits for a task and for all processes that it leaves behind. In `cantle run` the supervisor is a thread. A task of
//! the agent has a supervisor process, so that the task outlives the agent and its end is recorded.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use cantle_model::Holder;
use nix::errno::Errno;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{close, fchown, setsid};
use serde::{Deserialize, Serialize};

use crate::container::{GUARD, guard_main};
use crate::exec::{ENTER, enter_main};
use crate::fence;
use crate::first::{FIRST, Reports, first_main};
use crate::ignored::ignore_nothing;
use crate::processes::{Scope, pid_of};
use crate::spawn::{Accounting, Group, Stdio3, spawn};
use crate::task_directory::TaskState;
use crate::{Backend, Exit, StartError, TaskDirectory};

/// Time between SIGTERM and SIGKILL for the processes that a task's first process leaves behind.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// The supervisor's reports to the program that started it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Started(TaskState),
    /// The error's text and exit code: a [`StartError`] itself cannot cross a process boundary.
    Failed {
        message: String,
        exit_code: u8,
        #[serde(default)]
        is_out_of_room: bool,
    },
}

impl Report {
    fn failed(error: &StartError) -> Self {
        let (message, exit_code) = (error.to_string(), error.exit_code());
        Self::Failed { message, exit_code, is_out_of_room: error.is_out_of_room() }
    }

    pub(crate) fn into_state(self) -> Result<TaskState, StartError> {
        match self {
            Self::Started(state) => Ok(state),
            Self::Failed { message, exit_code, is_out_of_room } => {
                Err(StartError::Supervisor { message, exit_code, is_out_of_room })
            }
        }
    }
}

/// Waits for the first process, then ends what it left behind. The slice is free when this returns.
pub(crate) fn wait_for_all(scope: &Scope, reports: Option<Reports>) -> Exit {
    let exit = match reports {
        Some(mut reports) => reports.ended().unwrap_or_else(|| wait_for_child(&scope.root)),
        None => wait_for_child(&scope.leader),
    };
    if !scope.members().is_empty() {
        scope.end_blocking(ORPHAN_GRACE, reap_orphans);
    }
    reap_orphans();
    scope.close();
    exit
}

fn wait_for_child(child: &Holder) -> Exit {
    let leader = pid_of(child);
    loop {
        // Any child: orphans of the task become our children and must be reaped too.
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == leader => return Exit::Code(code),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == leader => return Exit::Signal(signal as i32),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return Exit::Lost,
        }
    }
}

fn reap_orphans() {
    while matches!(
        waitpid(None, Some(WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
    ) {}
}

/// The `main` of a task's supervisor, of its first process (`first.rs`), or of its container's guard; `args` are those after
/// [`crate::TASK_INIT_COMMAND`]: the task's directory, or a word and what it needs. Runs before anything else of the program (no async
/// runtime, no argument parser), because its time is part of every task's start.
#[must_use]
pub fn task_init_main(args: &[OsString]) -> ExitCode {
    let directory = match args {
        [word, first @ ..] if word == FIRST => return first_main(first),
        [word, what @ ..] if word == ENTER => return enter_main(what),
        [word, directory] if word == GUARD => return guard_main(Path::new(directory)),
        [directory] => directory,
        _ => return ExitCode::from(2),
    };
    close_inherited();
    ignore_nothing();
    let directory = TaskDirectory::new(Path::new(directory));
    match start(&directory) {
        Ok(Supervised { scope, reports, _accounting, _lock }) => {
            let exit = wait_for_all(&scope, reports);
            match directory.write_exit(exit) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            // If even this fails, the agent sees a supervisor that ended without a report.
            let _ = report(&Report::failed(&error));
            ExitCode::FAILURE
        }
    }
}

/// The agent's open files are not the task's. (The task of a `cantle run` inherits what its caller gives it, such as
/// `<(command)` of a shell.)
fn close_inherited() {
    let open = fs::read_dir("/proc/self/fd").into_iter().flatten().filter_map(Result::ok);
    let numbers: Vec<i32> = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The listing's own is closed already.
        let _ = close(number);
    }
}

/// A started task, and what its supervisor holds until its end.
struct Supervised {
    scope: Scope,
    reports: Option<Reports>,
    _accounting: Accounting,
    _lock: File,
}

fn start(directory: &TaskDirectory) -> Result<Supervised, StartError> {
    let lock = directory.try_lock().map_err(|why| StartError::setup("lock", why))?;
    let lock = lock.ok_or_else(|| StartError::setup("lock", "the task has a supervisor already"))?;
    let mut spec = directory.read_spec().map_err(|why| StartError::setup("read", why))?;
    spec.secrets = read_secrets().map_err(|why| StartError::setup("read the secrets", why))?;
    // Ctrl-C in the agent's terminal is not meant for the task.
    setsid().map_err(|why| StartError::setup("setsid", why))?;
    set_child_subreaper(true).map_err(|why| StartError::setup("adopt the task's orphans", why))?;
    // While nothing has started: a machine without room for one more thread must not end the task later.
    let guarded = guard_of(directory).map_err(|why| StartError::setup("start a thread", why))?;
    let output = OpenOptions::new().append(true).create(true).open(directory.output());
    let output = output.map_err(|why| StartError::setup("output file", why))?;
    if let Some(user) = &spec.user {
        // Programs open their output again by its name, such as `/dev/stdout`.
        let (uid, gid) = user.owner();
        fchown(&output, uid, gid).map_err(|why| StartError::setup("output file", why))?;
    }
    let state = |scope: &Scope, backend: &Backend| TaskState {
        scope: scope.clone(),
        backend: backend.clone(),
        container: None,
        head_len: 0,
    };
    // Before the task's first instruction: the program that cleans up after a kill finds its processes.
    let record = |scope: &Scope, backend: &Backend| {
        directory.write_state(&state(scope, backend)).map_err(|why| StartError::setup("write state", why))
    };
    let spawned =
        spawn(&spec, Stdio3::Log(output), Group::Own, record).inspect_err(|_| directory.forget_state())?;
    let scope = spawned.scope;
    // The thread waits for it.
    let _ = guarded.send(scope.clone());
    let state = state(&scope, &spawned.backend);
    // With the task's own pid. On a disk that is full by now the first record is enough.
    let _ = directory.write_state(&state);
    // The agent may have been killed meanwhile. The task runs nevertheless, and the next agent reads the directory.
    let _ = report(&Report::Started(state));
    Ok(Supervised { scope, reports: spawned.reports, _accounting: spawned.accounting, _lock: lock })
}

/// The secrets of the task come through stdin, which is empty for most tasks.
fn read_secrets() -> io::Result<BTreeMap<String, String>> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    if text.is_empty() { Ok(BTreeMap::new()) } else { Ok(serde_json::from_slice(&text)?) }
}

/// Starts the thread that ends the task at its fence. It waits for the scope of the task, and ends with this process.
fn guard_of(directory: &TaskDirectory) -> io::Result<Sender<Scope>> {
    let (tell, told) = mpsc::channel();
    let directory = directory.clone();
    thread::Builder::new().spawn(move || {
        if let Ok(scope) = told.recv() {
            fence::guard(&directory, &scope);
        }
    })?;
    Ok(tell)
}

/// One line to the agent, which waits for it.
fn report(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut out = io::stdout();
    out.write_all(&line)?;
    out.flush()
}
