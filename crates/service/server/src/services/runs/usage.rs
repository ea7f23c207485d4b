//! `cantle.get_usage`: the accounts of GPUs, from the records of runs and of the GPUs' states. Days that are over are kept as sums of each
//! run and GPU ([`super::usage_days`]); the runs of the other ones are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_clearml::usage::{GetUsage, GpuAccount, PriceSheet, Usage, UsageKey, UsageKind, UsageLine};
use cantle_store::DAY_US;
use cantle_usage::{
    Column, GpuSums, Line, LineKey, MilliUs, PartGpu, PartRun, Period, Price, Prices, Report, Text, TimeKind,
    UsagePart, percentile,
};
use tokio::task::{JoinError, JoinSet, spawn_blocking};

use super::accounts::{Records, View, label, seconds};
use super::sides;
use super::usage_days::{FORM, kept};
use crate::app::{App, Call};
use crate::clock::{date, from_rfc3339, rfc3339};
use crate::error::ApiError;
use crate::routes::Routes;

/// The lines of runs that the caller may not see.
const OTHERS: &str = "(others)";
const GIB: f64 = 1_073_741_824.0;
/// The longest time whose runs are read at once: they are in memory.
const READ_US: i64 = 2 * DAY_US;
/// The most kept days that are read at once.
const KEPT_DAYS: i64 = 8;
/// The most lines of a report: 25 MB.
const MOST_LINES: usize = 50_000;
/// The most lines of which those with most unused memory are found.
const MOST_COMPARED: usize = 250_000;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_usage);
}

pub(super) async fn get_usage(call: Call, request: GetUsage) -> Result<Usage, ApiError> {
    let period = period(&request.from, &request.to, call.now_us)?;
    let sheet = request.prices.or_else(|| call.app.prices.clone());
    let prices = sheet.as_ref().map(prices).transpose()?;
    let list = call.app.lists.begin(call.who.user.as_str()).await.map_err(|_| late())?;
    let view = View::read(&call).await?;
    let mut sums = Sums { report: Report::default(), lent: BTreeMap::new(), view, by: request.by, prices };
    let most = if request.most_unused.is_some() { MOST_COMPARED } else { MOST_LINES };
    let reader = Reader {
        app: Arc::clone(&call.app),
        with_tasks: sums.by.contains(&UsageKey::Task),
        edges_us: sums.prices.iter().flat_map(Prices::edges_us).collect(),
        now_us: call.now_us,
    };
    let stretches = reader.stretches(period).await?;
    let read = |index: usize| {
        let (reader, stretch) = (reader.clone(), *stretches.get(index)?);
        Some(JoinSet::from_iter([async move { reader.read(stretch).await }]))
    };
    // The next one is read while this one is added. Nothing is read on for a caller who has gone.
    let mut coming = read(0);
    for index in 0..stretches.len() {
        let place = list.part().await.map_err(|_| late())?;
        let found = match coming.as_mut() {
            Some(reading) => reading.join_next().await.transpose().map_err(failed)?,
            None => None,
        };
        let Some(found) = found.transpose()? else { break };
        coming = read(index + 1);
        // The threads that answer others are not for this.
        let added = spawn_blocking(move || {
            found.add_to(&mut sums);
            drop(place);
            sums
        });
        sums = added.await.map_err(failed)?;
        if sums.report.line_count() > most {
            return Err(ApiError::invalid(format!(
                "the report has more than {most} lines: ask for a shorter time or by fewer keys"
            )));
        }
    }
    let mut usage = Usage { prices: sheet, ..sums.finish(period) };
    if let Some(count) = request.most_unused {
        keep_most_unused(&mut usage.lines, count);
    }
    Ok(usage)
}

fn failed(error: JoinError) -> ApiError {
    ApiError::new(500, 0, "the report could not be made").caused_by(error)
}

pub(crate) fn late() -> ApiError {
    ApiError::invalid(
        "the report was not made in time: ask for a shorter time; a user's reports and lists are made one after the other",
    )
}

/// A time of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stretch {
    /// Days that are kept, from this one up to but without that one.
    Kept(i64, i64),
    /// A time whose runs are read.
    Read(Period),
}

/// Times of which each is short enough to read its runs at once.
pub(crate) fn short(Period { from_us, to_us }: Period) -> impl Iterator<Item = Period> {
    let begins = (0..).map(move |n| from_us + n * READ_US).take_while(move |begin| *begin < to_us);
    begins.map(move |begin| Period { from_us: begin, to_us: (begin + READ_US).min(to_us) })
}

fn plan(period: Period, days: &[i64]) -> Vec<Stretch> {
    let mut all = Vec::new();
    let mut at_us = period.from_us;
    let read = |all: &mut Vec<Stretch>, from_us: i64, to_us: i64| {
        all.extend(short(Period { from_us, to_us }).map(Stretch::Read));
    };
    for day in days.iter().copied().filter(|day| day * DAY_US >= period.from_us) {
        read(&mut all, at_us, day * DAY_US);
        match all.last_mut() {
            Some(Stretch::Kept(first, end)) if *end == day && day - *first < KEPT_DAYS => *end += 1,
            _ => all.push(Stretch::Kept(day, day + 1)),
        }
        at_us = (day + 1) * DAY_US;
    }
    read(&mut all, at_us, period.to_us);
    all
}

/// The records that were read of a stretch.
enum StretchRecords {
    Kept(Vec<(Period, UsagePart)>),
    Read(Box<(Records, sides::Quotas, Vec<Period>)>),
}

/// Reads what a report needs.
#[derive(Clone)]
struct Reader {
    app: Arc<App>,
    with_tasks: bool,
    /// When prices change.
    edges_us: Vec<i64>,
    now_us: i64,
}

impl Reader {
    /// The times of a report, in order.
    async fn stretches(&self, period: Period) -> Result<Vec<Stretch>, ApiError> {
        let store = &self.app.store;
        let Some(first_us) = self.app.first_usage.get(store).await? else { return Ok(Vec::new()) };
        let period = Period { from_us: period.from_us.max(first_us.div_euclid(DAY_US) * DAY_US), ..period };
        let (first, end) = (period.from_us.div_euclid(DAY_US), period.to_us.div_euclid(DAY_US));
        // A day in which a price changes is cut there.
        let is_cut = |day: i64| {
            self.edges_us.iter().any(|edge| edge.rem_euclid(DAY_US) != 0 && edge.div_euclid(DAY_US) == day)
        };
        let days = store.kept_usage_days(FORM, first, end).await?.into_iter().filter(|day| !is_cut(*day));
        Ok(plan(period, &days.collect::<Vec<_>>()))
    }

    async fn read(&self, stretch: Stretch) -> Result<StretchRecords, ApiError> {
        let store = &self.app.store;
        let period = match stretch {
            Stretch::Kept(first, end) => {
                let parts = kept(store, first, end, self.with_tasks).await?;
                if (first..end).eq(parts.iter().map(|(day, _)| day.from_us.div_euclid(DAY_US))) {
                    return Ok(StretchRecords::Kept(parts));
                }
                // One of them has changed since.
                Period { from_us: first * DAY_US, to_us: end * DAY_US }
            }
            Stretch::Read(period) => period,
        };
        let records = Records::read(store, period, self.now_us).await?;
        let quotas = sides::Quotas::read(store, period).await?;
        let days = (period.from_us.div_euclid(DAY_US) + 1..).map(|day| day * DAY_US);
        let days = days.take_while(|day| *day < period.to_us);
        let periods = period.cut(days.chain(self.edges_us.iter().copied()));
        Ok(StretchRecords::Read(Box::new((records, quotas, periods))))
    }
}

impl StretchRecords {
    fn add_to(self, sums: &mut Sums) {
        match self {
            Self::Kept(parts) => parts.iter().for_each(|(period, part)| sums.add(*period, part)),
            Self::Read(found) => {
                let (records, quotas, periods) = *found;
                let parts = records.parts_of(&periods, &quotas);
                periods.iter().zip(&parts).for_each(|(period, part)| sums.add(*period, part));
            }
        }
    }
}

/// A report that is being made.
struct Sums {
    report: Report,
    /// The amounts that projects lent, by the keys of their lines.
    lent: BTreeMap<Vec<String>, MilliUs>,
    view: View,
    by: Vec<UsageKey>,
    prices: Option<Prices>,
}

impl Sums {
    fn add(&mut self, period: Period, part: &UsagePart) {
        let hidden: Vec<bool> = part
            .runs()
            .iter()
            .map(|run| self.view.hides(part.text(run.owner), part.text(run.project)))
            .collect();
        let columns: Vec<Column> = self
            .by
            .iter()
            .map(|key| column(key, period, part, &hidden, &self.view, &mut self.report))
            .collect();
        let prices = self.prices.as_ref();
        self.report.add(part, &columns, |model| prices?.at(model, period.from_us));
        if sides::has_lent(&self.by) {
            for (project, lent) in part.lent() {
                let Some(project) = self.view.projects.get(project) else { continue };
                let value = |key: &UsageKey| day_or_month(key, period).unwrap_or_else(|| project.clone());
                *self.lent.entry(self.by.iter().map(value).collect()).or_default() += lent;
            }
        }
    }

    fn finish(mut self, period: Period) -> Usage {
        let is_priced = self.prices.is_some();
        // A line of many tasks has no name, and the caller may not read those of hidden ones.
        let task = self.by.iter().position(|key| *key == UsageKey::Task);
        let (lines, accounts) = self.report.finish();
        let line = |((part, keys), mut line): (LineKey, Line)| {
            line.name = line.name.filter(|_| task.is_some_and(|at| keys[at] != OTHERS));
            usage_line(part, keys, line, is_priced)
        };
        let mut lines: Vec<UsageLine> = lines.into_iter().map(line).collect();
        if sides::has_lent(&self.by) {
            add_lent(&mut lines, &mut self.lent);
        }
        let gpus = accounts.into_iter().map(|(gpu, account)| gpu_account(gpu, &account)).collect();
        Usage { from: rfc3339(period.from_us), to: rfc3339(period.to_us), lines, gpus, prices: None }
    }
}

fn day_or_month(key: &UsageKey, period: Period) -> Option<String> {
    match key {
        UsageKey::Day => Some(date(period.from_us, "%Y-%m-%d")),
        UsageKey::Month => Some(date(period.from_us, "%Y-%m")),
        _ => None,
    }
}

/// A name for each run of a part. Each text is looked up once: many runs have the same.
fn of_runs(
    part: &UsagePart,
    report: &mut Report,
    text: fn(&PartRun) -> Text,
    name: impl Fn(&str) -> String,
) -> Vec<Text> {
    let mut known: Vec<Option<Text>> = vec![None; part.texts().len()];
    let mut value = |text: Text| {
        let new = |report: &mut Report| if text == 0 { 0 } else { report.text(&name(part.text(text))) };
        match known.get_mut(text as usize) {
            Some(known) => *known.get_or_insert_with(|| new(report)),
            None => 0,
        }
    };
    part.runs().iter().map(|run| value(text(run))).collect()
}

/// The value of a key for each run or GPU of a part.
fn column(
    key: &UsageKey,
    period: Period,
    part: &UsagePart,
    hidden: &[bool],
    view: &View,
    report: &mut Report,
) -> Column {
    let (runs, gpus) = (part.runs(), part.gpus());
    let hide = |report: &mut Report, mut values: Vec<Text>| {
        let others = report.text(OTHERS);
        values.iter_mut().zip(hidden).filter(|(_, hidden)| **hidden).for_each(|(value, _)| *value = others);
        Column::Run(values)
    };
    let of_gpus = |report: &mut Report, text: fn(&PartGpu) -> Text| -> Vec<Text> {
        gpus.iter().map(|gpu| report.text(part.text(text(gpu)))).collect()
    };
    match key {
        UsageKey::Project => {
            let values = of_runs(part, report, |run| run.project, |id| view.project(id));
            hide(report, values)
        }
        UsageKey::User => {
            let values = of_runs(part, report, |run| run.owner, |id| view.user(id));
            hide(report, values)
        }
        UsageKey::Queue => {
            let values = of_runs(part, report, |run| run.queue, |id| view.queue(id));
            hide(report, values)
        }
        UsageKey::Task => {
            let ids = part.tasks().iter().map(|task| report.text(&task.id)).collect();
            hide(report, ids)
        }
        UsageKey::Label(key) => {
            let of_sets: Vec<Text> = part.tags().map(|tags| report.text(label(tags, key))).collect();
            let values = runs.iter().map(|run| of_sets.get(run.tags as usize).copied().unwrap_or(0));
            hide(report, values.collect())
        }
        UsageKey::Side => Column::Side(["guaranteed", "borrowed"].map(|word| report.text(word))),
        UsageKey::Node => {
            let without = of_runs(part, report, |run| run.node, str::to_owned);
            Column::Gpu { of: of_gpus(report, |gpu| gpu.node), without }
        }
        UsageKey::Pool => Column::Gpu { of: of_gpus(report, |gpu| gpu.pools), without: Vec::new() },
        UsageKey::Gpu => Column::Gpu { of: of_gpus(report, |gpu| gpu.gpu), without: Vec::new() },
        UsageKey::Model => Column::Gpu { of: of_gpus(report, |gpu| gpu.model), without: Vec::new() },
        UsageKey::Day | UsageKey::Month => {
            Column::Same(report.text(&day_or_month(key, period).unwrap_or_default()))
        }
    }
}

fn usage_line(part: TimeKind, keys: Vec<String>, mut line: Line, is_priced: bool) -> UsageLine {
    let mut wait = |percent| percentile(&mut line.waits_us, percent).map(|us| us as f64 / 1e6);
    let (wait_median_s, wait_p95_s) = (wait(50), wait(95));
    UsageLine {
        kind: match part {
            TimeKind::Allocated => UsageKind::Allocated,
            TimeKind::Free => UsageKind::Free,
            TimeKind::Faulty => UsageKind::Faulty,
            TimeKind::Away => UsageKind::Away,
        },
        keys,
        runs: line.runs,
        gpu_seconds: seconds(line.gpu),
        guaranteed_gpu_seconds: seconds(line.guaranteed),
        borrowed_gpu_seconds: match part {
            TimeKind::Allocated => seconds(line.gpu - line.guaranteed),
            _ => 0.0,
        },
        lent_gpu_seconds: None,
        memory_gib_seconds: line.memory_byte_us as f64 / GIB / 1e6,
        wait_median_s,
        wait_p95_s,
        given_up: line.given_up,
        lost_gpu_seconds: seconds(line.lost),
        memory_peak: line.mean_peak_ppm().map(|ppm| ppm as f64 / 1e6),
        cost: line.cost_micro().filter(|_| is_priced).map(|micro| micro as f64 / 1e6),
        name: line.name,
    }
}

fn gpu_account(gpu: String, account: &GpuSums) -> GpuAccount {
    let [free, faulty, away] = account.rest.map(seconds);
    GpuAccount {
        gpu,
        node: account.node.clone(),
        recorded_seconds: seconds(1000 * MilliUs::from(account.recorded_us)),
        allocated_seconds: seconds(account.allocated),
        free_seconds: free,
        faulty_seconds: faulty,
        away_seconds: away,
        unrecorded_seconds: seconds(account.unrecorded),
        late_seconds: seconds(account.late),
        closes: account.closes(),
    }
}

fn keep_most_unused(lines: &mut Vec<UsageLine>, count: usize) {
    lines.retain(|line| line.kind == UsageKind::Allocated && line.unused_gpu_seconds() > 0.0);
    lines.sort_by(|a, b| b.unused_gpu_seconds().total_cmp(&a.unused_gpu_seconds()));
    lines.truncate(count);
}

/// Writes what projects lent into their lines; a project that had nothing itself has a line of its own.
fn add_lent(lines: &mut Vec<UsageLine>, left: &mut BTreeMap<Vec<String>, MilliUs>) {
    for line in lines.iter_mut().filter(|line| line.kind == UsageKind::Allocated) {
        line.lent_gpu_seconds = Some(seconds(left.remove(&line.keys).unwrap_or(0)));
    }
    let new = |(keys, lent): (&Vec<String>, &MilliUs)| UsageLine {
        keys: keys.clone(),
        lent_gpu_seconds: Some(seconds(*lent)),
        ..UsageLine::default()
    };
    lines.extend(left.iter().map(new));
    lines.sort_by(|a, b| (a.kind, &a.keys).cmp(&(b.kind, &b.keys)));
}

/// The time of the request that has passed.
pub(crate) fn period(from: &str, to: &str, now_us: i64) -> Result<Period, ApiError> {
    let time = |name: &str, text: &str| {
        from_rfc3339(text).ok_or_else(|| {
            ApiError::invalid(format!("{name} is \"{text}\"; it is a time like 2026-11-01T00:00:00Z"))
        })
    };
    let (from_us, to_us) = (time("from", from)?, time("to", to)?);
    if from_us >= to_us {
        let text = format!("from is {from} and to is {to}; to is later than from");
        return Err(ApiError::invalid(text));
    }
    Ok(Period { from_us, to_us: to_us.min(now_us).max(from_us) })
}

pub(super) fn prices(sheet: &PriceSheet) -> Result<Prices, ApiError> {
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

#[cfg(test)]
mod tests;
