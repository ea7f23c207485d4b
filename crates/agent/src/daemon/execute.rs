//! From a task that is ours to processes that run. What takes long (a container's image, an engine that hangs) runs
//! beside the loop, so that the other tasks go on.

use std::path::PathBuf;

use cantle_clearml::tasks;
use cantle_model::LeaseId;
use cantle_runtime::{ContainerSpec, Engine, Exit, Output, Running, TaskSpec, start_detached};
use tokio::time::Instant;

use super::entry::Stage;
use super::{Agent, command};
use crate::AgentError;
use crate::job::{Outcome, Stop};
use crate::launch::{enforced_by, got};
use crate::refusals::Refusals;

/// What became of something that runs beside the loop.
pub(crate) enum News {
    /// A task was started, or not.
    Started(Box<Result<Running, AgentError>>),
    /// Of a task and all it left behind nothing is left.
    Ended(Exit),
}

/// How a task is started.
enum Way {
    Process { program: PathBuf },
    Container { engine: Engine, container: Box<ContainerSpec> },
}

impl Way {
    async fn start(self, spec: TaskSpec, dir: PathBuf) -> Result<Running, AgentError> {
        Ok(match self {
            Self::Process { program } => start_detached(&spec, &dir, &program).await?,
            Self::Container { engine, container } => {
                engine.start(&spec, &container, Output::TaskDir(dir)).await?
            }
        })
    }
}

impl Agent {
    /// The task is ours and the server knows: from here on it ends with an outcome.
    pub(crate) fn execute(&mut self, lease: &LeaseId, task: &tasks::Task) {
        match self.prepare(lease, task) {
            Ok((way, spec, dir)) => {
                let (news, lease) = (self.news_sender.clone(), lease.clone());
                tokio::spawn(async move {
                    let started = way.start(spec, dir).await;
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
    ) -> Result<(Way, TaskSpec, PathBuf), AgentError> {
        let command = command::of_task(task, &self.config, &self.worker)?;
        let Some(entry) = self.entries.get_mut(lease) else {
            return Err(AgentError::LeaseGone(lease.clone()));
        };
        entry.job.name.clone_from(&task.name);
        entry.job.command = Some(command.clone());
        entry.dir.write(&entry.job)?;
        let standing = self.node.lock()?.lease(lease)?;
        let standing = standing.ok_or_else(|| AgentError::LeaseGone(lease.clone()))?;
        self.launcher.make_region(self.driver.as_ref(), &self.node, &standing, &self.gpus)?;
        self.node.link_task(lease, entry.dir.path())?;
        let mut spec = self.launcher.spec(&self.node, lease, &standing.slices, &command);
        entry.stage = Stage::Starting;
        let dir = entry.dir.path().to_owned();
        let way = match (&self.engine, &self.config.docker) {
            (Some(engine), Some(docker)) => {
                let container = Box::new(self.container_spec(docker, task, &mut spec)?);
                Way::Container { engine: engine.clone(), container }
            }
            _ => Way::Process { program: self.config.program.clone() },
        };
        Ok((way, spec, dir))
    }

    pub(crate) fn heed(&mut self, lease: &LeaseId, news: News) {
        match news {
            News::Started(started) => match *started {
                Ok(running) => self.started(lease, running),
                Err(error) => self.not_started(lease, &error),
            },
            News::Ended(exit) => self.task_ended(lease, exit),
        }
    }

    fn started(&mut self, lease: &LeaseId, running: Running) {
        let Some(entry) = self.entries.get_mut(lease) else { return };
        entry.stage = Stage::Running(running.stopper());
        entry.refusals = Refusals::of(&self.node.slice_dir(lease));
        entry.pinged = Instant::now();
        let (task, name) = (entry.job.task.0.clone(), entry.job.name.clone());
        let how = format!("{}, {}", got(&entry.job.slices, &self.gpus), enforced_by(running.backend()));
        let leader = running.leader();
        self.watch(lease.clone(), running);
        let noted = self.node.lock().and_then(|locked| match locked.lease(lease)? {
            Some(mut lease) => {
                lease.name.clone_from(&name);
                lease.leader = Some(leader);
                locked.put(&lease)
            }
            None => Err(AgentError::LeaseGone(lease.clone())),
        });
        match noted {
            Ok(()) => self.note("start", Some(&task), None, format!("task {name} started: {how}")),
            // Without its first process in it the lease would fall when we do.
            Err(error) => self.stop(lease, Stop::Enforced(format!("its lease can't be kept: {error}"))),
        }
        self.planning.changed = true;
    }

    fn not_started(&mut self, lease: &LeaseId, error: &AgentError) {
        let message = Some(format!("not started: {}", command::explain(error)));
        self.settle(lease, Outcome { code: Some(i32::from(error.exit_code())), message });
    }
}
