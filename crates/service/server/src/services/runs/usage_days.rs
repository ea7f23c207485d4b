//! Days that are over, kept as what each run had of each GPU: a report of a year reads them in place of millions of runs. The leading server
//! makes them. Any later change of a day's records takes it away (`cantle_store`), and it is made again.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cantle_store::{DAY_US, Store, UsageDay, UsageForm};
use cantle_usage::{Period, UsagePart};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::accounts::Records;
use super::sides::Quotas;
use crate::error::ApiError;

/// How days are written.
pub(crate) const FORM: UsageForm = UsageForm(UsagePart::FORM);
/// Changes that had begun before a day was marked are in its records after that time, on PostgreSQL too.
const SETTLED_US: i64 = 60 * 1_000_000;
/// The most days that are marked in one round: about three years.
const MARKED_DAYS: i64 = 1000;
/// The most days whose runs are read at once.
const DAYS_AT_ONCE: i64 = 4;
/// For so long days are made in one round: those of a year in a few minutes.
const ROUND: Duration = Duration::from_secs(2);

/// The days from `first` up to but without `end` that are kept.
pub(crate) async fn kept(
    store: &Store,
    first: i64,
    end: i64,
    with_tasks: bool,
) -> Result<Vec<(Period, UsagePart)>, ApiError> {
    let days = store.usage_days(FORM, first, end, with_tasks).await?;
    let read = move || {
        let part = |day: &UsageDay| {
            Some((period(day.day), UsagePart::decode(&day.part, day.tasks.as_deref()).ok()?))
        };
        days.iter().filter_map(part).collect()
    };
    spawn_blocking(read)
        .await
        .map_err(|error| ApiError::new(500, 0, "the report could not be made").caused_by(error))
}

const fn period(day: i64) -> Period {
    Period { from_us: day * DAY_US, to_us: (day + 1) * DAY_US }
}

/// The beginning of the first record. It never changes once there is one, and finding it takes a look at all runs.
#[derive(Debug)]
pub(crate) struct FirstUsage(AtomicI64);

impl Default for FirstUsage {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MAX))
    }
}

impl FirstUsage {
    /// `None`: there is no record yet.
    pub(crate) async fn get(&self, store: &Store) -> Result<Option<i64>, ApiError> {
        let known = self.0.load(Ordering::Relaxed);
        if known < i64::MAX {
            return Ok(Some(known));
        }
        let found = store.first_usage().await?;
        if let Some(first_us) = found {
            self.0.store(first_us, Ordering::Relaxed);
        }
        Ok(found)
    }
}

/// Makes days that are over, the oldest first, for a part of a second.
pub(crate) async fn keep(store: &Store, first: &FirstUsage, now_us: i64) -> Result<(), ApiError> {
    let today = now_us.div_euclid(DAY_US);
    let Some(first_us) = first.get(store).await? else { return Ok(()) };
    let first = first_us.div_euclid(DAY_US).max(today - MARKED_DAYS);
    store.mark_usage_days(FORM, first, today, now_us).await?;
    let until = Instant::now() + ROUND;
    let mut marked =
        store.marked_usage_days(FORM, now_us - SETTLED_US, MARKED_DAYS).await?.into_iter().peekable();
    while let Some(first) = marked.next() {
        let mut days = vec![first];
        let end = first.0 + DAYS_AT_ONCE;
        while let Some(next) =
            marked.next_if(|(day, _)| *day < end && Some(day - 1) == days.last().map(|(last, _)| *last))
        {
            days.push(next);
        }
        keep_these(store, &days, now_us).await?;
        if Instant::now() > until {
            break;
        }
    }
    Ok(())
}

/// Makes these days, which follow each other, each with the time of its mark.
async fn keep_these(store: &Store, days: &[(i64, i64)], now_us: i64) -> Result<(), ApiError> {
    let periods: Vec<Period> = days.iter().map(|(day, _)| period(*day)).collect();
    let (Some(first), Some(last)) = (periods.first(), periods.last()) else { return Ok(()) };
    let whole = Period { from_us: first.from_us, to_us: last.to_us };
    let records = Records::read(store, whole, now_us).await?;
    let quotas = Quotas::read(store, whole).await?;
    let made = spawn_blocking(move || {
        let parts = records.parts_of(&periods, &quotas);
        parts.iter().map(UsagePart::encode).collect::<Result<Vec<_>, _>>()
    });
    let failed = |error: &dyn std::fmt::Display| {
        ApiError::new(500, 0, format!("the usage of a day could not be kept: {error}"))
    };
    let made = made.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
    for ((day, marked_us), (part, tasks)) in days.iter().copied().zip(made) {
        store.keep_usage_day(FORM, UsageDay { day, part, tasks: Some(tasks) }, marked_us).await?;
    }
    Ok(())
}
