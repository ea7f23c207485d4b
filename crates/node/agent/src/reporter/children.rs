//! Child workers: a task that runs with others is a worker of its own on the server, as with ClearML's agent. Its web page
//! then shows the slices of each task, and stock agents of the same name see those GPUs as taken.

use cantle_clearml::workers::{MachineStats, Register, StatusReport, Unregister};
use cantle_clearml::{WireError, accept_refusal};
use cantle_node::clock::now_ms;
use tokio::time::Instant;

use super::load::mebibytes;
use super::{Reporter, STATUS_EVERY, is_due};
use crate::entry::LeasedTask;
use crate::environment::Environment;
use crate::executor::ActiveTask;
use crate::setup::WORKER_TIMEOUT_S;
use crate::view;

impl Reporter {
    /// Reports each child at its start and at intervals.
    pub(super) async fn report_children(
        &mut self,
        env: &Environment,
        running: &[ActiveTask<'_>],
        now: Instant,
    ) -> Result<(), WireError> {
        let mut gpus = None;
        for job in running.iter().map(|task| &task.entry.job) {
            let (Some(worker), Some(contact)) = (&job.worker, self.contacts.get_mut(&job.lease)) else {
                continue;
            };
            if !is_due(contact.worker_at, STATUS_EVERY, now) {
                continue;
            }
            let gpus = gpus.get_or_insert_with(|| view::gpus(env.driver.as_ref(), &env.node, &env.gpus));
            let tags = env.config.report_tags.clone();
            if contact.worker_at.replace(now).is_none() {
                let (timeout, worker, tags) = (Some(WORKER_TIMEOUT_S), worker.clone(), tags.clone());
                env.server.call(&Register { worker, timeout, tags, ..Register::default() }).await?;
            }
            let mut stats = MachineStats::default();
            for slice in gpus.iter().flat_map(|gpu| &gpu.slices).filter(|slice| slice.lease == job.lease.0) {
                let free = slice.memory_limit_bytes.saturating_sub(slice.memory_used_bytes);
                stats.gpu_memory_used.push(mebibytes(slice.memory_used_bytes));
                stats.gpu_memory_free.push(mebibytes(free));
            }
            let report = StatusReport {
                worker: worker.clone(),
                timestamp: now_ms(),
                task: Some(job.task.0.clone()),
                queue: Some(job.queue.0.clone()),
                queues: Vec::new(),
                tags,
                is_daemon: Some(false),
                machine_stats: Some(stats),
            };
            env.server.call(&report).await?;
        }
        Ok(())
    }
}

/// The task is over, and so is its worker; also one that a former daemon announced.
pub(super) async fn dismiss(env: &Environment, entry: &LeasedTask) -> Result<(), WireError> {
    let Some(worker) = entry.job.worker.clone() else { return Ok(()) };
    let gone = env.server.call(&Unregister { worker, queues: Vec::new() }).await;
    accept_refusal(gone.map(|_| ()))
}
