//! Reports to the server: the liveness of the agent and its tasks, the slices that are held, the output of tasks, and
//! their results.

mod children;
mod load;
mod logs;
mod output_limit;
mod results;

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_clearml::cantle::{self, NodeQueue, ReportNode};
use cantle_clearml::workers::{StatusReport, Unregister};
use cantle_clearml::{SuspendedView, WireError, tasks};
use cantle_model::LeaseId;
use cantle_node::clock::now_ms;
use tokio::time::Instant;

use crate::entry::{LeasedTask, Tasks};
use crate::environment::Environment;
use crate::executor::ActiveTask;
use crate::queues::{Served, spec_text};
use crate::view;
use load::Load;

/// ClearML's own interval.
const STATUS_EVERY: Duration = Duration::from_secs(30);
/// People look at this one.
const NODE_EVERY: Duration = Duration::from_secs(2);

/// Has the tasks that have ended and that the server does not know of yet, and remembers when it reported what.
#[derive(Default)]
pub(crate) struct Reporter {
    ended: Tasks<LeasedTask>,
    /// Not all output of the tasks that have ended is sent.
    behind: bool,
    /// How many pieces of output of running tasks were looked for: the next task is the one after the last.
    forwarded: usize,
    status_at: Option<Instant>,
    node_at: Option<Instant>,
    load: Load,
    /// When the server last heard of each running task.
    contacts: BTreeMap<LeaseId, Contact>,
}

struct Contact {
    pinged_at: Instant,
    /// When its own worker was reported last, if it has one.
    worker_at: Option<Instant>,
}

impl Reporter {
    /// Takes over a task that has an outcome.
    pub(crate) fn take(&mut self, entry: LeasedTask) {
        self.ended.insert(entry.job.lease.clone(), entry);
    }

    /// Is there more output of tasks that have ended than was sent?
    pub(crate) const fn is_behind(&self) -> bool {
        self.behind
    }

    /// The tasks that have ended and that the server does not know of yet.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &LeasedTask> {
        self.ended.values()
    }

    /// One of them.
    pub(crate) fn entry(&self, lease: &LeaseId) -> Option<&LeasedTask> {
        self.ended.get(lease)
    }

    /// Sends all reports that are due now.
    pub(crate) async fn report(
        &mut self,
        env: &Environment,
        running: &[ActiveTask<'_>],
        waiting: Vec<cantle::WaitReport>,
        suspended: Vec<SuspendedView>,
    ) -> Result<(), WireError> {
        let now = Instant::now();
        if is_due(self.status_at, STATUS_EVERY, now) {
            let status = self.status_report(env, running);
            env.server.call(&status).await?;
            self.status_at = Some(now);
        }
        self.update_contacts(running);
        self.report_children(env, running, now).await?;
        // First: what changes while the report is on its way is in the next one.
        if env.journal.take_node_changed() || is_due(self.node_at, NODE_EVERY, now) {
            self.node_at = None;
            report_node(env, waiting, suspended).await?;
            self.node_at = Some(now);
        }
        self.ping(env, running, now).await
    }

    fn update_contacts(&mut self, running: &[ActiveTask<'_>]) {
        let known = std::mem::take(&mut self.contacts);
        let is_running = |lease: &LeaseId| running.iter().any(|task| task.entry.job.lease == *lease);
        self.contacts = known.into_iter().filter(|(lease, _)| is_running(lease)).collect();
        for task in running {
            let new = || Contact { pinged_at: task.since, worker_at: None };
            self.contacts.entry(task.entry.job.lease.clone()).or_insert_with(new);
        }
    }

    async fn ping(
        &mut self,
        env: &Environment,
        running: &[ActiveTask<'_>],
        now: Instant,
    ) -> Result<(), WireError> {
        for job in running.iter().map(|task| &task.entry.job) {
            let Some(contact) = self.contacts.get_mut(&job.lease) else { continue };
            if now.duration_since(contact.pinged_at) < env.config.ping_every {
                continue;
            }
            contact.pinged_at = now;
            match env.server.call(&tasks::Ping { task: job.task.0.clone() }).await {
                Err(error) if error.is_temporary() => return Err(error),
                // A deleted task; the next poll for aborts notices.
                _ => {}
            }
        }
        Ok(())
    }

    fn status_report(&mut self, env: &Environment, running: &[ActiveTask<'_>]) -> StatusReport {
        // Tasks that are workers of their own have their own report.
        let mut jobs = running.iter().map(|task| &task.entry.job);
        let job = jobs.find(|job| job.worker.is_none());
        StatusReport {
            worker: env.worker.clone(),
            timestamp: now_ms(),
            task: job.map(|job| job.task.0.clone()),
            queue: job.map(|job| job.queue.0.clone()),
            queues: queue_ids(env),
            is_daemon: Some(true),
            tags: env.config.report_tags.clone(),
            machine_stats: Some(self.load.stats(env.driver.as_ref(), &env.gpus)),
        }
    }
}

fn is_due(last: Option<Instant>, every: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= every)
}

fn queue_ids(env: &Environment) -> Vec<String> {
    env.queues.iter().map(|queue| queue.id.0.clone()).collect()
}

/// The slices that are held on the node, its suspended tasks, and the reasons why others wait.
pub(crate) async fn report_node(
    env: &Environment,
    waiting: Vec<cantle::WaitReport>,
    suspended: Vec<SuspendedView>,
) -> Result<(), WireError> {
    let queue =
        |served: &Served| NodeQueue { name: served.spec.name.clone(), spec: spec_text(&served.spec.want) };
    let uuids = env.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let report = ReportNode {
        node: env.node_name.clone(),
        worker: env.worker.clone(),
        queues: env.queues.iter().map(queue).collect(),
        gpus: view::gpus(env.driver.as_ref(), &env.node, &env.gpus),
        links: env.driver.topology().among(uuids).links().to_vec(),
        waiting,
        suspended,
        interval_ms: u64::try_from(NODE_EVERY.as_millis()).unwrap_or(u64::MAX),
    };
    env.server.call_extended(&report).await.map(|_| ())
}

/// Tells the server that this agent is gone.
pub(crate) async fn unregister(env: &Environment) -> Result<(), WireError> {
    let request = Unregister { worker: env.worker.clone(), queues: queue_ids(env) };
    env.server.call(&request).await.map(|_| ())
}
