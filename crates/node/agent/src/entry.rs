//! An entry: one task under one lease; and the tables in which the parts of the agent keep their entries.

use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry as Slot, OccupiedEntry};
use std::sync::atomic::{AtomicU64, Ordering};

use cantle_clearml::{cantle, tasks};
use cantle_model::LeaseId;
use cantle_node::{Command, NodeError, own_holder};
use cantle_runtime::TaskUser;
use tokio::task::spawn_blocking;

use crate::command;
use crate::environment::Environment;
use crate::executor::{idle_limit_of, limit_of};
use crate::task_record::{Outcome, Stop, TaskFiles, TaskRecord};
use crate::task_user::remove_workspace;

/// A task under a lease. The claims pass it to the executor, and the executor to the reporter. The part that owns it
/// decides about it.
pub(crate) struct LeasedTask {
    /// Its files.
    pub(crate) dir: TaskFiles,
    /// The contents of its `job.json`.
    pub(crate) job: TaskRecord,
    /// Why it is being stopped.
    pub(crate) stop: Option<Stop>,
    /// How it ended, as far as this agent knows.
    pub(crate) outcome: Option<Outcome>,
    /// Its `job.json` does not name this agent yet: the disk had no room for that.
    names_former_agent: bool,
    /// How much of its output the server has, as far as this agent knows.
    sent_bytes: AtomicU64,
}

impl LeasedTask {
    pub(crate) fn new(dir: TaskFiles, job: TaskRecord, stop: Option<Stop>) -> Self {
        let sent_bytes = AtomicU64::new(dir.sent_bytes());
        Self { dir, job, stop, outcome: None, names_former_agent: false, sent_bytes }
    }

    /// Writes down that this agent answers for the task of a former one. Where the disk has no room for that, the next scan tries again:
    /// the task runs meanwhile, and only an agent of other GPUs that starts until then could take it as well.
    pub(crate) fn take_over(&mut self) -> Result<(), NodeError> {
        self.job.daemon = own_holder();
        match self.dir.write(&self.job) {
            Ok(()) => self.names_former_agent = false,
            Err(error) if error.is_out_of_room() => {
                if !self.names_former_agent {
                    tracing::warn!(%error, "a task that was taken over still names its former agent");
                }
                self.names_former_agent = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// See [`LeasedTask::take_over`].
    pub(crate) fn take_over_again(&mut self) {
        if self.names_former_agent
            && let Err(error) = self.take_over()
        {
            tracing::error!(%error, "a task that was taken over still names its former agent");
        }
    }

    /// How much of its output the server has. On a full disk the file does not know, and what was sent must not be sent forever.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sent_bytes(&self, bytes: u64) -> Result<(), NodeError> {
        self.sent_bytes.store(bytes, Ordering::Relaxed);
        self.dir.set_sent_bytes(bytes)
    }

    /// Writes down what will be run. This comes before the report to the server that the task runs: a job without a command
    /// counts as one that was never reported to the server.
    pub(crate) fn write_command(
        &mut self,
        env: &Environment,
        task: &tasks::Task,
        token: &str,
        user: Option<TaskUser>,
    ) -> Result<Command, NodeError> {
        let mut command = command::of_task(task, &env.config, env.worker_of(&self.job), token)?;
        self.job.name.clone_from(&task.name);
        self.job.time_limit = limit_of(task);
        self.job.idle_limit = idle_limit_of(task);
        // A container has directories of its own.
        if command::is_sdk(&command.argv) && env.config.docker.is_none() {
            self.job.workspace = env.config.sdk.of_user(user.as_ref()).workspace(&self.job.lease);
        }
        command.user = user;
        self.job.command = Some(command.clone());
        self.dir.write(&self.job)?;
        Ok(command)
    }

    /// Removes its files, and what ClearML's agent set up for it: first that, so that a kill in between leaves a record of it.
    pub(crate) fn remove_files(self) {
        let Self { dir, job, .. } = self;
        let remove_record = move || {
            if let Err(error) = dir.remove() {
                tracing::error!(%error, "the files of a task that is over stay on disk");
            }
        };
        match job.workspace {
            None => remove_record(),
            // An environment has ten thousand files and more.
            Some(workspace) => drop(spawn_blocking(move || {
                let user = job.command.and_then(|command| command.user);
                remove_workspace(user.as_ref(), &workspace);
                remove_record();
            })),
        }
    }

    /// The report of it for `cantle.report_task`.
    pub(crate) fn report(&self, env: &Environment, outcome: Option<&Outcome>) -> cantle::ReportTask {
        cantle::ReportTask {
            task: self.job.task.0.clone(),
            node: env.node_name.clone(),
            lease: self.job.lease.0.clone(),
            run: self.job.run,
            slices: self.job.slices.clone(),
            quota_milli: None,
            host: self.job.host,
            exit_code: outcome.and_then(|outcome| outcome.code),
            message: outcome.and_then(|outcome| outcome.message.clone()),
            measured: outcome.map(|outcome| outcome.measured).unwrap_or_default(),
        }
    }
}

/// The tasks that one part of the agent has, by lease.
pub(crate) struct Tasks<T>(BTreeMap<LeaseId, T>);

/// A task in its table: to be read, changed or taken out.
pub(crate) type TableEntry<'a, T> = OccupiedEntry<'a, LeaseId, T>;

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Tasks<T> {
    pub(crate) fn insert(&mut self, lease: LeaseId, task: T) {
        self.0.insert(lease, task);
    }

    /// The task that a message is about. It may be gone: then there is nothing to do.
    pub(crate) fn find(&mut self, lease: &LeaseId) -> Option<TableEntry<'_, T>> {
        match self.0.entry(lease.clone()) {
            Slot::Occupied(found) => Some(found),
            Slot::Vacant(_) => {
                tracing::debug!(%lease, "a message about a task that is gone");
                None
            }
        }
    }

    pub(crate) fn get(&self, lease: &LeaseId) -> Option<&T> {
        self.0.get(lease)
    }

    pub(crate) fn get_mut(&mut self, lease: &LeaseId) -> Option<&mut T> {
        self.0.get_mut(lease)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.values_mut()
    }

    /// The leases of the tasks that match.
    pub(crate) fn leases_where(&self, matches: impl Fn(&T) -> bool) -> Vec<LeaseId> {
        self.0.iter().filter(|(_, task)| matches(task)).map(|(lease, _)| lease.clone()).collect()
    }
}

/// The tasks that this agent is responsible for, in any of its parts.
#[derive(Default)]
pub(crate) struct OwnTasks {
    pub(crate) leases: BTreeSet<LeaseId>,
    /// Leases whose task is being stopped or has ended.
    pub(crate) ending: BTreeSet<LeaseId>,
    /// Worker ids that its tasks have.
    pub(crate) workers: BTreeSet<String>,
}

impl OwnTasks {
    pub(crate) fn add(&mut self, entry: &LeasedTask, has_ended: bool) {
        let lease = &entry.job.lease;
        self.leases.insert(lease.clone());
        if has_ended || entry.stop.is_some() {
            self.ending.insert(lease.clone());
        }
        self.workers.extend(entry.job.worker.clone());
    }
}
