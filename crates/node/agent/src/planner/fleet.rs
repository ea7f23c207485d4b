//! Quotas: what the server reports about projects, what other nodes hold, and which tasks have to stop for others.
//!
//! The server decides on an eviction first. The agent sends the plan's request to it, and an accepted eviction comes
//! back with every [`Fleet`] until the task has stopped. So the eviction is carried out once, even if a process is
//! killed in between.

use cantle_clearml::WireError;
use cantle_clearml::quotas::{Evict, Fleet, GetFleet};
use cantle_decide::victims;
use cantle_sched::Eviction;

use crate::environment::Environment;

/// The use under quotas in the whole fleet; empty without quotas.
pub(crate) async fn read_fleet(env: &Environment) -> Result<Fleet, WireError> {
    let queues = env.queues.iter().map(|queue| queue.id.0.clone()).collect();
    let request = GetFleet { node: env.node_name.clone(), queues };
    Ok(env.server.call_extended(&request).await?.unwrap_or_default())
}

/// Asks the server to accept the evictions of the plan. If it accepts, returns the fleet with the accepted evictions.
pub(crate) async fn request_evictions(
    env: &Environment,
    evictions: Vec<Eviction>,
    planned_on: &Fleet,
) -> Result<Option<Fleet>, WireError> {
    if evictions.is_empty() {
        return Ok(None);
    }
    let request = Evict {
        node: env.node_name.clone(),
        victims: victims(evictions),
        evictions: planned_on.evictions,
        can_suspend: true,
    };
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
