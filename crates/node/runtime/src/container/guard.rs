//! The process that ends a container at its fence. The supervisor of a container is the engine, which knows no fence, and the agent may
//! be dead at that time. So a container that has a fence gets a process of cantle's as well. It outlives the agent.

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use nix::unistd::setsid;
use tokio::runtime;

use super::Container;
use super::task::ContainerStopper;
use crate::detached::supervisor_command;
use crate::fence;
use crate::processes::{Scope, alive};
use crate::{StartError, TaskDirectory};

/// The word after [`crate::TASK_INIT_COMMAND`] that makes a program the guard of a container.
pub(crate) const GUARD: &str = "guard";

/// How much longer than the task's own time the engine may take to stop it. Then its processes are killed without the engine.
const ENGINE_LIMIT: Duration = Duration::from_secs(1);

/// Starts the guard of the container of a task; `exe` as for [`crate::start_detached`]. It guards as soon as
/// [`TaskDirectory::is_supervised`], and ends with the container. Nothing happens if the task has no container, or its container a guard.
/// Needs a tokio runtime.
///
/// # Errors
/// If the program cannot be started.
pub fn start_guard(directory: &TaskDirectory, exe: &Path) -> Result<(), StartError> {
    // An agent that cannot read it does not adopt the task.
    let state = directory.read_state().ok().flatten();
    if state.is_none_or(|state| state.container.is_none()) {
        return Ok(());
    }
    let mut command = supervisor_command(exe);
    command.arg(GUARD).arg(directory.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // The runtime collects it at its end.
    command.spawn().map(drop).map_err(|why| StartError::setup("start the guard of the container", why))
}

/// The `main` of a guard.
pub(crate) fn guard_main(directory: &Path) -> ExitCode {
    let directory = TaskDirectory::new(directory);
    // Ctrl-C in the agent's terminal is not meant for the task. Refused only to the first process of a group, which has left already.
    let _ = setsid();
    match directory.try_lock() {
        Ok(Some(_lock)) => guard(&directory),
        // The container has a guard.
        Ok(None) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Ends the container at its fence; returns when it has ended.
fn guard(directory: &TaskDirectory) -> ExitCode {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let (Ok(runtime), Ok(Some(state))) = (runtime, directory.read_state()) else { return ExitCode::FAILURE };
    let Some(stopper) = Container::stopper_of(&state) else { return ExitCode::FAILURE };
    let scope = state.scope;
    let mut until = None;
    while !is_over(directory, &scope) {
        // A fence that cannot be read now is where it was.
        until = directory.read_fence().unwrap_or(until);
        if let Some(grace) = until.and_then(|until| fence::due(directory, until)) {
            runtime.block_on(end(&stopper, &scope, grace));
        }
        std::thread::sleep(fence::EVERY);
    }
    ExitCode::SUCCESS
}

/// By the engine, which knows the signal of the image and what else is to be done. An engine that is away or hangs does not prolong the
/// time.
async fn end(stopper: &ContainerStopper, scope: &Scope, grace: Duration) {
    let stopped = tokio::time::timeout(grace + ENGINE_LIMIT, stopper.stop(grace)).await;
    if stopped != Ok(true) {
        scope.end(Duration::ZERO).await;
    }
}

/// Has the container ended? Its first process ends last, and an agent that lives has written the end down before the container is gone.
fn is_over(directory: &TaskDirectory, scope: &Scope) -> bool {
    directory.read_exit().is_some() || (!alive(&scope.leader) && scope.members().is_empty())
}
