//! Past use of GPUs: counted at intervals, and reported to the agents, which decide. `sched::usage` weights it.

use std::collections::BTreeMap;

use cantle_model::projects_above;
use cantle_sched::{Policy, decayed_use, recent_use, usage_ppm};
use cantle_store::{HeldSince, ProjectRow, ProjectUse, Store, StoreError};

use crate::app::Call;
use crate::error::ApiError;
use crate::services;

/// Weight of past use: it counts as much as a project's quota (KAI's `kValue` of 1).
const WEIGHT_PERCENT: u32 = 100;

/// Less than this, in thousandths of a GPU times milliseconds, is forgotten.
const FORGOTTEN: f64 = 1.0;

/// Carries the use of all projects forward to `now_us`. Their tasks have held what they hold now since they started or were
/// last counted, so nothing is lost while the server is down.
pub(crate) async fn count(store: &Store, half_life_ms: i64, now_us: i64) -> Result<(), StoreError> {
    let counted: BTreeMap<String, ProjectUse> =
        store.project_use().await?.into_iter().map(|row| (row.project.clone(), row)).collect();
    let since_ms = |from_us: i64| now_us.saturating_sub(from_us) / 1000;
    let decayed = |row: &ProjectUse| decayed_use(row.used, since_ms(row.as_of_us), half_life_ms);
    let mut used: BTreeMap<String, f64> =
        counted.values().map(|row| (row.project.clone(), decayed(row))).collect();
    for HeldSince { project, milli, since_us } in store.held_since().await? {
        let from_us = counted.get(&project).map_or(since_us, |row| row.as_of_us.max(since_us));
        *used.entry(project).or_default() += recent_use(milli, since_ms(from_us), half_life_ms);
    }
    let rows = used.into_iter().filter(|(_, used)| *used >= FORGOTTEN);
    let rows: Vec<ProjectUse> =
        rows.map(|(project, used)| ProjectUse { project, used, as_of_us: now_us }).collect();
    store.set_project_use(&rows).await
}

/// The past use of projects, as last counted.
pub(crate) struct PastUse {
    /// `None`: past use does not count.
    half_life_ms: Option<i64>,
    /// Capacity of the nodes that are alive.
    capacity_milli: u64,
    /// By id of a project, those below it not included.
    used: BTreeMap<String, f64>,
}

impl PastUse {
    pub(crate) async fn read(call: &Call) -> Result<Self, ApiError> {
        let Some(half_life_ms) = call.usage_half_life_ms else {
            return Ok(Self { half_life_ms: None, capacity_milli: 0, used: BTreeMap::new() });
        };
        let rows = call.store.project_use().await?;
        Ok(Self {
            half_life_ms: Some(half_life_ms),
            capacity_milli: services::gpus_alive_milli(call).await?,
            used: rows.into_iter().map(|row| (row.project, row.used)).collect(),
        })
    }

    /// Past use of a project and those below it, in millionths of the capacity; `None` if past use does not count.
    pub(crate) fn ppm(&self, projects: &[ProjectRow], name: &str) -> Option<u32> {
        let inside =
            |row: &&ProjectRow| row.name == name || projects_above(&row.name).any(|above| above == name);
        let used = projects.iter().filter(inside).filter_map(|row| self.used.get(&row.id)).sum();
        Some(usage_ppm(used, self.capacity_milli, self.half_life_ms?))
    }

    /// The policy for past use that server and agents divide capacity by.
    pub(crate) fn policy(&self) -> Policy {
        let usage_weight_percent = if self.half_life_ms.is_some() { WEIGHT_PERCENT } else { 0 };
        Policy { usage_weight_percent, ..Policy::default() }
    }
}
