//! A container that runs a task.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use bollard::query_parameters::{KillContainerOptions, StopContainerOptions, WaitContainerOptions};
use futures_util::StreamExt;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use super::engine::{self, CALL_LIMIT, Engine, EngineError, Seen, limited, look};
use super::output::Output;
use crate::detached::{State, TaskDir};
use crate::processes::{FileId, Scope};
use crate::signals::{self, FromTerminal, Signals};
use crate::{Backend, Exit, StartError, TaskSpec, holder_of};

/// An engine that is away is asked again in so long.
const AGAIN: Duration = Duration::from_millis(500);

/// How often it is looked again for a container that the engine does not know any more.
const DOUBTS: u32 = 4;
/// How often an answer that makes no sense is asked for again.
const LOOKS: u32 = 20;

/// Names a container over a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ContainerRef {
    pub(crate) socket: PathBuf,
    pub(crate) id: String,
}

#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) scope: Scope,
    pub(crate) backend: Backend,
    docker: Docker,
    id: String,
    dir: Option<TaskDir>,
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
        output: Output,
    ) -> Result<Self, StartError> {
        let pid = pid_of(&docker, &at.id).await?;
        let usage = FileId::of(&spec.confinement.slice_dir.join("usage"));
        // The engine's own process for this container is the parent of whatever enters it, `docker exec` included.
        // A task that has ended already has neither; nobody must be mistaken for it.
        let nobody = cantle_model::Holder { pid: 0, start_ticks: u64::MAX };
        let leader = holder_of(pid).unwrap_or(nobody);
        let root = crate::processes::parent_of(pid).and_then(holder_of).unwrap_or(nobody);
        let scope = Scope::below(root, leader, usage);
        if leader != nobody && !spec.slices.is_empty() {
            verify(pid, &spec.confinement.slice_dir)?;
        }
        let dir = output.task_dir();
        let head_len =
            dir.as_ref().map_or(0, |dir| std::fs::metadata(dir.output()).map_or(0, |meta| meta.len()));
        let signals = if let Some(dir) = &dir {
            let container = Some(at.clone());
            let state = State { scope: scope.clone(), backend: Backend::Container, container, head_len };
            dir.write_state(&state).map_err(|why| StartError::setup("write state", why))?;
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
            dir,
            output: Some(copy),
            signals,
            exit: None,
        })
    }

    /// The container of a task's folder, after a restart. Needs a tokio runtime.
    pub(crate) fn adopt(dir: &Path, at: &ContainerRef, state: &State) -> Option<Self> {
        let docker = Engine::at(&at.socket).ok()?.into_docker();
        let output = Output::TaskDir(dir.to_owned());
        let copy = tokio::spawn(output.copy(docker.clone(), at.id.clone(), state.head_len));
        Some(Self {
            scope: state.scope.clone(),
            backend: Backend::Container,
            docker,
            id: at.id.clone(),
            dir: Some(TaskDir::new(dir)),
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
        let (mut said, mut doubts) = (None, 0);
        let exit = loop {
            // The stream ends when the container does, or when the engine goes away; only the state tells which.
            let ended = self.docker.wait_container(&self.id, None::<WaitContainerOptions>);
            let mut ended = std::pin::pin!(ended);
            loop {
                tokio::select! {
                    item = ended.next() => match item {
                        Some(Ok(answer)) => said = i32::try_from(answer.status_code).ok(),
                        Some(Err(Error::DockerContainerWaitError { code, .. })) => {
                            said = i32::try_from(code).ok();
                            break;
                        }
                        None | Some(Err(_)) => break,
                    },
                    signal = next(&mut self.signals) => pass_on(&self.docker, &self.id, signal).await,
                }
            }
            // Of a container that is just ending, Podman may know neither the code nor the container itself for a moment.
            match look(&self.docker, &self.id).await {
                Seen::Ended(Some(code)) => break Exit::Code(code),
                Seen::Ended(None) | Seen::Gone => {
                    let exit = self.remembered(said);
                    if exit != Exit::Lost || doubts == DOUBTS {
                        break exit;
                    }
                    doubts += 1;
                    tokio::time::sleep(AGAIN).await;
                }
                Seen::Running | Seen::Nothing => tokio::time::sleep(AGAIN).await,
            }
        };
        if let Some(output) = &mut self.output {
            // Output that can't be had any more does not change how the task ended.
            let _ = output.await;
            self.output = None;
        }
        if let Some(dir) = &self.dir {
            // Before the container is gone, or a restart would not know.
            let _ = dir.write_exit(exit);
        }
        while engine::remove(&self.docker, &self.id).await.is_err() {
            tokio::time::sleep(AGAIN).await;
        }
        self.exit = Some(exit);
        exit
    }

    pub(crate) fn stopper(&self) -> ContainerStopper {
        ContainerStopper { docker: self.docker.clone(), id: self.id.clone() }
    }

    /// Removed already: by us before a restart, or by somebody else. `said` is the code that the engine gave when it ended.
    fn remembered(&self, said: Option<i32>) -> Exit {
        let written = self.dir.as_ref().and_then(TaskDir::read_exit);
        written.or_else(|| said.filter(|code| *code >= 0).map(Exit::Code)).unwrap_or(Exit::Lost)
    }
}

/// The next signal for the task; never one if nobody sends any.
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

async fn pid_of(docker: &Docker, id: &str) -> Result<u32, StartError> {
    let mut looks = 0;
    let found = loop {
        let call = limited("inspect", CALL_LIMIT, docker.inspect_container(id, None)).await;
        looks += 1;
        match call {
            // Podman calls a container that is just ending "stopped", which is no word of docker's.
            Err(EngineError::Garbled { .. }) if looks < LOOKS => tokio::time::sleep(AGAIN).await,
            answer => break answer?,
        }
    };
    let pid = found.state.and_then(|state| state.pid).unwrap_or(0);
    Ok(u32::try_from(pid).unwrap_or(0))
}

/// The container must really see its own slice. An image with clever links could make a harmless-looking mount of the
/// task land on top of cantle's.
fn verify(pid: u32, slice_dir: &Path) -> Result<(), StartError> {
    for name in ["limits", "usage"] {
        let root = PathBuf::from(format!("/proc/{pid}/root/"));
        let inside = root.join(crate::namespace::SLICE_DIR.trim_start_matches('/')).join(name);
        let same = FileId::of(&inside) == FileId::of(&slice_dir.join(name));
        // A task that is ending, or has ended, has no root any more, and did no harm.
        if !same && FileId::of(&root).is_some() {
            return Err(StartError::setup(
                "container",
                format!("it hides {name} of its slice; it was ended"),
            ));
        }
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(crate) struct ContainerStopper {
    docker: Docker,
    id: String,
}

impl ContainerStopper {
    /// The engine's own way; false if the engine does not do it.
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
