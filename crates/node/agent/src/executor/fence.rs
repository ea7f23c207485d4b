//! Renews the leases of the tasks that run here. It ends a task that another node may have by now, and reports nothing of
//! that task.
//!
//! The order of steps keeps two nodes from running one task. The supervisor of a task obeys the fence on disk. The server
//! gives a task away after the time that the last renewal reported. So a longer time is reported before it is used, and a
//! shorter one is used before it is reported.

use std::time::Duration;

use cantle_clearml::WireError;
use cantle_clearml::leases::{LeaseRenewal, RenewLeases, RenewedLease};
use cantle_model::LeaseId;
use cantle_runtime::{Fence, start_guard};
use tokio::time::Instant;

use super::Executor;
use super::run::Run;
use crate::environment::Environment;
use crate::task_record::Stop;

/// The length of a fence that the next renewal does not name any more.
const DROPPED: u64 = 0;

/// How often leases are renewed.
const EVERY: Duration = Duration::from_secs(2);

impl Executor {
    /// Renews the leases of all tasks that have processes, if it is time.
    pub(crate) async fn renew_leases(&mut self, env: &Environment) -> Result<(), WireError> {
        let now = Instant::now();
        // Each renewal reads a file.
        if self.renewed_at.is_some_and(|at| now.duration_since(at) < EVERY) {
            return Ok(());
        }
        let running: Vec<(LeaseId, LeaseRenewal)> =
            self.tasks.values().filter(|run| run.running().is_some()).map(renewal).collect();
        if running.is_empty() {
            return Ok(());
        }
        // Before the call: the server counts from its arrival.
        let asked_ms = Fence::now_ms();
        let request = RenewLeases {
            node: env.node_name.clone(),
            leases: running.iter().map(|(_, renewal)| renewal.clone()).collect(),
        };
        // A server without this call gives no task to another node by itself.
        let Some(answer) = env.server.call_extended(&request).await? else { return Ok(()) };
        self.renewed_at = Some(now);
        for ((lease, renewal), renewed) in running.iter().zip(answer.leases) {
            let Some(mut found) = self.tasks.find(lease) else { continue };
            let run = found.get_mut();
            if renewed.held {
                if set_fence(env, run, renewal.fence_ms, &renewed, asked_ms) {
                    // The server learns it at once: until then it counts on the old one.
                    self.renewed_at = None;
                }
            } else if run.is_running_unstopped() {
                let task = &renewal.task;
                tracing::warn!(%task, %lease, "the task was given to another node; this run of it is ended");
                run.stop_within(Stop::Superseded, Duration::ZERO);
            }
        }
        Ok(())
    }
}

/// Only a task with a supervisor, or a container with a guard, can be ended when this agent cannot do it.
fn renewal(run: &Run) -> (LeaseId, LeaseRenewal) {
    let job = &run.entry().job;
    let fence = run.entry().dir.task_directory().fence();
    let fence_ms = fence.map(|fence| fence.after_ms).filter(|after_ms| *after_ms != DROPPED);
    (job.lease.clone(), LeaseRenewal { task: job.task.0.clone(), lease: job.lease.0.clone(), fence_ms })
}

/// Moves the fence; returns whether the next renewal differs from this one.
fn set_fence(
    env: &Environment,
    run: &Run,
    said_ms: Option<u64>,
    renewed: &RenewedLease,
    asked_ms: u64,
) -> bool {
    let directory = run.entry().dir.task_directory();
    if !directory.is_supervised() {
        // A container gets its guard with its first fence; a later renewal finds it there.
        if renewed.fence_ms.is_some()
            && let Err(error) = start_guard(directory, &env.config.program)
        {
            tracing::error!(%error, "a container has no fence: this node holds its task when it is lost");
        }
        return false;
    }
    let fence = |after_ms: u64, obey_ms: u64| Some(Fence { until_ms: asked_ms + obey_ms, after_ms });
    let next = match (said_ms, renewed.fence_ms) {
        // The server counts on none now.
        (None, None) if directory.fence().is_none() => return false,
        (None, None) => None,
        (None, Some(told)) => fence(told, told),
        (Some(said), Some(told)) => fence(told, said.min(told)),
        // The server still counts on it: it holds until a renewal without it has arrived.
        (Some(said), None) => fence(DROPPED, said),
    };
    match directory.set_fence(next) {
        Ok(()) => said_ms != renewed.fence_ms,
        Err(error) => {
            tracing::error!(%error, "the fence of a task cannot be moved: it is ended when its time is over");
            false
        }
    }
}
