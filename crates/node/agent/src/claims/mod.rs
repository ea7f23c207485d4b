//! Turns a placement into a task that the server knows as started: lease, claim, start. The order ensures that a task is
//! never taken from its queue without a place, and that no place is taken without a lease on disk.

mod announce;
mod put_back;

use std::collections::BTreeSet;

use cantle_clearml::{WireError, queues, tasks};
use cantle_model::{Bytes, HostLimit, Lease, LeaseId, QueueId};
use cantle_node::{Command, Locked, NodeError, burst_of, mig, new_lease, own_holder};
use cantle_runtime::RunningTask;
use cantle_sched::Start;
use tokio::time::Instant;
use tracing::{Instrument as _, info_span};

use crate::AgentError;
use crate::entry::{LeasedTask, OwnTasks, TableEntry, Tasks};
use crate::environment::Environment;
use crate::meter::count;
use crate::task_record::{TaskFiles, TaskRecord};
use crate::worker_id::child_worker;

/// The tasks that have a lease and are not started.
#[derive(Default)]
pub(crate) struct Claims {
    tasks: Tasks<Pending>,
}

struct Pending {
    entry: LeasedTask,
    state: ClaimState,
}

/// The extras of a task, in addition to its slices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// The most memory of its GPU that it may have, if that is more than its request.
    pub(crate) memory_limit: Option<Bytes>,
    /// Its part of the processors and main memory of the node, if that is limited.
    pub(crate) host: Option<HostLimit>,
}

/// The progress of a task that has not started.
enum ClaimState {
    /// It has a lease since then. Whether it was taken from its queue is not known: the claim was not sent yet, or the
    /// answer got lost.
    Reserved(Instant),
    /// Taken from its queue.
    Claimed,
    /// Taken from its queue and not started, for this reason: it goes back.
    Returning(String),
}

/// Why the task of a former agent goes back to its queue.
const AGENT_DIED: &str = "the agent died before it started the task";

/// Why a task goes back to its queue that the node has no room for.
pub(crate) fn no_room(error: &NodeError) -> String {
    format!("this node has no room to start it: {error}")
}

/// A task that goes from the claims to the executor.
pub(crate) enum Handover {
    /// The server knows that it starts: from here on it ends with an outcome.
    Start { entry: LeasedTask, task: Box<tasks::Task>, command: Result<Command, NodeError> },
    /// A former agent started it.
    Adopt { entry: LeasedTask, running: Box<RunningTask> },
}

impl Claims {
    /// Writes a lease and a job for a placement, with the extras of the task; returns the lease.
    ///
    /// # Errors
    /// Names what cannot be written.
    pub(crate) fn reserve(
        &mut self,
        env: &Environment,
        locked: &Locked<'_>,
        (placement, extras): (Start, Extras),
        own: &mut OwnTasks,
    ) -> Result<LeaseId, AgentError> {
        let entry = reserve(env, locked, (placement, extras), &own.workers)?;
        own.add(&entry, false);
        let lease = entry.job.lease.clone();
        self.add(entry, ClaimState::Reserved(Instant::now()));
        Ok(lease)
    }

    /// Takes reserved tasks from their queues. Then no other agent gets them. Returns whether the node had no room to write one of them
    /// down: then that one goes back.
    pub(crate) async fn claim(
        &mut self,
        env: &Environment,
        reserved: Vec<LeaseId>,
    ) -> Result<bool, WireError> {
        let mut is_full = false;
        let mut reserved = reserved.into_iter();
        while let Some(lease) = reserved.next() {
            let Some(found) = self.tasks.find(&lease) else { continue };
            let span = info_span!("claim", task = found.get().entry.job.task.0, %lease);
            if let Err(error) = claim(env, found).instrument(span).await {
                // The server knows nothing of the others yet.
                for lease in reserved {
                    if let Some(found) = self.tasks.find(&lease) {
                        found.remove().release(env);
                    }
                }
                return Err(error);
            }
            is_full |= self.tasks.get(&lease).is_some_and(Pending::is_returning);
        }
        Ok(is_full)
    }

    /// A task that a former agent left and that does not run.
    pub(crate) fn adopt(&mut self, entry: LeasedTask) {
        let state = if entry.job.claimed {
            ClaimState::Returning(AGENT_DIED.to_owned())
        } else {
            ClaimState::Reserved(Instant::now())
        };
        self.add(entry, state);
    }

    /// A task that lost its place before it started, for this reason. Nothing is wrong with it: it gets another place.
    pub(crate) fn take_back(&mut self, entry: LeasedTask, why: String) {
        self.add(entry, ClaimState::Returning(why));
    }

    fn add(&mut self, entry: LeasedTask, state: ClaimState) {
        self.tasks.insert(entry.job.lease.clone(), Pending { entry, state });
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &LeasedTask> {
        self.tasks.values().map(|task| &task.entry)
    }

    /// Leases of the tasks that this agent has claimed and not started.
    pub(crate) fn claimed(&self) -> Vec<LeaseId> {
        self.tasks.leases_where(|task| matches!(task.state, ClaimState::Claimed))
    }

    /// Leases of the tasks for which [`Claims::settle`] has something to do.
    pub(crate) fn unsettled(&self) -> Vec<LeaseId> {
        self.tasks.leases_where(Pending::is_unsettled)
    }

    /// Removes containers that a former daemon created and could not record: their tasks start again. Containers of
    /// others on the same engine stay.
    ///
    /// # Errors
    /// If the engine does not answer.
    pub(crate) async fn remove_leftovers(&self, env: &Environment) -> Result<(), AgentError> {
        let Some(engine) = &env.engine else { return Ok(()) };
        for leftover in engine.leftovers().await? {
            if self.tasks.get(&leftover.lease).is_some_and(Pending::is_unsettled) {
                tracing::info!(lease = %leftover.lease, "removing a container that was made and not started by us");
                engine.remove(&leftover.id).await?;
            }
        }
        Ok(())
    }
}

impl Pending {
    const fn is_returning(&self) -> bool {
        matches!(self.state, ClaimState::Returning(_))
    }

    const fn is_unsettled(&self) -> bool {
        matches!(self.state, ClaimState::Reserved(_) | ClaimState::Returning(_))
    }

    /// Drops a lease under which nothing was started.
    fn release(self, env: &Environment) {
        let lease = self.entry.job.lease.clone();
        self.entry.remove_files();
        env.free(&lease);
    }
}

fn reserve(
    env: &Environment,
    locked: &Locked<'_>,
    (mut placement, extras): (Start, Extras),
    taken_workers: &BTreeSet<String>,
) -> Result<LeasedTask, AgentError> {
    mig::name_given(env.driver.as_ref(), &mut placement.slices)?;
    let served = env.queues.iter().find(|queue| queue.spec.name == placement.queue);
    let queue = served.map_or_else(|| QueueId(placement.queue.clone()), |queue| queue.id.clone());
    let (task, slices) = (placement.task, placement.slices);
    let lease = Lease {
        module_reserve_bytes: env.config.module_reserve_bytes,
        burst: burst_of(extras.memory_limit, &slices, &env.gpus),
        host: extras.host,
        ..new_lease(task.clone(), String::new(), Some(placement.queue), slices.clone())
    };
    locked.put(&lease)?;
    let job = TaskRecord {
        lease: lease.id.clone(),
        worker: child_worker(env, &slices, &task, taken_workers),
        task,
        name: String::new(),
        queue,
        server: env.config.server.clone(),
        node: env.node_name.clone(),
        daemon: own_holder(),
        slices,
        claimed: false,
        run: None,
        workspace: None,
        time_limit: None,
        idle_limit: None,
        host: extras.host,
        started_ms: None,
        command: None,
    };
    match TaskFiles::create(&env.jobs_dir, &job) {
        Ok(dir) => Ok(LeasedTask::new(dir, job, None)),
        Err(error) => {
            // No program would ever free the place of a task that has no record.
            locked.retire(&lease)?;
            Err(error.into())
        }
    }
}

async fn claim(env: &Environment, mut found: TableEntry<'_, Pending>) -> Result<(), WireError> {
    let job = &found.get().entry.job;
    let (queue, task) = (job.queue.0.clone(), job.task.0.clone());
    let request = queues::GetNextTask {
        queue: queue.clone(),
        task: Some(task.clone()),
        get_task_info: None,
        wait_ms: None,
    };
    match env.server.call(&request).await {
        Ok(queues::NextTask { entry: Some(got), .. }) if got.task == task => {
            let claimed = found.get_mut();
            claimed.state = ClaimState::Claimed;
            // Before the start is reported to the server: an agent that finds it so later must know that it was for us.
            claimed.entry.job.claimed = true;
            claimed.entry.job.run = got.run;
            if let Err(error) = claimed.entry.dir.write(&claimed.entry.job) {
                claimed.state = ClaimState::Returning(no_room(&error));
                return Ok(());
            }
            let served = env.queues.iter().find(|served| served.id.0 == queue);
            let name = served.map_or(queue, |served| served.spec.name.clone());
            count(&mut env.meter.counts().placements, name);
            Ok(())
        }
        Ok(queues::NextTask { entry: Some(other), .. }) => {
            // ClearML's own server returns the first task, which may have changed. The plan was not made for it.
            found.remove().release(env);
            put_back::put_in_front(env, &queue, &other.task, other.run).await
        }
        Ok(queues::NextTask { entry: None, .. }) => {
            found.remove().release(env);
            Ok(())
        }
        Err(error) if error.is_temporary() => Err(error),
        Err(error) => {
            tracing::warn!(%task, %error, "not claimed");
            found.remove().release(env);
            Ok(())
        }
    }
}
