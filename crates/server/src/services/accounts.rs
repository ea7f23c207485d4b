//! The records of a period, from which accounts are computed: runs, the states of GPUs, and names.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::usage::{GpuAccount, UsageKey, UsageKind, UsageLine};
use cantle_model::Slice;
use cantle_store::{GpuTimeRow, RunRow};
use cantle_usage::{
    Division, Facts, GpuPresence, GpuTime, Hold, Line, MilliUs, Period, Side, Sides, TimeKind, percentile,
};

use crate::app::Call;
use crate::clock::date;
use crate::error::ApiError;
use crate::gpu_times;

/// The lines of runs that the caller may not see.
const OTHERS: &str = "(others)";
const GIB: f64 = 1_073_741_824.0;

/// A GPU at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place<'a> {
    pub(super) gpu: &'a str,
    pub(super) node: &'a str,
    pub(super) model: &'a str,
    pub(super) pools: &'a str,
}

/// All that is recorded of a period.
pub(super) struct Records {
    pub(super) now_us: i64,
    pub(super) runs: Vec<RunRow>,
    /// By GPU: the indexes of its runs.
    runs_of: BTreeMap<String, Vec<usize>>,
    pub(super) times_of: BTreeMap<String, Vec<GpuTimeRow>>,
    /// Names of projects that the caller may see, and of queues, by id.
    pub(super) projects: BTreeMap<String, String>,
    queues: BTreeMap<String, String>,
    /// Names of users, by id.
    users: BTreeMap<String, String>,
    /// The indexes of the runs that the caller may not see.
    pub(super) hidden: BTreeSet<usize>,
}

impl Records {
    pub(super) async fn read(call: &Call, period: Period) -> Result<Self, ApiError> {
        let runs = call.store.runs_between(period.from_us, period.to_us).await?;
        let mut times_of: BTreeMap<String, Vec<GpuTimeRow>> = BTreeMap::new();
        for row in call.store.gpu_times(period.from_us, period.to_us).await? {
            times_of.entry(row.gpu.clone()).or_default().push(row);
        }
        let mut runs_of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            for slice in run.all_slices() {
                let of = runs_of.entry(slice.gpu.0.clone()).or_default();
                if of.last() != Some(&index) {
                    of.push(index);
                }
            }
        }
        let projects: BTreeMap<String, String> =
            call.projects().await?.into_iter().map(|row| (row.id, row.name)).collect();
        let sees_all = call.seen().is_all();
        let is_hidden = |run: &RunRow| {
            let own = run.owner.as_deref() == Some(call.who.user.as_str());
            !sees_all && !own && run.project.as_ref().is_none_or(|project| !projects.contains_key(project))
        };
        let hidden = (0..runs.len()).filter(|&index| is_hidden(&runs[index])).collect();
        let people = call.people.register();
        let owners = runs.iter().filter_map(|run| run.owner.clone());
        let users = owners.map(|id| (id.clone(), people.name(&id).to_owned())).collect();
        let queues = call.store.queue_names().await?.into_iter().collect();
        Ok(Self { now_us: call.now_us, runs, runs_of, times_of, projects, queues, users, hidden })
    }

    /// All GPUs of the period.
    pub(super) fn gpus(&self) -> BTreeSet<&str> {
        self.times_of.keys().chain(self.runs_of.keys()).map(String::as_str).collect()
    }

    /// The time for which a run held its slices: an agent takes a task when it has room for it.
    pub(super) fn held(&self, run: &RunRow) -> Period {
        let from_us = run.taken_us.or(run.started_us).unwrap_or(self.now_us);
        Period { from_us, to_us: run.ended_us.unwrap_or(self.now_us) }
    }

    /// The times for which a run held the same slices, in order.
    pub(super) fn parts<'a>(&self, run: &'a RunRow) -> impl Iterator<Item = (Period, &'a [Slice])> {
        let held = self.held(run);
        let parts = run.parts(held.from_us, held.to_us);
        parts.map(|(from_us, to_us, slices)| (Period { from_us, to_us }, slices))
    }

    /// What runs held of a GPU, in parts: a run that changes its side or its slices has several. A run with several GPUs has its quota on
    /// the first ones.
    pub(super) fn holds(&self, gpu: &str, sides: &Sides) -> Vec<Hold> {
        let of = self.runs_of.get(gpu).into_iter().flatten();
        let parts = of.flat_map(|&run| self.parts(&self.runs[run]).map(move |part| (run, part)));
        parts
            .flat_map(|(run, (held, slices))| {
                let (mut before, mut milli, mut seen) = (0_u64, 0_u32, false);
                for slice in slices {
                    match slice.gpu.0 == gpu {
                        true => (milli, seen) = (milli + slice.milli.0, true),
                        false if !seen => before += u64::from(slice.milli.0),
                        false => {}
                    }
                }
                let part = move |(period, guaranteed): (Period, u64)| {
                    let guaranteed = guaranteed.saturating_sub(before).min(milli.into());
                    let guaranteed_milli = u32::try_from(guaranteed).unwrap_or(milli);
                    Hold { run, milli, guaranteed_milli, since_us: held.from_us, period }
                };
                sides.parts(run, held).into_iter().map(part)
            })
            .collect()
    }

    pub(super) fn times(&self, gpu: &str) -> Vec<GpuTime> {
        let rows = self.times_of.get(gpu).into_iter().flatten();
        let time = |row: &GpuTimeRow| GpuTime { state: gpu_times::state(row), period: self.lasted(row) };
        rows.map(time).collect()
    }

    fn lasted(&self, row: &GpuTimeRow) -> Period {
        Period { from_us: row.from_us, to_us: row.to_us.unwrap_or_else(|| self.now_us.max(row.from_us)) }
    }

    pub(super) fn place<'a>(&'a self, gpu: &'a str, at: Period) -> Place<'a> {
        let mut rows = self.times_of.get(gpu).into_iter().flatten().rev();
        let row = rows.find(|row| row.from_us < at.to_us);
        Place {
            gpu,
            node: row.map_or("", |row| &row.node),
            model: row.map_or("", |row| &row.model),
            pools: row.map_or("", |row| &row.pools),
        }
    }

    /// The times at which a GPU came to another node or into other pools.
    pub(super) fn moves_us(&self, gpu: &str) -> impl Iterator<Item = i64> {
        let rows: &[GpuTimeRow] = self.times_of.get(gpu).map_or(&[], Vec::as_slice);
        let moved = |pair: &&[GpuTimeRow]| {
            (&pair[0].node, &pair[0].model, &pair[0].pools) != (&pair[1].node, &pair[1].model, &pair[1].pools)
        };
        rows.windows(2).filter(moved).map(|pair| pair[1].from_us)
    }

    pub(super) fn memory_per_milli(&self, run: usize, gpu: &str) -> u64 {
        let slices = self.runs[run].all_slices().filter(|slice| slice.gpu.0 == gpu);
        let (bytes, milli) = slices.fold((0, 0), |(bytes, milli), slice| {
            (bytes + slice.memory_limit_bytes, milli + u64::from(slice.milli.0))
        });
        bytes.checked_div(milli).unwrap_or(0)
    }

    pub(super) fn facts(&self, run: usize) -> Facts {
        let run = &self.runs[run];
        let waited = run.queued_us.zip(run.taken_us).map(|(queued, taken)| taken.saturating_sub(queued));
        Facts {
            waited_us: waited.and_then(|us| u64::try_from(us).ok()),
            given_up: run.outcome.is_some_and(|outcome| !outcome.is_final()),
            peak_ppm: peak_ppm(run),
        }
    }

    pub(super) fn key(
        &self,
        by: &[UsageKey],
        (run, side): (Option<usize>, Option<Side>),
        place: Place<'_>,
        at_us: i64,
    ) -> Vec<String> {
        let of_run = |value: fn(&Self, &RunRow) -> Option<String>| match run {
            None => String::new(),
            Some(run) if self.hidden.contains(&run) => OTHERS.to_owned(),
            Some(run) => value(self, &self.runs[run]).unwrap_or_default(),
        };
        let value = |key: &UsageKey| match key {
            UsageKey::Project => of_run(|all, run| Some(name_in(&all.projects, run.project.as_ref()?))),
            UsageKey::User => of_run(|all, run| Some(name_in(&all.users, run.owner.as_ref()?))),
            UsageKey::Queue => of_run(|all, run| Some(name_in(&all.queues, run.queue.as_ref()?))),
            UsageKey::Task => of_run(|_, run| Some(run.task.clone())),
            UsageKey::Label(key) => match run {
                Some(run) if !self.hidden.contains(&run) => label(&self.runs[run].tags, key),
                other => other.map_or("", |_| OTHERS).to_owned(),
            },
            UsageKey::Side => side.map_or("", side_word).to_owned(),
            UsageKey::Node => place.node.to_owned(),
            UsageKey::Pool => place.pools.to_owned(),
            UsageKey::Gpu => place.gpu.to_owned(),
            UsageKey::Model => place.model.to_owned(),
            UsageKey::Day => date(at_us, "%Y-%m-%d"),
            UsageKey::Month => date(at_us, "%Y-%m"),
        };
        by.iter().map(value).collect()
    }

    pub(super) fn account(&self, gpu: &str, period: Period, whole: &Division) -> GpuAccount {
        let rows: &[GpuTimeRow] = self.times_of.get(gpu).map_or(&[], Vec::as_slice);
        let recorded: u64 = rows.iter().map(|row| self.lasted(row).within(period).us()).sum();
        let rest = |state| seconds(whole.rest.get(&state).copied().unwrap_or(0));
        let follow = |pair: &[GpuTimeRow]| pair[0].to_us == Some(pair[1].from_us);
        GpuAccount {
            gpu: gpu.to_owned(),
            node: self.place(gpu, period).node.to_owned(),
            recorded_seconds: seconds(1000 * MilliUs::from(recorded)),
            allocated_seconds: seconds(whole.shares.values().sum()),
            free_seconds: rest(GpuPresence::Here),
            faulty_seconds: rest(GpuPresence::Faulty),
            away_seconds: rest(GpuPresence::Away),
            unrecorded_seconds: seconds(whole.unrecorded),
            late_seconds: seconds(whole.late),
            closes: rows.windows(2).all(follow)
                && whole.total() - whole.unrecorded == 1000 * MilliUs::from(recorded),
        }
    }

    pub(super) fn line(
        &self,
        by: &[UsageKey],
        part: TimeKind,
        keys: Vec<String>,
        line: &Line,
        is_priced: bool,
    ) -> UsageLine {
        let facts: Vec<Facts> = line.runs.iter().map(|&run| self.facts(run)).collect();
        let mut waits: Vec<u64> = facts.iter().filter_map(|facts| facts.waited_us).collect();
        let mut wait = |percent| percentile(&mut waits, percent).map(|us| us as f64 / 1e6);
        let newest =
            line.runs.last().filter(|run| by.contains(&UsageKey::Task) && !self.hidden.contains(run));
        UsageLine {
            kind: match part {
                TimeKind::Allocated => UsageKind::Allocated,
                TimeKind::Free => UsageKind::Free,
                TimeKind::Faulty => UsageKind::Faulty,
                TimeKind::Away => UsageKind::Away,
            },
            keys,
            name: newest.and_then(|&run| self.runs[run].name.clone()),
            runs: line.runs.len() as u64,
            gpu_seconds: seconds(line.gpu),
            guaranteed_gpu_seconds: seconds(line.guaranteed),
            borrowed_gpu_seconds: match part {
                TimeKind::Allocated => seconds(line.gpu - line.guaranteed),
                _ => 0.0,
            },
            lent_gpu_seconds: None,
            memory_gib_seconds: line.memory_byte_us as f64 / GIB / 1e6,
            wait_median_s: wait(50),
            wait_p95_s: wait(95),
            given_up: facts.iter().filter(|facts| facts.given_up).count() as u64,
            lost_gpu_seconds: seconds(line.lost),
            memory_peak: line.mean_peak_ppm().map(|ppm| ppm as f64 / 1e6),
            cost: line.cost_micro().filter(|_| is_priced).map(|micro| micro as f64 / 1e6),
        }
    }
}

/// A run's peak of one GPU, in millionths of its limit there. More than the limit does not count: a task may write what it likes into
/// its own account.
fn peak_ppm(run: &RunRow) -> Option<u32> {
    let limit = run.all_slices().map(|slice| slice.memory_limit_bytes).max().filter(|bytes| *bytes > 0)?;
    let peak = u128::from(run.measured.peak_bytes?.min(limit));
    u32::try_from(peak * 1_000_000 / u128::from(limit)).ok()
}

/// The value of the first tag with this key, `KEY:VALUE` or `KEY=VALUE`; empty if there is none.
fn label(tags: &[String], key: &str) -> String {
    let value = |tag: &String| Some(tag.strip_prefix(key)?.strip_prefix([':', '='])?.to_owned());
    tags.iter().find_map(value).unwrap_or_default()
}

const fn side_word(side: Side) -> &'static str {
    match side {
        Side::Guaranteed => "guaranteed",
        Side::Borrowed => "borrowed",
    }
}

/// What was deleted has its id for a name.
pub(super) fn name_in(names: &BTreeMap<String, String>, id: &str) -> String {
    names.get(id).map_or(id, String::as_str).to_owned()
}

/// Exact to the microsecond for a thousand GPUs for a century.
pub(super) fn seconds(time: MilliUs) -> f64 {
    time as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_tags_with_a_value() {
        let tags = ["team", "team2:x", "team:nlp", "team=vision", "a:b:c"].map(str::to_owned);
        let of = |key| label(&tags, key);
        assert_eq!(
            (of("team"), of("a"), of("a:b"), of("none")),
            ("nlp".into(), "b:c".into(), "c".into(), String::new())
        );
    }
}
