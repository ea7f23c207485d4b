//! Quotas: what the server says about projects, what is held elsewhere, and which task has to stop for which.
//!
//! The server decides on an eviction first: the plan's request is sent to it, and what it accepts comes back with every
//! [`Fleet`] until the task has stopped. So the eviction is carried out once, whichever process is killed in between.

use cantle_clearml::WireError;
use cantle_clearml::quotas::{Evict, Fleet, GetFleet};
use cantle_decide::victims;
use cantle_sched::Eviction;

use crate::environment::Environment;

/// What is under quotas, anywhere; empty if nothing is.
pub(crate) async fn read_fleet(env: &Environment) -> Result<Fleet, WireError> {
    let queues = env.queues.iter().map(|queue| queue.id.0.clone()).collect();
    let request = GetFleet { node: env.node_name.clone(), queues };
    Ok(env.server.call_extended(&request).await?.unwrap_or_default())
}

/// Asks the server for what the plan wants to stop. If it accepts, gives the fleet with the accepted evictions.
pub(crate) async fn request_evictions(
    env: &Environment,
    evictions: Vec<Eviction>,
    planned_on: &Fleet,
) -> Result<Option<Fleet>, WireError> {
    if evictions.is_empty() {
        return Ok(None);
    }
    let request =
        Evict { node: env.node_name.clone(), victims: victims(evictions), evictions: planned_on.evictions };
    match env.server.call_extended(&request).await {
        Err(error) if error.is_temporary() => Err(error),
        Err(error) => {
            // The server's state has changed since the plan; the next plan sees how.
            tracing::info!(%error, "no task is stopped for another");
            Ok(None)
        }
        Ok(_) => Ok(Some(read_fleet(env).await?)),
    }
}
