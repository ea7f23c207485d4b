//! Starts the processes of an announced task. Slow steps (fetching an image, an engine that hangs) run outside the loop, so
//! that they do not delay other tasks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_clearml::{TaskRequest, tasks};
use cantle_model::Lease;
use cantle_node::mig::{Stages, make_instances};
use cantle_node::{Command, NodeError};
use cantle_runtime::{ContainerOutput, ContainerSpec, RunningTask, TaskDirectory, TaskSpec, start_detached};
use tokio::task::spawn_blocking;

use crate::container::{Workers, container_spec};
use crate::entry::LeasedTask;
use crate::environment::Environment;

/// All that it takes to start a task outside the loop.
pub(super) struct Launch {
    env: Arc<Environment>,
    stages: Stages,
    lease: Lease,
    task: tasks::Task,
    command: Command,
    /// The worker that the task is.
    worker: String,
    /// The directory in which ClearML's agent sets it up.
    workspace: Option<PathBuf>,
}

impl Launch {
    /// # Errors
    /// If the lease is gone or cannot be read.
    pub(super) fn new(
        env: &Arc<Environment>,
        entry: &LeasedTask,
        task: tasks::Task,
        command: Command,
    ) -> Result<Self, NodeError> {
        let id = &entry.job.lease;
        let lease = env.node.lock()?.lease(id)?.ok_or_else(|| NodeError::LeaseGone(id.clone()))?;
        let worker = env.worker_of(&entry.job).to_owned();
        let workspace = entry.job.workspace.clone();
        Ok(Self { env: Arc::clone(env), stages: env.meter.mig(), lease, task, command, worker, workspace })
    }

    pub(super) fn task_id(&self) -> &str {
        &self.task.id
    }

    /// Starts it, with its files in `dir`.
    pub(super) async fn start(self, dir: TaskDirectory) -> Result<RunningTask, NodeError> {
        let (env, task, task_dir) = (Arc::clone(&self.env), self.lease.task.0.clone(), dir.clone());
        // Making a MIG instance and measuring a context take a second or more.
        let prepared = spawn_blocking(move || self.prepare(task_dir.path())).await;
        let (spec, container) = prepared.unwrap_or_else(|panic| {
            Err(NodeError::Task { name: task, why: format!("its start failed: {panic}") })
        })?;
        Ok(match (&env.engine, container) {
            (Some(engine), Some(container)) => {
                let output = ContainerOutput::TaskDirectory(dir);
                let mut running = engine.start(&spec, &container, output).await?;
                env.launcher.require_group(&spec, &mut running).await?;
                running
            }
            _ => start_detached(&spec, &dir, &env.config.program).await?,
        })
    }

    /// The task's request for compute time becomes part of its lease.
    fn set_compute(&mut self) -> Result<(), NodeError> {
        // A request that cannot be read has been refused with the task's command.
        let request = TaskRequest::from_hyperparams(&self.task.hyperparams).ok().flatten();
        let compute = request.unwrap_or_default().compute.share_of(&self.lease.slices)?;
        if compute != self.lease.compute {
            self.lease.compute = compute;
            self.env.node.lock()?.put(&self.lease)?;
        }
        Ok(())
    }

    /// Everything but a process, and the container, where the task gets one.
    fn prepare(mut self, dir: &Path) -> Result<(TaskSpec, Option<Box<ContainerSpec>>), NodeError> {
        let env = Arc::clone(&self.env);
        let (driver, node) = (env.driver.as_ref(), &env.node);
        if let Some(part) = self.lease.host
            && let Some(why) = env.host.refuses(&self.lease.slices, part)
        {
            return Err(NodeError::Task { name: self.task.name.clone(), why });
        }
        make_instances(driver, node, &env.gpus, &mut self.lease, &self.stages)?;
        self.set_compute()?;
        env.launcher.make_region(driver, node, &self.lease, &env.gpus)?;
        node.link_task(&self.lease.id, dir)?;
        let mut spec = env.launcher.spec(node, &self.lease, &self.command);
        if let Some(workspace) = &self.workspace {
            let sdk = env.config.sdk.of_user(self.command.user.as_ref());
            sdk.settle(&mut spec, &self.task.script, workspace)?;
        }
        spec.authorities.clone_from(&env.authorities);
        let container = match (&env.engine, &env.config.docker) {
            (Some(_), Some(docker)) => {
                let workers = Workers { task: self.worker, agent: env.worker.clone() };
                Some(Box::new(container_spec(driver, docker, &self.task, &workers, &mut spec)?))
            }
            _ => None,
        };
        // Last: a process's group in which nothing runs is taken for abandoned after a minute.
        env.launcher.hold_by_driver((driver, node), &mut self.lease, &mut spec, &env.gpus)?;
        Ok((spec, container))
    }
}
