//! Quotas: what the server says about projects, what is held elsewhere, and who has to stop for whom.
//!
//! An eviction is the server's word first: the plan's wish is sent to it, and what it accepts comes back with every
//! [`Fleet`] until the task has stopped. So it is carried out once, whoever is killed in between.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::Error as WireError;
use cantle_clearml::quotas::{Fleet, GetFleet, HeldTask};
use cantle_model::LeaseId;
use cantle_sched::Eviction;

use super::Agent;
use crate::job::Stop;
use crate::quotas;

impl Agent {
    /// What is under quotas, anywhere; empty if nothing is.
    pub(crate) async fn read_fleet(&self) -> Result<Fleet, WireError> {
        let queues = self.queues.iter().map(|queue| queue.id.0.clone()).collect();
        let request = GetFleet { node: self.node_name.clone(), queues };
        Ok(self.link.call_extended(&request).await?.unwrap_or_default())
    }

    /// Stops our tasks that have to make room for others, as gently as if somebody had asked for it.
    pub(crate) async fn heed_evictions(&mut self, fleet: &Fleet) -> Result<(), WireError> {
        let why = |held: &HeldTask| {
            let reason = held.stopping.as_ref()?.reason.clone();
            Some((LeaseId(held.lease.clone()), reason))
        };
        let mut evicted: BTreeMap<LeaseId, String> = fleet.held.iter().filter_map(why).collect();
        let runs = |lease: &LeaseId| self.entries.get(lease).filter(|entry| entry.is_running());
        evicted.retain(|lease, _| runs(lease).is_some_and(|entry| entry.stop.is_none()));
        for (lease, id, task) in self.look_at(evicted.keys().cloned().collect()).await? {
            // Of one that is gone the next look for aborts knows what to do.
            let (Some(task), Some(reason)) = (task, evicted.remove(&lease)) else { continue };
            if self.entries.get(&lease).is_some_and(|entry| entry.tidying.is_none()) {
                self.note("stop", Some(&id), None, format!("stopping: {reason}"));
                self.meter.counts().preemptions += 1;
            }
            self.stop_when_tidy(&lease, &task, Stop::Preempted(reason));
        }
        Ok(())
    }

    /// Has the server decide on what the plan asks to stop, and carries out what it accepts.
    pub(crate) async fn evict(&mut self, evictions: Vec<Eviction>, seen: &Fleet) -> Result<(), WireError> {
        if evictions.is_empty() {
            return Ok(());
        }
        let request = quotas::evict(&self.node_name, evictions, seen);
        match self.link.call_extended(&request).await {
            Err(error) if error.is_temporary() => return Err(error),
            // The world has changed since the plan; the next one sees how.
            Err(error) => tracing::info!(%error, "nobody is stopped"),
            Ok(_) => {
                let fleet = self.read_fleet().await?;
                self.heed_evictions(&fleet).await?;
            }
        }
        Ok(())
    }

    /// Leases whose task is being stopped.
    pub(crate) fn ending(&self) -> BTreeSet<LeaseId> {
        self.leases_where(|entry| entry.stop.is_some() || entry.is_ended()).into_iter().collect()
    }
}
