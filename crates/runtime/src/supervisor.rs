//! What stays with a task: waits for it and for everything it leaves behind. In `cantle run` this is a thread, for the
//! daemon's tasks a process of its own, so that a task outlives the daemon and its end is not forgotten.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::setsid;

use crate::detached::{Report, State, TaskDir};
use crate::processes::{Scope, pid_of};
use crate::spawn::{Group, Stdio3, spawn};
use crate::{Exit, StartError, TaskSpec, holder_of};

/// What a task's first process leaves behind gets so long between SIGTERM and SIGKILL.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// Waits for the first process, then ends what it left behind. The slice is free when this returns.
pub(crate) fn wait_for_all(scope: &Scope) -> Exit {
    let exit = wait_for_leader(scope);
    if !scope.members().is_empty() {
        scope.end_blocking(ORPHAN_GRACE, reap_orphans);
    }
    reap_orphans();
    exit
}

fn wait_for_leader(scope: &Scope) -> Exit {
    let leader = pid_of(&scope.leader);
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

/// The supervisor's `main`; `args` are those after [`crate::TASK_INIT_COMMAND`]: the task's folder. Runs before anything
/// else of the program (no async runtime, no argument parser), because its time is part of every task's start.
#[must_use]
pub fn task_init_main(args: &[OsString]) -> ExitCode {
    let [dir] = args else { return ExitCode::from(2) };
    let dir = TaskDir::new(Path::new(dir));
    match start(&dir) {
        Ok((scope, _lock)) => {
            let exit = wait_for_all(&scope);
            match dir.write_exit(exit) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            // If even this fails, the daemon sees a supervisor that ended without a word.
            let _ = report(&Report::failed(&error));
            ExitCode::FAILURE
        }
    }
}

fn start(dir: &TaskDir) -> Result<(Scope, Flock<File>), StartError> {
    let lock = dir.lock(FlockArg::LockExclusiveNonblock).map_err(|why| StartError::setup("lock", why))?;
    let spec: TaskSpec = dir.read_spec()?;
    // Ctrl-C in the daemon's terminal is not meant for the task.
    setsid().map_err(|why| StartError::setup("setsid", why))?;
    set_child_subreaper(true).map_err(|why| StartError::setup("adopt the task's orphans", why))?;
    let own = std::process::id();
    let root = holder_of(own).ok_or_else(|| StartError::setup("read /proc", "own process not found"))?;
    let output = OpenOptions::new().append(true).create(true).open(dir.output());
    let output = output.map_err(|why| StartError::setup("output file", why))?;
    let spawned = spawn(&spec, Stdio3::Log(output), Group::Own)?;
    let scope = Scope::below(root, spawned.leader, spawned.usage);
    let state = State { scope: scope.clone(), backend: spawned.backend, container: None, head_len: 0 };
    dir.write_state(&state).map_err(|why| StartError::setup("write state", why))?;
    // The daemon may have been killed meanwhile. The task runs all the same, and the next daemon reads the folder.
    let _ = report(&Report::Started(state));
    Ok((scope, lock))
}

/// One line to the daemon, which waits for it.
fn report(report: &Report) -> io::Result<()> {
    let mut line = serde_json::to_vec(report)?;
    line.push(b'\n');
    let mut out = io::stdout();
    out.write_all(&line)?;
    out.flush()
}
