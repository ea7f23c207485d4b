//! Suspended tasks that come back without a command. The plan sees each of them as a task that waits in front of its
//! queue, for slices like those that it had; a start of it is its return.

use std::collections::BTreeMap;

use cantle_clearml::quotas::{Fleet, HeldTask, WaitingTask};
use cantle_decide::describe_waiting;
use cantle_model::{Cause, Lease, PoolRule, QueueSpec, QueueWant, Slice, TaskId, TaskTerms};
use cantle_node::{CheckpointHelper, LOCK_LIMIT, Locked, NodeError, Suspender, waits_again};
use cantle_sched::{Plan, Queue, Snapshot, Start, Waiting};

use crate::entry::OwnTasks;
use crate::environment::Environment;

/// A suspended task that the plan brings back.
pub(crate) struct Return {
    lease: Lease,
    slices: Vec<Slice>,
}

/// The suspended tasks of this agent that come back without a command, by task.
pub(super) struct Returning(BTreeMap<TaskId, Lease>);

impl Returning {
    pub(super) fn among(leases: &[Lease], own: &OwnTasks) -> Self {
        let returns = |lease: &&Lease| {
            let out = lease.suspension.as_ref().filter(|suspension| suspension.is_suspended());
            own.leases.contains(&lease.id) && out.is_some_and(|suspension| suspension.yields)
        };
        Self(leases.iter().filter(returns).map(|lease| (lease.task.clone(), lease.clone())).collect())
    }

    /// Enters them into the snapshot, in which they hold nothing.
    pub(super) fn enter(&self, env: &Environment, fleet: &Fleet, own: &OwnTasks, snapshot: &mut Snapshot) {
        if self.0.is_empty() {
            return;
        }
        snapshot.running.retain(|running| !self.0.contains_key(&running.task));
        let mut helper = CheckpointHelper::default();
        let suspender = suspender(env, &mut helper);
        let held: BTreeMap<&str, &HeldTask> =
            fleet.held.iter().map(|held| (held.lease.as_str(), held)).collect();
        // Those that are being stopped do not come back.
        let waiting = self.0.values().filter(|lease| !own.ending.contains(&lease.id));
        let mut waiting: Vec<(&Lease, Waiting)> = waiting
            .filter_map(|lease| {
                let suspension = lease.suspension.as_ref()?;
                let mut waiting = waits_again(lease, &suspension.slices);
                let places = suspender.places(lease, suspension);
                if places.is_empty() {
                    return None;
                }
                if places.len() < env.gpus.len() {
                    // To the scheduler, each GPU is a pool of its own.
                    let pools = places.iter().map(|gpu| gpu.uuid.0.clone()).collect();
                    waiting.pools.push(PoolRule { project: String::new(), pools });
                }
                if let Some(held) = held.get(lease.id.0.as_str()) {
                    describe(&mut waiting, held);
                }
                Some((lease, waiting))
            })
            .collect();
        waiting.sort_by_key(|(_, waiting)| waiting.enqueued_at_ms);
        if waiting.iter().any(|(_, waiting)| waiting.pools.iter().any(|rule| rule.project.is_empty())) {
            for gpu in snapshot.nodes.iter_mut().flat_map(|node| &mut node.gpus) {
                gpu.pools.push(gpu.gpu.uuid.0.clone());
            }
        }
        let mut queues = Vec::new();
        for queue in std::mem::take(&mut snapshot.queues) {
            let is_of = |(lease, _): &mut (&Lease, Waiting)| lease.queue.as_ref() == Some(&queue.spec.name);
            let of_queue = waiting.extract_if(.., is_of).map(|(_, waiting)| waiting).collect();
            queues.push(front_of(&queue.spec.name, of_queue));
            queues.push(queue);
        }
        // Their queue is served no more.
        queues.insert(0, front_of("", waiting.into_iter().map(|(_, waiting)| waiting).collect()));
        queues.retain(|queue| !queue.waiting.is_empty() || !is_front(&queue.spec.name));
        snapshot.queues = queues;
    }

    /// Takes the returns out of a plan.
    pub(super) fn take(&self, plan: &mut Plan) -> Vec<Return> {
        let returns = plan.starts.extract_if(.., |start: &mut Start| is_front(&start.queue));
        let returns = returns
            .filter_map(|start| {
                Some(Return { lease: self.0.get(&start.task)?.clone(), slices: start.slices })
            })
            .collect();
        for wait in plan.waits.iter_mut().filter(|wait| is_front(&wait.queue)) {
            wait.queue = wait.queue.trim_start_matches(FRONT).to_owned();
        }
        returns
    }
}

impl Return {
    /// The task.
    pub(crate) fn task(&self) -> &TaskId {
        &self.lease.task
    }

    /// The slices that it comes back to.
    pub(crate) fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Reserves its slices. `false`: not now.
    pub(crate) fn begin(self, env: &Environment, locked: &Locked<'_>) -> Result<bool, NodeError> {
        let mut helper = CheckpointHelper::default();
        suspender(env, &mut helper).begin_return(locked, self.lease, self.slices)
    }
}

/// The beginning of the name of the place in front of a queue. No queue has such a name.
const FRONT: &str = "\0";

fn front_of(queue: &str, waiting: Vec<Waiting>) -> Queue {
    Queue::new(QueueSpec { name: format!("{FRONT}{queue}"), want: QueueWant::Task }, waiting)
}

fn is_front(queue: &str) -> bool {
    queue.starts_with(FRONT)
}

fn suspender<'a>(env: &'a Environment, helper: &'a mut CheckpointHelper) -> Suspender<'a> {
    Suspender {
        driver: env.driver.as_ref(),
        node: &env.node,
        gpus: &env.gpus,
        helper,
        parked_memory: None,
        lock_limit: LOCK_LIMIT,
    }
}

/// Describes a held task to the scheduler with the server's data, as for a task that was stopped.
fn describe(waiting: &mut Waiting, held: &HeldTask) {
    let stopping = held.stopping.as_ref();
    let reported = WaitingTask {
        task: held.task.clone(),
        queue: String::new(),
        project: held.project.clone(),
        yielded_to: stopping.and_then(|stopping| stopping.for_task.clone()),
        moved: stopping.is_some_and(|stopping| stopping.cause == Cause::Consolidate),
        freeing_on: None,
    };
    let HeldTask { cpu_milli, memory_bytes, priority, preemptible, .. } = *held;
    describe_waiting(waiting, &reported, Some(TaskTerms { cpu_milli, memory_bytes, priority, preemptible }));
}
