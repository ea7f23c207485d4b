//! `cantle.get_usage`: the accounts of GPUs, from the records of runs and of the GPUs' states.

use std::collections::BTreeMap;

use cantle_clearml::usage::{GetUsage, PriceSheet, Usage, UsageKey, UsageKind, UsageLine};
use cantle_usage::{Division, Hold, MilliUs, Period, Price, Prices, Report, divide};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::accounts::{Place, Records, seconds};
use super::sides;
use crate::app::Call;
use crate::clock::{from_rfc3339, rfc3339};
use crate::error::ApiError;
use crate::routes::Routes;

pub(super) fn add(routes: &mut Routes) {
    routes.typed(get_usage);
}

async fn get_usage(call: Call, request: GetUsage) -> Result<Usage, ApiError> {
    let period = period(&request.from, &request.to, call.now_us)?;
    let prices = request.prices.as_ref().map(prices).transpose()?;
    let records = Records::read(&call, period).await?;
    let by = &request.by;
    let days = days(by, period);
    let lent_parts = period.cut(days.iter().copied());
    let quotas = sides::Quotas::read(&call, period).await?;
    let sides = quotas.sides(&records, &lent_parts);
    let split = by.contains(&UsageKey::Side);
    let mut report = Report::default();
    for (index, run) in records.runs.iter().enumerate().filter(|(_, run)| run.all_slices().next().is_none()) {
        let at = Place { node: run.node.as_deref().unwrap_or_default(), ..Place::default() };
        report.add_run(index, records.key(by, (Some(index), None), at, records.held(run).from_us));
    }
    let mut gpus = Vec::new();
    for gpu in records.gpus() {
        let (times, mut holds) = (records.times(gpu), records.holds(gpu, &sides));
        holds.sort_by_key(|hold| hold.period.from_us);
        let (mut coming, mut inside) = (holds.into_iter().peekable(), Vec::<Hold>::new());
        let mut whole = Division::default();
        let edges = days.iter().copied().chain(prices.iter().flat_map(Prices::edges_us));
        for part in period.cut(edges.chain(records.moves_us(gpu))) {
            // Of the many runs of a long period, few lie in each part.
            inside.retain(|hold| hold.period.to_us > part.from_us);
            while let Some(hold) = coming.next_if(|hold| hold.period.from_us < part.to_us) {
                inside.push(hold);
            }
            let place = records.place(gpu, part);
            let price = prices.as_ref().and_then(|prices| prices.at(place.model, part.from_us));
            let division = divide(part, &times, &inside);
            whole.join(&division);
            report.add(
                &division,
                price,
                |run| records.facts(run),
                |run| records.memory_per_milli(run, gpu),
                |run, side| records.key(by, (run, side), place, part.from_us),
                split,
            );
        }
        gpus.push(records.account(gpu, period, &whole));
    }
    let is_priced = prices.is_some();
    let line = |((part, keys), line)| records.line(by, part, keys, &line, is_priced);
    let mut lines: Vec<UsageLine> = report.lines.into_iter().map(line).collect();
    add_lent(&mut lines, by, &quotas.lent(&records, &sides, &lent_parts, by));
    Ok(Usage { from: rfc3339(period.from_us), to: rfc3339(period.to_us), lines, gpus })
}

/// Writes what projects lent into their lines; a project that had nothing itself has a line of its own.
fn add_lent(lines: &mut Vec<UsageLine>, by: &[UsageKey], lent: &BTreeMap<Vec<String>, MilliUs>) {
    if !sides::has_lent(by) {
        return;
    }
    let mut left = lent.clone();
    for line in lines.iter_mut().filter(|line| line.kind == UsageKind::Allocated) {
        line.lent_gpu_seconds = Some(seconds(left.remove(&line.keys).unwrap_or(0)));
    }
    let new = |(keys, lent): (Vec<String>, MilliUs)| UsageLine {
        keys,
        lent_gpu_seconds: Some(seconds(lent)),
        ..UsageLine::default()
    };
    lines.extend(left.into_iter().map(new));
    lines.sort_by(|a, b| (a.kind, &a.keys).cmp(&(b.kind, &b.keys)));
}

/// The time of the request that has passed.
pub(super) fn period(from: &str, to: &str, now_us: i64) -> Result<Period, ApiError> {
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
