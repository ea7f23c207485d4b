//! The records of a time, and the parts of accounts that they make: runs, the states of GPUs, and whose names a caller sees.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantle_model::Slice;
use cantle_store::{GpuTimeRow, RunRow, Store};
use cantle_usage::{
    Crossing, GpuTime, Hold, MilliUs, PartBuilder, PartGpu, PartRun, PartShare, PartTask, Period, Sides,
    UsagePart, divide,
};

use super::sides::Quotas;
use crate::app::Call;
use crate::error::ApiError;
use crate::gpu_times;
use crate::rights::Register;

/// The part of the runs of others that a caller sees: names, by id.
pub(crate) struct View {
    /// Projects that the caller may see.
    pub(crate) projects: BTreeMap<String, String>,
    queues: BTreeMap<String, String>,
    people: Arc<Register>,
    own: String,
    sees_all: bool,
}

impl View {
    pub(crate) async fn read(call: &Call) -> Result<Self, ApiError> {
        Ok(Self {
            projects: call.projects().await?.into_iter().map(|row| (row.id, row.name)).collect(),
            queues: call.store.queue_names().await?.into_iter().collect(),
            people: call.people.register(),
            own: call.who.user.as_str().to_owned(),
            sees_all: call.seen().is_all(),
        })
    }

    /// For a caller who sees all of these projects.
    #[cfg(test)]
    pub(crate) fn of_all(projects: BTreeMap<String, String>) -> Self {
        let (queues, people) = (BTreeMap::new(), Arc::default());
        Self { projects, queues, people, own: String::new(), sees_all: true }
    }

    /// Whether the caller may not see the runs of this owner in this project; both may be empty.
    pub(crate) fn hides(&self, owner: &str, project: &str) -> bool {
        !self.sees_all && owner != self.own && !self.projects.contains_key(project)
    }

    pub(crate) fn project(&self, id: &str) -> String {
        name_in(&self.projects, id)
    }

    pub(crate) fn queue(&self, id: &str) -> String {
        name_in(&self.queues, id)
    }

    pub(crate) fn user(&self, id: &str) -> String {
        self.people.name(id).to_owned()
    }
}

/// All that is recorded of a time.
pub(crate) struct Records {
    pub(crate) now_us: i64,
    pub(crate) runs: Vec<RunRow>,
    /// By GPU: the indexes of its runs.
    runs_of: BTreeMap<String, Vec<usize>>,
    pub(crate) times_of: BTreeMap<String, Vec<GpuTimeRow>>,
}

impl Records {
    pub(crate) async fn read(store: &Store, period: Period, now_us: i64) -> Result<Self, ApiError> {
        let runs = store.runs_between(period.from_us, period.to_us).await?;
        Ok(Self::of(runs, store.gpu_times(period.from_us, period.to_us).await?, now_us))
    }

    /// Of these runs, in the order in which they began, and times of GPUs, by GPU and beginning.
    pub(crate) fn of(runs: Vec<RunRow>, times: Vec<GpuTimeRow>, now_us: i64) -> Self {
        let mut times_of: BTreeMap<String, Vec<GpuTimeRow>> = BTreeMap::new();
        for row in times {
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
        Self { now_us, runs, runs_of, times_of }
    }

    /// Divides the time of all GPUs in each of these times, which follow each other.
    pub(crate) fn parts_of(&self, periods: &[Period], quotas: &Quotas) -> Vec<UsagePart> {
        let sides = quotas.sides(self, periods);
        let mut builders: Vec<PartBuilder> = periods.iter().map(|_| PartBuilder::default()).collect();
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| run.all_slices().next().is_none())
        {
            let held = self.held(run);
            for (period, builder) in periods.iter().zip(&mut builders) {
                // A run of no time counts where it began.
                if held.from_us < period.to_us && held.to_us.max(held.from_us + 1) > period.from_us {
                    builder.run(index, |builder| self.run(run, *period, builder));
                }
            }
        }
        for gpu in self.gpus() {
            self.divide(gpu, periods, &sides, &mut builders);
        }
        for (project, part, lent) in quotas.lent(&sides) {
            if let Some(builder) = builders.get_mut(part) {
                builder.lent(project, lent);
            }
        }
        builders.into_iter().map(PartBuilder::build).collect()
    }

    fn divide(&self, gpu: &str, periods: &[Period], sides: &Sides, builders: &mut [PartBuilder]) {
        let (times, mut holds) = (self.times(gpu), self.holds(gpu, sides));
        holds.sort_by_key(|hold| hold.period.from_us);
        let (mut coming, mut inside) = (holds.into_iter().peekable(), Vec::<Hold>::new());
        let moves = self.moves_us(gpu);
        for (period, builder) in periods.iter().zip(builders) {
            for part in period.cut(moves.iter().copied()) {
                // Of the many runs of a long time, few lie in each part.
                inside.retain(|hold| hold.period.to_us > part.from_us);
                while let Some(hold) = coming.next_if(|hold| hold.period.from_us < part.to_us) {
                    inside.push(hold);
                }
                let division = divide(part, &times, &inside);
                let recorded = times.iter().map(|time| time.period.within(part)).filter(|time| time.us() > 0);
                let at = self.place(gpu, part, builder);
                let of = builder.gpu(at, &recorded.collect::<Vec<_>>(), &division);
                for (&index, &had) in &division.shares {
                    let row = &self.runs[index];
                    let run = builder.run(index, |builder| self.run(row, *period, builder));
                    let guaranteed = division.guaranteed.get(&index).copied().unwrap_or(0);
                    let memory_per_milli = memory_per_milli(row, gpu);
                    builder.share(PartShare { run, gpu: of, had, guaranteed, memory_per_milli });
                }
            }
        }
    }

    fn run(&self, run: &RunRow, period: Period, builder: &mut PartBuilder) -> (PartRun, PartTask) {
        let mut text = |text: &Option<String>| builder.text(text.as_deref().unwrap_or_default());
        let [project, queue, owner, node] = [&run.project, &run.queue, &run.owner, &run.node].map(&mut text);
        let waited = run.queued_us.zip(run.taken_us).map(|(queued, taken)| taken.saturating_sub(queued));
        let held = self.held(run);
        let from_before = held.from_us < period.from_us;
        let goes_on = run.ended_us.is_none() || held.to_us > period.to_us;
        let made = PartRun {
            project,
            queue,
            owner,
            node,
            tags: builder.tags(&run.tags),
            waited_us: waited.and_then(|us| u64::try_from(us).ok()),
            given_up: run.outcome.is_some_and(|outcome| !outcome.is_final()),
            peak_ppm: peak_ppm(run),
            without_gpu: run.all_slices().next().is_none(),
            crosses: (from_before || goes_on).then(|| Crossing {
                task: run.task.as_str().into(),
                run: run.run,
                from_before,
                goes_on,
            }),
        };
        (made, PartTask { id: run.task.clone(), name: run.name.clone() })
    }

    /// All GPUs of the time.
    fn gpus(&self) -> BTreeSet<&str> {
        self.times_of.keys().chain(self.runs_of.keys()).map(String::as_str).collect()
    }

    /// The time for which a run held its slices: an agent takes a task when it has room for it.
    pub(crate) fn held(&self, run: &RunRow) -> Period {
        let from_us = run.taken_us.or(run.started_us).unwrap_or(self.now_us);
        Period { from_us, to_us: run.ended_us.unwrap_or(self.now_us) }
    }

    /// The times for which a run held the same slices, in order.
    pub(crate) fn parts<'a>(&self, run: &'a RunRow) -> impl Iterator<Item = (Period, &'a [Slice])> {
        let held = self.held(run);
        let parts = run.parts(held.from_us, held.to_us);
        parts.map(|(from_us, to_us, slices)| (Period { from_us, to_us }, slices))
    }

    /// The use of a GPU by runs, in parts: a run that changes its side or its slices has several. A run with several
    /// GPUs has its quota on the first ones.
    fn holds(&self, gpu: &str, sides: &Sides) -> Vec<Hold> {
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

    fn times(&self, gpu: &str) -> Vec<GpuTime> {
        let rows = self.times_of.get(gpu).into_iter().flatten();
        let time = |row: &GpuTimeRow| GpuTime { state: gpu_times::state(row), period: self.lasted(row) };
        rows.map(time).collect()
    }

    fn lasted(&self, row: &GpuTimeRow) -> Period {
        Period { from_us: row.from_us, to_us: row.to_us.unwrap_or_else(|| self.now_us.max(row.from_us)) }
    }

    /// Where the GPU was in a part of the time.
    fn place(&self, gpu: &str, at: Period, builder: &mut PartBuilder) -> PartGpu {
        let mut rows = self.times_of.get(gpu).into_iter().flatten().rev();
        let row = rows.find(|row| self.lasted(row).within(at).us() > 0);
        PartGpu {
            gpu: builder.text(gpu),
            node: builder.text(row.map_or("", |row| &row.node)),
            model: builder.text(row.map_or("", |row| &row.model)),
            pools: builder.text(row.map_or("", |row| &row.pools)),
            ..PartGpu::default()
        }
    }

    /// The times at which a GPU came to a node or into pools, and those from which nothing is known of it.
    fn moves_us(&self, gpu: &str) -> Vec<i64> {
        let rows: &[GpuTimeRow] = self.times_of.get(gpu).map_or(&[], Vec::as_slice);
        let goes_on = |a: &GpuTimeRow, b: &GpuTimeRow| {
            a.to_us == Some(b.from_us) && (&a.node, &a.model, &a.pools) == (&b.node, &b.model, &b.pools)
        };
        let between = rows.windows(2).filter(|pair| !goes_on(&pair[0], &pair[1]));
        let between = between.flat_map(|pair| [pair[0].to_us, Some(pair[1].from_us)]);
        let ends = [rows.first().map(|row| row.from_us), rows.last().and_then(|row| row.to_us)];
        between.chain(ends).flatten().collect()
    }
}

/// The memory limit of a run on a GPU, in bytes per thousandth of its share there.
fn memory_per_milli(run: &RunRow, gpu: &str) -> u64 {
    let slices = run.all_slices().filter(|slice| slice.gpu.0 == gpu);
    let (bytes, milli) = slices.fold((0, 0), |(bytes, milli), slice| {
        (bytes + slice.memory_limit_bytes, milli + u64::from(slice.milli.0))
    });
    bytes.checked_div(milli).unwrap_or(0)
}

/// A run's peak of one GPU, in millionths of its limit there. More than the limit does not count: a task may write what it likes into
/// its own account.
fn peak_ppm(run: &RunRow) -> Option<u32> {
    let limit = run.all_slices().map(|slice| slice.memory_limit_bytes).max().filter(|bytes| *bytes > 0)?;
    let peak = u128::from(run.measured.peak_bytes?.min(limit));
    u32::try_from(peak * 1_000_000 / u128::from(limit)).ok()
}

/// The value of the first tag with this key, `KEY:VALUE` or `KEY=VALUE`; empty if there is none.
pub(crate) fn label<'a>(mut tags: impl Iterator<Item = &'a str>, key: &str) -> &'a str {
    tags.find_map(|tag| tag.strip_prefix(key)?.strip_prefix([':', '='])).unwrap_or_default()
}

/// A deleted object has its id for a name.
pub(crate) fn name_in(names: &BTreeMap<String, String>, id: &str) -> String {
    names.get(id).map_or(id, String::as_str).to_owned()
}

/// Exact to the microsecond for a thousand GPUs for a century.
pub(crate) fn seconds(time: MilliUs) -> f64 {
    time as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_tags_with_a_value() {
        let tags = ["team", "team2:x", "team:nlp", "team=vision", "a:b:c"];
        let of = |key| label(tags.into_iter(), key);
        assert_eq!((of("team"), of("a"), of("a:b"), of("none")), ("nlp", "b:c", "c", ""));
    }
}
