//! From a task that is ours to processes that run. What takes long (a container's image, an engine that hangs) runs
//! beside the loop, so that the other tasks go on.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_clearml::tasks;
use cantle_driver::Driver;
use cantle_model::{Gpu, Lease, LeaseId};
use cantle_runtime::{ContainerSpec, Engine, Exit, Output, Running, TaskSpec, start_detached};
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::container::{Docker, Workers, container_spec};
use super::entry::Stage;
use super::{Agent, command};
use crate::AgentError;
use crate::job::{Outcome, Stop};
use crate::launch::{Command, Launcher, enforced_by, got};
use crate::mig::{Stages, make_instances};
use crate::node::Node;
use crate::refusals::Refusals;

/// What became of something that runs beside the loop.
pub(crate) enum News {
    /// A task was started, or not.
    Started(Box<Result<Running, AgentError>>),
    /// What was run for it before it is stopped has ended, this way.
    Tidied(String),
    /// Of a task and all it left behind nothing is left.
    Ended(Exit),
}

/// How a task is to be started.
enum Way {
    Process { program: PathBuf },
    Container { engine: Box<Engine>, docker: Docker, task: Box<tasks::Task>, workers: Workers },
}

/// A task that has everything but a process.
enum Ready {
    Process { program: PathBuf },
    Container { engine: Engine, container: Box<ContainerSpec> },
}

/// All that it takes to start a task beside the loop.
struct Launch {
    driver: Arc<dyn Driver>,
    node: Node,
    gpus: Vec<Gpu>,
    launcher: Arc<Launcher>,
    stages: Stages,
    lease: Lease,
    command: Command,
    way: Way,
}

impl Launch {
    /// Starts it, with its files in `dir`.
    async fn start(self, dir: PathBuf) -> Result<Running, AgentError> {
        let (task, task_dir) = (self.lease.task.0.clone(), dir.clone());
        // Making a MIG instance and measuring a context take a second or more.
        let prepared = spawn_blocking(move || self.prepare(&task_dir)).await;
        let (spec, ready) = prepared.unwrap_or_else(|panic| {
            Err(AgentError::Task { name: task, why: format!("its start failed: {panic}") })
        })?;
        Ok(match ready {
            Ready::Process { program } => start_detached(&spec, &dir, &program).await?,
            Ready::Container { engine, container } => {
                engine.start(&spec, &container, Output::TaskDir(dir)).await?
            }
        })
    }

    fn prepare(mut self, dir: &Path) -> Result<(TaskSpec, Ready), AgentError> {
        let (driver, node) = (self.driver.as_ref(), &self.node);
        make_instances(driver, node, &self.gpus, &mut self.lease, &self.stages)?;
        self.launcher.make_region(driver, node, &self.lease, &self.gpus)?;
        node.link_task(&self.lease.id, dir)?;
        let mut spec = self.launcher.spec(node, &self.lease.id, &self.lease.slices, &self.command);
        let ready = match self.way {
            Way::Process { program } => Ready::Process { program },
            Way::Container { engine, docker, task, workers } => {
                let container = container_spec(driver, &docker, &task, &workers, &mut spec)?;
                let container = Box::new(container);
                Ready::Container { engine: *engine, container }
            }
        };
        Ok((spec, ready))
    }
}

impl Agent {
    /// Writes down what will be run. This comes before the server is told that the task runs: a job without a command is taken
    /// for one that the server never heard of.
    pub(crate) fn write_command(
        &mut self,
        lease: &LeaseId,
        task: &tasks::Task,
    ) -> Result<Command, AgentError> {
        let gone = || AgentError::LeaseGone(lease.clone());
        let worker = self.speaker(self.entries.get(lease).ok_or_else(gone)?);
        let command = command::of_task(task, &self.config, &worker)?;
        let entry = self.entries.get_mut(lease).ok_or_else(gone)?;
        entry.job.name.clone_from(&task.name);
        entry.job.command = Some(command.clone());
        entry.dir.write(&entry.job)?;
        Ok(command)
    }

    /// The task is ours and the server knows: from here on it ends with an outcome.
    pub(crate) fn execute(
        &mut self,
        lease: &LeaseId,
        task: &tasks::Task,
        command: Result<Command, AgentError>,
    ) {
        match command.and_then(|command| self.prepare(lease, task, command)) {
            Ok((launch, dir)) => {
                let (news, lease) = (self.news_sender.clone(), lease.clone());
                let span = tracing::info_span!("launch", task = task.id, %lease);
                tokio::spawn(async move {
                    let started = launch.start(dir).instrument(span).await;
                    // The receiver is gone only when the daemon is; then the next one finds the task by its files.
                    let _ = news.send((lease, News::Started(Box::new(started))));
                });
            }
            Err(error) => self.not_started(lease, &error),
        }
    }

    fn prepare(
        &mut self,
        lease: &LeaseId,
        task: &tasks::Task,
        command: Command,
    ) -> Result<(Launch, PathBuf), AgentError> {
        let gone = || AgentError::LeaseGone(lease.clone());
        let task_worker = self.speaker(self.entries.get(lease).ok_or_else(gone)?);
        let workers = Workers { task: task_worker, agent: self.worker.clone() };
        let entry = self.entries.get_mut(lease).ok_or_else(gone)?;
        let standing = self.node.lock()?.lease(lease)?;
        let standing = standing.ok_or_else(gone)?;
        entry.stage = Stage::Starting;
        let way = match (&self.engine, &self.config.docker) {
            (Some(engine), Some(docker)) => Way::Container {
                engine: Box::new(engine.clone()),
                docker: docker.clone(),
                task: Box::new(task.clone()),
                workers,
            },
            _ => Way::Process { program: self.config.program.clone() },
        };
        let launch = Launch {
            driver: Arc::clone(&self.driver),
            node: self.node.clone(),
            gpus: self.gpus.clone(),
            launcher: Arc::clone(&self.launcher),
            stages: self.meter.mig(),
            lease: standing,
            command,
            way,
        };
        Ok((launch, entry.dir.path().to_owned()))
    }

    pub(crate) fn heed(&mut self, lease: &LeaseId, news: News) {
        match news {
            News::Started(started) => match *started {
                Ok(running) => self.started(lease, running),
                Err(error @ AgentError::PlaceLost { .. }) => self.put_back(lease, &error),
                Err(error) => self.not_started(lease, &error),
            },
            News::Tidied(how) => self.tidied(lease, &how),
            News::Ended(exit) => self.task_ended(lease, exit),
        }
    }

    fn started(&mut self, lease: &LeaseId, running: Running) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        entry.stage = Stage::Running(running.stopper());
        entry.refusals = Refusals::of(&self.node.slice_dir(lease));
        entry.pinged = Instant::now();
        let (task, name) = (entry.job.task.0.clone(), entry.job.name.clone());
        let (leader, enforcement) = (running.leader(), running.backend().enforcement());
        let enforced = enforced_by(running.backend());
        self.watch(lease.clone(), running);
        let noted = self.node.lock().and_then(|locked| match locked.lease(lease)? {
            Some(mut lease) => {
                lease.name.clone_from(&name);
                lease.leader = Some(leader);
                lease.enforcement = enforcement;
                locked.put(&lease).map(|()| lease.slices)
            }
            None => Err(AgentError::LeaseGone(lease.clone())),
        });
        match noted {
            Ok(slices) => {
                let how = format!("{}, {enforced}", got(&slices, &self.gpus));
                // The lease knows the names of its MIG instances by now.
                if let Some(entry) = self.entries.get_mut(lease) {
                    entry.job.slices = slices;
                }
                self.note("run", Some(&task), None, format!("task {name} runs: {how}"));
            }
            // Without its first process in it the lease would fall when we do.
            Err(error) => self.stop(lease, Stop::Enforced(format!("its lease can't be kept: {error}"))),
        }
        self.planning.changed = true;
    }

    /// Nothing is wrong with the task: it gets another place.
    fn put_back(&mut self, lease: &LeaseId, error: &AgentError) {
        if let Some(entry) = self.entries.get_mut(lease) {
            entry.stage = Stage::Returning(error.to_string());
        }
    }

    fn not_started(&mut self, lease: &LeaseId, error: &AgentError) {
        let message = Some(format!("not started: {}", command::explain(error)));
        self.settle(lease, Outcome { code: Some(i32::from(error.exit_code())), message });
    }
}
