//! `get_usages` of ClearML's Usage Aggregator: the GPU time of runs and its cost by day and model of the GPU, in the form in which ClearML
//! Enterprise gives it to programs that bill.

use std::collections::BTreeMap;

use cantle_clearml::metering::{
    GetUsages, MeteredCategory, MeteredLabel, MeteredPrice, MeteredTenant, MeteredUsage, MeteredValues,
};
use cantle_clearml::usage::{GetUsage, Usage, UsageKey, UsageKind};
use cantle_store::DAY_US;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::usage;
use crate::app::{COMPANY, Call};
use crate::error::ApiError;
use crate::routes::Routes;

/// The only category.
const COMPUTE: &str = "compute";
/// The currency of costs that are all 0, as ClearML's default is.
const NO_CURRENCY: &str = "USD";
const HOUR_S: f64 = 3600.0;
/// Ten years.
const MOST_DAYS: usize = 3660;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_usages);
}

async fn get_usages(call: Call, request: GetUsages) -> Result<MeteredUsage, ApiError> {
    if let Some(other) = request.tenant.as_deref().filter(|tenant| *tenant != COMPANY) {
        return Err(ApiError::invalid(format!(
            "there is no tenant \"{other}\"; this server has \"{COMPANY}\""
        )));
    }
    if let Some(other) = request.categories.iter().find(|category| *category != COMPUTE) {
        let text = format!("there is no category \"{other}\"; this server meters \"{COMPUTE}\"");
        return Err(ApiError::invalid(text));
    }
    let days = days(&request.from_date, &request.to_date)?;
    let moment = |day: Date| day.to_zoned(TimeZone::UTC).map(|day| day.timestamp().to_string());
    let (Some(from), Some(to)) = (days.first(), days.last().and_then(|day| day.tomorrow().ok())) else {
        return Err(ApiError::invalid("to_date has no next day"));
    };
    let late = |error: jiff::Error| ApiError::invalid(error.to_string());
    let usage = GetUsage {
        from: moment(*from).map_err(late)?,
        to: moment(to).map_err(late)?,
        by: vec![UsageKey::Day, UsageKey::Model],
        ..GetUsage::default()
    };
    let usage = usage::get_usage(call, usage).await?;
    Ok(MeteredUsage { tenants: vec![tenant(&usage, &days, request.include_labels)?] })
}

/// The days between two texts, both of them included.
fn days(from: &str, to: &str) -> Result<Vec<Date>, ApiError> {
    let day = |name: &str, text: &str| {
        text.parse::<Date>().map_err(|error| {
            let text = format!("{name} is \"{text}\"; it is a day like 2026-11-01");
            ApiError::invalid(text).caused_by(error)
        })
    };
    let (first, last) = (day("from_date", from)?, day("to_date", to)?);
    if last < first {
        let text = format!("from_date is {from} and to_date is {to}; to_date is the same day or a later one");
        return Err(ApiError::invalid(text));
    }
    let days: Vec<Date> =
        first.series(jiff::ToSpan::day(1)).take_while(|day| *day <= last).take(MOST_DAYS + 1).collect();
    if days.len() > MOST_DAYS {
        return Err(ApiError::invalid(format!("from {from} to {to} are more than {MOST_DAYS} days")));
    }
    Ok(days)
}

fn tenant(usage: &Usage, days: &[Date], include_labels: bool) -> Result<MeteredTenant, ApiError> {
    let dates: Vec<String> = days.iter().map(Date::to_string).collect();
    let mut all = MeteredValues::of_days(dates.len());
    let mut labels: BTreeMap<String, MeteredLabel> = BTreeMap::new();
    // Tasks without a GPU have no model.
    let of_gpus =
        usage.lines.iter().filter(|line| line.kind == UsageKind::Allocated && !line.keys[1].is_empty());
    for line in of_gpus {
        let (day, model) = (&line.keys[0], &line.keys[1]);
        let Some(at) = dates.iter().position(|date| date == day) else { continue };
        let cost = match (&usage.prices, line.cost) {
            (None, _) => 0.0,
            (Some(_), Some(cost)) => cost,
            (Some(_), None) => {
                let text = format!("the price sheet of the server has no price for {model} on all of {day}");
                return Err(ApiError::invalid(text));
            }
        };
        all.add(at, line.gpu_seconds, cost);
        let new = || MeteredLabel {
            display_name: model.clone(),
            values: MeteredValues::of_days(dates.len()),
            ..MeteredLabel::default()
        };
        labels.entry(model.clone()).or_insert_with(new).values.add(at, line.gpu_seconds, cost);
    }
    if let Some(sheet) = &usage.prices {
        let prices = usage::prices(sheet)?;
        let end_us = days.last().map_or(0, |day| last_moment_us(*day));
        for (model, label) in &mut labels {
            let price = |micro: u64| MeteredPrice { price: micro as f64 / 1e6, units: HOUR_S };
            label.pricing = prices.at(model, end_us).map(price);
        }
    }
    let category = MeteredCategory {
        kind: COMPUTE.to_owned(),
        display_name: COMPUTE.to_owned(),
        free: usage.prices.is_none(),
        count_strategy: "sum".to_owned(),
        unit_name: "sec".to_owned(),
        total_usage_type: "total".to_owned(),
        dates,
        values: all,
        labels: include_labels.then_some(labels),
    };
    Ok(MeteredTenant {
        currency: usage.prices.as_ref().map_or(NO_CURRENCY, |sheet| &sheet.currency).to_owned(),
        tenant: COMPANY.to_owned(),
        total_cost: category.values.total_cost,
        categories: BTreeMap::from([(COMPUTE.to_owned(), category)]),
    })
}

fn last_moment_us(day: Date) -> i64 {
    day.to_zoned(TimeZone::UTC).map_or(0, |day| day.timestamp().as_microsecond() + DAY_US - 1)
}

#[cfg(test)]
mod tests {
    use super::days;

    #[test]
    fn both_days_are_included() {
        let texts =
            |from, to| days(from, to).map(|days| days.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(texts("2026-02-27", "2026-03-01").unwrap(), ["2026-02-27", "2026-02-28", "2026-03-01"]);
        assert_eq!(texts("2026-11-01", "2026-11-01").unwrap(), ["2026-11-01"]);
    }

    #[test]
    fn wrong_days_are_named() {
        let why = |from, to| days(from, to).unwrap_err().message;
        for (from, to, expected) in [
            ("", "2026-11-01", "from_date is \"\"; it is a day like 2026-11-01"),
            ("2026-11-01", "1 Nov", "to_date is \"1 Nov\"; it is a day like 2026-11-01"),
            ("2026-11-02", "2026-11-01", "to_date is the same day or a later one"),
            ("1000-01-01", "2026-11-01", "more than 3660 days"),
        ] {
            assert!(why(from, to).contains(expected), "{}", why(from, to));
        }
    }
}
