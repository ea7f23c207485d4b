//! What the server is told at intervals: that the agent lives, that its tasks do, and who holds what.

use std::time::Duration;

use cantle_clearml::cantle::{NodeQueue, ReportNode};
use cantle_clearml::workers::{StatusReport, Unregister};
use cantle_clearml::{Error as WireError, tasks};
use tokio::time::Instant;

use super::Agent;
use super::entry::Entry;
use super::load::Load;
use super::queues::spec_text;
use crate::clock::now_ms;
use crate::view;

/// ClearML's own interval.
pub(crate) const STATUS_EVERY: Duration = Duration::from_secs(30);
/// People look at this one.
const NODE_EVERY: Duration = Duration::from_secs(2);

/// When what was reported last.
#[derive(Default)]
pub(crate) struct Reports {
    status: Option<Instant>,
    node: Option<Instant>,
    load: Load,
}

pub(crate) fn is_due(last: Option<Instant>, every: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= every)
}

impl Agent {
    pub(crate) async fn report(&mut self, now: Instant) -> Result<(), WireError> {
        if is_due(self.reports.status, STATUS_EVERY, now) {
            let status = self.status_report();
            self.link.call(&status).await?;
            self.reports.status = Some(now);
        }
        self.report_children(now).await?;
        if self.planning.changed || is_due(self.reports.node, NODE_EVERY, now) {
            self.link.call_extended(&self.node_report()).await?;
            self.reports.node = Some(now);
            self.planning.changed = false;
        }
        let ping_every = self.config.ping_every;
        for entry in self.entries.values_mut().filter(|entry| entry.is_running()) {
            if now.duration_since(entry.pinged) >= ping_every {
                entry.pinged = now;
                let ping = tasks::Ping { task: entry.job.task.0.clone() };
                match self.link.call(&ping).await {
                    Err(error) if error.is_temporary() => return Err(error),
                    // A deleted task; the next look for aborts notices.
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn status_report(&mut self) -> StatusReport {
        // Tasks that are workers of their own speak for themselves.
        let is_own = |entry: &&Entry| entry.is_running() && entry.job.worker.is_none();
        let running = self.entries.values().find(is_own);
        StatusReport {
            worker: self.worker.clone(),
            timestamp: now_ms(),
            task: running.map(|entry| entry.job.task.0.clone()),
            queue: running.map(|entry| entry.job.queue.0.clone()),
            queues: self.queues.iter().map(|queue| queue.id.0.clone()).collect(),
            is_daemon: Some(true),
            tags: self.config.report_tags.clone(),
            machine_stats: Some(self.reports.load.stats(self.driver.as_ref(), &self.gpus)),
        }
    }

    fn node_report(&self) -> ReportNode {
        let queue = |served: &super::queues::Served| NodeQueue {
            name: served.spec.name.clone(),
            spec: spec_text(&served.spec.want),
        };
        ReportNode {
            node: self.node_name.clone(),
            worker: self.worker.clone(),
            queues: self.queues.iter().map(queue).collect(),
            gpus: view::gpus(&self.node, &self.gpus),
            waiting: self.planning.waits.values().cloned().collect(),
            interval_ms: u64::try_from(NODE_EVERY.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// The last words: results, tasks that were not started after all, and that this agent is gone.
    pub(crate) async fn say_goodbye(&mut self) -> Result<(), WireError> {
        self.deliver_ended().await?;
        for lease in self.leases_where(Entry::is_claimed) {
            let Some(entry) = self.entries.get(&lease) else { continue };
            let (queue, task) = (entry.job.queue.0.clone(), entry.job.task.0.clone());
            self.return_task(&lease, &queue, &task, "the agent stopped before it started the task").await?;
        }
        self.planning.waits.clear();
        self.link.call_extended(&self.node_report()).await?;
        self.link.flush().await?;
        let queues = self.queues.iter().map(|queue| queue.id.0.clone()).collect();
        self.link.call(&Unregister { worker: self.worker.clone(), queues }).await.map(|_| ())
    }
}
