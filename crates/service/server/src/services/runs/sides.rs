//! Which runs were within the quotas of their projects, and what projects lent, from the records of quotas.

use std::collections::BTreeMap;

use cantle_clearml::usage::UsageKey;
use cantle_store::{QuotaTime, Store};
use cantle_usage::{GpuPresence, Guarantee, Holding, MilliUs, Period, Sides, sides};

use super::accounts::{Records, name_in};
use crate::error::ApiError;
use crate::gpu_times;
use crate::services::people::quotas::project_path;

/// The quotas of a period.
pub(crate) struct Quotas {
    times: Vec<QuotaTime>,
    /// Names of all projects, by id: what a run counts against may be hidden from the caller.
    names: BTreeMap<String, String>,
    /// The ids of projects with a quota, by name. A deleted project has its id for a name.
    by_name: BTreeMap<String, usize>,
    /// Their ids, in the same order.
    ids: Vec<String>,
}

impl Quotas {
    pub(crate) async fn read(store: &Store, period: Period) -> Result<Self, ApiError> {
        let times = store.quota_times(period.from_us, period.to_us).await?;
        let projects = if times.is_empty() { Vec::new() } else { store.projects().await? };
        Ok(Self::of(times, projects.into_iter().map(|row| (row.id, row.name)).collect()))
    }

    /// Of these times and the names of projects, by id.
    pub(crate) fn of(times: Vec<QuotaTime>, names: BTreeMap<String, String>) -> Self {
        let with: BTreeMap<String, String> =
            times.iter().map(|time| (name_in(&names, &time.project), time.project.clone())).collect();
        let by_name = with.keys().enumerate().map(|(index, name)| (name.clone(), index)).collect();
        Self { times, names, by_name, ids: with.into_values().collect() }
    }

    /// The projects with a quota that a project counts against, itself first.
    fn above(&self, project: &str) -> Vec<usize> {
        let all = project_path(project);
        all.filter_map(|name| self.by_name.get(name).copied()).collect()
    }

    pub(crate) fn sides(&self, records: &Records, parts: &[Period]) -> Sides {
        if self.times.is_empty() {
            return Sides::default();
        }
        let mut counted: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        let mut holdings = Vec::new();
        for (run, row) in records.runs.iter().enumerate() {
            let project = row.project.as_deref().unwrap_or_default();
            let since_us = records.held(row).from_us;
            for (period, slices) in records.parts(row).filter(|(_, slices)| !slices.is_empty()) {
                let projects =
                    counted.entry(project).or_insert_with(|| self.above(&name_in(&self.names, project)));
                holdings.push(Holding {
                    run,
                    milli: slices.iter().map(|slice| u64::from(slice.milli.0)).sum(),
                    is_kept: row.preemptible == Some(false),
                    since_us,
                    period,
                    projects: projects.clone(),
                });
            }
        }
        let guarantee = |time: &QuotaTime| {
            let name = name_in(&self.names, &time.project);
            Guarantee {
                project: self.by_name.get(&name).copied().unwrap_or_default(),
                milli: time.deserved_milli,
                period: Period { from_us: time.from_us, to_us: time.to_us.unwrap_or(records.now_us) },
                is_topmost: self.above(&name).len() == 1,
            }
        };
        let guarantees: Vec<Guarantee> = self.times.iter().map(guarantee).collect();
        sides(parts, &holdings, &guarantees, &here(records))
    }

    /// What projects lent: by id, with the index of the part and the amount.
    pub(crate) fn lent<'a>(&'a self, sides: &'a Sides) -> impl Iterator<Item = (&'a str, usize, MilliUs)> {
        let id = |index: usize| self.ids.get(index).map_or("", String::as_str);
        sides.lent.iter().map(move |((project, part), lent)| (id(*project), *part, *lent))
    }
}

/// Whether lines by these keys have the amounts that were lent: only a project lends.
pub(crate) fn has_lent(by: &[UsageKey]) -> bool {
    by.contains(&UsageKey::Project)
        && by.iter().all(|key| matches!(key, UsageKey::Project | UsageKey::Day | UsageKey::Month))
}

/// The GPUs that could take tasks, in thousandths, from these times on.
fn here(records: &Records) -> Vec<(i64, u64)> {
    let mut changes: BTreeMap<i64, i64> = BTreeMap::new();
    for row in records.times_of.values().flatten().filter(|row| gpu_times::state(row) == GpuPresence::Here) {
        *changes.entry(row.from_us).or_default() += 1000;
        *changes.entry(row.to_us.unwrap_or(i64::MAX)).or_default() -= 1000;
    }
    let mut sum = 0;
    let step = |(at_us, change): (i64, i64)| {
        sum += change;
        (at_us, sum.unsigned_abs())
    };
    changes.into_iter().map(step).collect()
}
