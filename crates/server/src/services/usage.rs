//! `cantle.get_usage`: the accounts of GPUs, from the records of runs and of the GPUs' states.

use std::collections::{BTreeMap, BTreeSet};

use cantle_clearml::usage::{GetUsage, GpuAccount, PriceSheet, Usage, UsageKey, UsageKind, UsageLine};
use cantle_store::{GpuTimeRow, RunRow};
use cantle_usage::{
    Division, Facts, GpuPresence, GpuTime, Hold, Line, MilliUs, Period, Price, Prices, Report, TimeKind,
    divide, percentile,
};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::app::Call;
use crate::clock::{from_rfc3339, rfc3339};
use crate::error::ApiError;
use crate::gpu_times;
use crate::routes::Routes;

/// The lines of runs that the caller may not see.
const OTHERS: &str = "(others)";
const GIB: f64 = 1_073_741_824.0;

pub(super) fn add(routes: &mut Routes) {
    routes.typed(get_usage);
}

async fn get_usage(call: Call, request: GetUsage) -> Result<Usage, ApiError> {
    let period = period(&request, call.now_us)?;
    let prices = request.prices.as_ref().map(prices).transpose()?;
    let records = Records::read(&call, period).await?;
    let by = &request.by;
    let mut report = Report::default();
    for (index, run) in records.runs.iter().enumerate().filter(|(_, run)| run.slices.is_empty()) {
        let at = Place { node: run.node.as_deref().unwrap_or_default(), ..Place::default() };
        report.add_run(index, records.key(by, Some(index), at, records.held(run).from_us));
    }
    let mut gpus = Vec::new();
    for gpu in records.gpus() {
        let (times, holds) = (records.times(gpu), records.holds(gpu));
        let mut whole = Division::default();
        let edges = days(by, period).into_iter().chain(prices.iter().flat_map(Prices::edges_us));
        for part in period.cut(edges) {
            let inside: Vec<Hold> =
                holds.iter().filter(|hold| hold.period.within(part).us() > 0).copied().collect();
            let place = records.place(gpu, part);
            let price = prices.as_ref().and_then(|prices| prices.at(place.model, part.from_us));
            let division = divide(part, &times, &inside);
            whole.join(&division);
            report.add(
                &division,
                price,
                |run| records.facts(run),
                |run| records.memory_per_milli(run, gpu),
                |run| records.key(by, run, place, part.from_us),
            );
        }
        gpus.push(records.account(gpu, period, &whole));
    }
    let is_priced = prices.is_some();
    let line = |((part, keys), line)| records.line(by, part, keys, &line, is_priced);
    let lines = report.lines.into_iter().map(line).collect();
    Ok(Usage { from: rfc3339(period.from_us), to: rfc3339(period.to_us), lines, gpus })
}

/// The time of the request that has passed.
fn period(request: &GetUsage, now_us: i64) -> Result<Period, ApiError> {
    let time = |name: &str, text: &str| {
        from_rfc3339(text).ok_or_else(|| {
            ApiError::invalid(format!("{name} is \"{text}\"; it is a time like 2026-11-01T00:00:00Z"))
        })
    };
    let (from_us, to_us) = (time("from", &request.from)?, time("to", &request.to)?);
    if from_us >= to_us {
        let text = format!("from is {} and to is {}; to is later than from", request.from, request.to);
        return Err(ApiError::invalid(text));
    }
    Ok(Period { from_us, to_us: to_us.min(now_us).max(from_us) })
}

fn prices(sheet: &PriceSheet) -> Result<Prices, ApiError> {
    let time = |text: &Option<String>, otherwise: i64| match text {
        None => Ok(otherwise),
        Some(text) => from_rfc3339(text).ok_or_else(|| {
            ApiError::invalid(format!("a price has the time \"{text}\"; it is one like 2026-11-01T00:00:00Z"))
        }),
    };
    let price = |entry: &cantle_clearml::usage::PriceEntry| {
        let micro = (entry.gpu_hour * 1e6).round();
        if !(0.0..1e15).contains(&micro) {
            let text = format!("gpu_hour of {} is {}; it is a price, 0 or more", entry.model, entry.gpu_hour);
            return Err(ApiError::invalid(text));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the line above checks it"
        )]
        let micro = micro as u64;
        let period = Period { from_us: time(&entry.from, i64::MIN)?, to_us: time(&entry.to, i64::MAX)? };
        Ok(Price { model: entry.model.clone(), micro, period })
    };
    let all = sheet.prices.iter().map(price).collect::<Result<_, ApiError>>()?;
    Prices::new(all).map_err(|error| ApiError::invalid(error.to_string()).caused_by(error))
}

/// The beginnings of days or months in UTC, if lines are by day or month.
fn days(by: &[UsageKey], period: Period) -> Vec<i64> {
    let utc = |us| Timestamp::from_microsecond(us).map(|time| time.to_zoned(TimeZone::UTC).date());
    let (Ok(first), Ok(last)) = (utc(period.from_us), utc(period.to_us)) else { return Vec::new() };
    if !by.iter().any(|key| matches!(key, UsageKey::Day | UsageKey::Month)) {
        return Vec::new();
    }
    let each = first.series(jiff::Span::new().days(1)).take_while(|day| *day <= last);
    let each = each.filter(|day| by.contains(&UsageKey::Day) || day.day() == 1);
    each.filter_map(|day| day.to_zoned(TimeZone::UTC).ok())
        .map(|day| day.timestamp().as_microsecond())
        .collect()
}

/// A GPU at a time.
#[derive(Clone, Copy, Debug, Default)]
struct Place<'a> {
    gpu: &'a str,
    node: &'a str,
    model: &'a str,
}

/// All that is recorded of a period.
struct Records {
    now_us: i64,
    runs: Vec<RunRow>,
    /// By GPU: the indexes of its runs.
    runs_of: BTreeMap<String, Vec<usize>>,
    times_of: BTreeMap<String, Vec<GpuTimeRow>>,
    /// Names of projects that the caller may see, and of queues, by id.
    projects: BTreeMap<String, String>,
    queues: BTreeMap<String, String>,
    /// Names of users, by id.
    users: BTreeMap<String, String>,
    /// The indexes of the runs that the caller may not see.
    hidden: BTreeSet<usize>,
}

impl Records {
    async fn read(call: &Call, period: Period) -> Result<Self, ApiError> {
        let runs = call.store.runs_between(period.from_us, period.to_us).await?;
        let mut times_of: BTreeMap<String, Vec<GpuTimeRow>> = BTreeMap::new();
        for row in call.store.gpu_times(period.from_us, period.to_us).await? {
            times_of.entry(row.gpu.clone()).or_default().push(row);
        }
        let mut runs_of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            for slice in &run.slices {
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
    fn gpus(&self) -> BTreeSet<&str> {
        self.times_of.keys().chain(self.runs_of.keys()).map(String::as_str).collect()
    }

    /// The time for which a run held its slices: an agent takes a task when it has room for it.
    fn held(&self, run: &RunRow) -> Period {
        let from_us = run.taken_us.or(run.started_us).unwrap_or(self.now_us);
        Period { from_us, to_us: run.ended_us.unwrap_or(self.now_us) }
    }

    fn holds(&self, gpu: &str) -> Vec<Hold> {
        let of = self.runs_of.get(gpu).into_iter().flatten();
        of.map(|&run| {
            let slices = self.runs[run].slices.iter().filter(|slice| slice.gpu.0 == gpu);
            Hold { run, milli: slices.map(|slice| slice.milli.0).sum(), period: self.held(&self.runs[run]) }
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

    fn place<'a>(&'a self, gpu: &'a str, at: Period) -> Place<'a> {
        let mut rows = self.times_of.get(gpu).into_iter().flatten().rev();
        let row = rows.find(|row| row.from_us < at.to_us);
        Place { gpu, node: row.map_or("", |row| &row.node), model: row.map_or("", |row| &row.model) }
    }

    fn memory_per_milli(&self, run: usize, gpu: &str) -> u64 {
        let slices = self.runs[run].slices.iter().filter(|slice| slice.gpu.0 == gpu);
        let (bytes, milli) = slices.fold((0, 0), |(bytes, milli), slice| {
            (bytes + slice.memory_limit_bytes, milli + u64::from(slice.milli.0))
        });
        bytes.checked_div(milli).unwrap_or(0)
    }

    fn facts(&self, run: usize) -> Facts {
        let run = &self.runs[run];
        let waited = run.queued_us.zip(run.taken_us).map(|(queued, taken)| taken.saturating_sub(queued));
        Facts {
            waited_us: waited.and_then(|us| u64::try_from(us).ok()),
            given_up: run.outcome.is_some_and(|outcome| !outcome.is_final()),
        }
    }

    fn key(&self, by: &[UsageKey], run: Option<usize>, place: Place<'_>, at_us: i64) -> Vec<String> {
        let date = |format: &str| {
            Timestamp::from_microsecond(at_us)
                .map_or_else(|_| String::new(), |at| at.strftime(format).to_string())
        };
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
            UsageKey::Node => place.node.to_owned(),
            UsageKey::Gpu => place.gpu.to_owned(),
            UsageKey::Model => place.model.to_owned(),
            UsageKey::Day => date("%Y-%m-%d"),
            UsageKey::Month => date("%Y-%m"),
        };
        by.iter().map(value).collect()
    }

    fn account(&self, gpu: &str, period: Period, whole: &Division) -> GpuAccount {
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

    fn line(
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
            memory_gib_seconds: line.memory_byte_us as f64 / GIB / 1e6,
            wait_median_s: wait(50),
            wait_p95_s: wait(95),
            given_up: facts.iter().filter(|facts| facts.given_up).count() as u64,
            lost_gpu_seconds: seconds(line.lost),
            cost: line.cost_micro().filter(|_| is_priced).map(|micro| micro as f64 / 1e6),
        }
    }
}

/// What was deleted has its id for a name.
fn name_in(names: &BTreeMap<String, String>, id: &str) -> String {
    names.get(id).map_or(id, String::as_str).to_owned()
}

/// Exact to the microsecond for a thousand GPUs for a century.
fn seconds(time: MilliUs) -> f64 {
    time as f64 / 1e9
}
