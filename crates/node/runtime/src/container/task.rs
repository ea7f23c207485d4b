//! A container that runs a task.

use std::path::PathBuf;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{KillContainerOptions, StopContainerOptions, WaitContainerOptions};
use futures_util::StreamExt;
use nix::sys::signal::Signal;
use tokio::task::JoinHandle;

use super::EngineError;
use super::calls::{self, CALL_LIMIT, ContainerStatus, limited, status};
use super::copies::uncovered;
use super::output::ContainerOutput;
use crate::processes::{FileId, Scope};
use crate::signals::{self, FromTerminal, Signals};
use crate::task_directory::{ContainerRef, TaskState};
use crate::{Backend, Cgroup, Confinement, Exit, StartError, TaskDirectory, TaskSpec, holder_of};

/// How long to wait before an engine that is away is asked again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// How often the engine is asked again about a container that it does not know any more.
const GONE_RETRIES: u32 = 4;
/// Number of retries after an invalid answer.
const INSPECT_RETRIES: u32 = 20;

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    docker: Docker,
    id: String,
    directory: Option<TaskDirectory>,
    output: Option<JoinHandle<std::io::Result<()>>>,
    /// Those of a front end whose output this is.
    signals: Option<Signals>,
    exit: Option<Exit>,
}

impl Container {
    /// Takes over a container that was just started.
    pub(super) async fn watch(
        docker: Docker,
        at: ContainerRef,
        spec: &TaskSpec,
        output: ContainerOutput,
    ) -> Result<Self, StartError> {
        let pid = pid_of(&docker, &at.id).await?;
        let usage = FileId::of(&spec.confinement.slice_dir.join(cantle_ledger::USAGE_FILE));
        // The engine's own process for this container is the parent of every process that enters it, `docker exec`
        // included. A task that has ended already has neither; no other process may be mistaken for it.
        let nobody = cantle_model::Holder { pid: 0, start_ticks: u64::MAX };
        let leader = holder_of(pid).unwrap_or(nobody);
        let root = crate::processes::parent_of(pid).and_then(holder_of).unwrap_or(nobody);
        let mut scope = Scope::below(root, leader, usage);
        // An engine may have groups of its own all the same. One whose container has ended already has it in none.
        let is_in = |group: &&Cgroup| leader == nobody || group.members().contains(&pid);
        scope.cgroup = spec.cgroup.as_ref().filter(is_in).cloned();
        if leader != nobody && !spec.slices.is_empty() {
            verify(pid, &spec.confinement)?;
        }
        let directory = output.task_directory().cloned();
        let head = directory.as_ref().and_then(|directory| std::fs::metadata(directory.output()).ok());
        let head_len = head.map_or(0, |meta| meta.len());
        let signals = if let Some(directory) = &directory {
            let container = Some(at.clone());
            let state = TaskState { scope: scope.clone(), backend: Backend::Container, container, head_len };
            directory.write_state(&state).map_err(|why| StartError::setup("write state", why))?;
            None
        } else {
            // The engine's process is not in the terminal's process group.
            let signals = signals::for_task(FromTerminal::Forwarded);
            Some(signals.map_err(|why| StartError::setup("signals", why))?)
        };
        let copy = tokio::spawn(output.copy(docker.clone(), at.id.clone(), head_len));
        Ok(Self {
            scope,
            backend: Backend::Container,
            docker,
            id: at.id,
            directory,
            output: Some(copy),
            signals,
            exit: None,
        })
    }

    /// The container of a task's directory, after a restart. Needs a tokio runtime.
    pub(crate) fn adopt(directory: TaskDirectory, state: TaskState) -> Option<Self> {
        let TaskState { scope, backend, container, head_len } = state;
        let ContainerRef { socket, id } = container?;
        let docker = calls::client(&socket).ok()?;
        let output = ContainerOutput::TaskDirectory(directory.clone());
        let copy = tokio::spawn(output.copy(docker.clone(), id.clone(), head_len));
        Some(Self {
            scope,
            backend,
            docker,
            id,
            directory: Some(directory),
            output: Some(copy),
            signals: None,
            exit: None,
        })
    }

    /// Waits until the container has ended, its output is here, and it is removed: then the slice is free.
    pub(crate) async fn wait(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let (mut reported, mut retries) = (None, 0);
        let exit = loop {
            // The stream ends when the container does, or when the engine goes away; only the state shows which.
            let ended = self.docker.wait_container(&self.id, None::<WaitContainerOptions>);
            let mut ended = std::pin::pin!(ended);
            loop {
                tokio::select! {
                    item = ended.next() => match item {
                        Some(Ok(answer)) => reported = i32::try_from(answer.status_code).ok(),
                        Some(Err(Error::DockerContainerWaitError { code, .. })) => {
                            reported = i32::try_from(code).ok();
                            break;
                        }
                        None | Some(Err(_)) => break,
                    },
                    signal = next(&mut self.signals) => pass_on(&self.docker, &self.id, signal).await,
                }
            }
            // Of a container that is just ending, Podman may know neither the code nor the container itself for a moment.
            match status(&self.docker, &self.id).await {
                ContainerStatus::Ended(Some(exit)) => break exit,
                ContainerStatus::Ended(None) | ContainerStatus::Gone => {
                    let exit = self.known_exit(reported);
                    if exit != Exit::Lost || retries == GONE_RETRIES {
                        break exit;
                    }
                    retries += 1;
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                ContainerStatus::Running | ContainerStatus::Unknown => {
                    tokio::time::sleep(RETRY_INTERVAL).await
                }
            }
        };
        if let Some(output) = &mut self.output {
            // Lost output does not change the result of the task.
            let _ = output.await;
            self.output = None;
        }
        if let Some(directory) = &self.directory {
            // Before the container is gone, or a restart would not know.
            // Its space is reserved. If it cannot be written all the same, this program still knows it.
            let _ = directory.write_exit(exit);
        }
        while calls::remove(&self.docker, &self.id).await.is_err() {
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
        self.exit = Some(exit);
        exit
    }

    /// The stopper of the container that a directory names, if it names one.
    pub(super) fn stopper_of(state: &TaskState) -> Option<ContainerStopper> {
        let ContainerRef { socket, id } = state.container.clone()?;
        Some(ContainerStopper { docker: calls::client(&socket).ok()?, id })
    }

    pub(crate) fn stopper(&self) -> ContainerStopper {
        ContainerStopper { docker: self.docker.clone(), id: self.id.clone() }
    }

    /// Removed already: by this agent before a restart, or by another program. `reported` is the code that the engine gave
    /// when it ended.
    fn known_exit(&self, reported: Option<i32>) -> Exit {
        let written = self.directory.as_ref().and_then(TaskDirectory::read_exit);
        written.or_else(|| reported.filter(|code| *code >= 0).map(Exit::Code)).unwrap_or(Exit::Lost)
    }
}

/// The next signal for the task; waits until there is one.
async fn next(signals: &mut Option<Signals>) -> Signal {
    if let Some(signals) = signals
        && let Some(signal) = signals.recv().await
    {
        return signal;
    }
    std::future::pending().await
}

async fn pass_on(docker: &Docker, id: &str, signal: Signal) {
    let options = KillContainerOptions { signal: signal.to_string() };
    // Ended in the meantime: its end is about to be seen.
    let _ = tokio::time::timeout(CALL_LIMIT, docker.kill_container(id, Some(options))).await;
}

pub(super) async fn pid_of(docker: &Docker, id: &str) -> Result<u32, StartError> {
    let mut retries = 0;
    let found = loop {
        let call = limited("inspect", CALL_LIMIT, docker.inspect_container(id, None)).await;
        retries += 1;
        match call {
            // Podman calls a container that is just ending "stopped", which Docker's API does not know.
            Err(EngineError::Garbled { .. }) if retries < INSPECT_RETRIES => {
                tokio::time::sleep(RETRY_INTERVAL).await
            }
            answer => break answer?,
        }
    };
    let pid = found.state.and_then(|state| state.pid).unwrap_or(0);
    Ok(u32::try_from(pid).unwrap_or(0))
}

/// The container must really see its own slice. An image with clever links could make a harmless-looking mount of the
/// task land on top of cantle's, or bring a library along that knows no limit.
pub(super) fn verify(pid: u32, confinement: &Confinement) -> Result<(), StartError> {
    let slice_dir = &confinement.slice_dir;
    for (name, _) in confinement.slice_files() {
        let root = PathBuf::from(format!("/proc/{pid}/root/"));
        let inside = root.join(crate::sandbox::SLICE_DIR.trim_start_matches('/')).join(name);
        let same = FileId::of(&inside) == FileId::of(&slice_dir.join(name));
        // A task that is ending, or has ended, has no root any more, and did no harm.
        if !same && FileId::of(&root).is_some() {
            return Err(StartError::setup(
                "container",
                format!("it hides {name} of its slice; it was ended"),
            ));
        }
    }
    // If a task ends during the check, its mounts are gone, and the covered files appear.
    let lives = || FileId::of(&PathBuf::from(format!("/proc/{pid}/root/"))).is_some();
    if let Some(copy) = uncovered(pid, confinement).filter(|_| lives()) {
        let path = copy.display();
        return Err(StartError::setup(
            "container",
            format!("its image has a library of the driver at {path}, where no limit holds; it was ended"),
        ));
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(crate) struct ContainerStopper {
    docker: Docker,
    id: String,
}

impl ContainerStopper {
    /// Lets the engine stop it; false if the engine does not do it.
    pub(crate) async fn stop(&self, grace: Duration) -> bool {
        if grace.is_zero() {
            let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
            let call = self.docker.kill_container(&self.id, Some(options));
            return done(tokio::time::timeout(CALL_LIMIT, call).await);
        }
        let seconds = i32::try_from(grace.as_secs().max(1)).unwrap_or(i32::MAX);
        let call = self
            .docker
            .stop_container(&self.id, Some(StopContainerOptions { t: Some(seconds), signal: None }));
        done(tokio::time::timeout(grace + CALL_LIMIT, call).await)
    }
}

fn done(answer: Result<Result<(), Error>, tokio::time::error::Elapsed>) -> bool {
    match answer {
        // 304 and 409: it has ended already; 404: it is gone.
        Ok(Ok(()) | Err(Error::DockerResponseServerError { status_code: 304 | 404 | 409, .. })) => true,
        Ok(Err(_)) | Err(_) => false,
    }
}
