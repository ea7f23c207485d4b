//! Sums that reports need of days that are over, in place of their runs. Any change of a day takes its row away
//! (triggers of the migration), so a row agrees with the records.

use std::collections::BTreeSet;

use crate::db::{Row, query, query_as, query_scalar};
use crate::{Store, StoreError};

/// A day in UTC, in microseconds.
pub const DAY_US: i64 = 86_400_000_000;

/// A day that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageDay {
    /// Days since 1970.
    pub day: i64,
    /// The GPU time that runs had.
    pub part: Vec<u8>,
    /// The tasks of these runs, if they were asked for.
    pub tasks: Option<Vec<u8>>,
}

/// Rows of days have this form: [`Store::keep_usage_day`] wrote them with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageForm(pub i64);

impl Store {
    /// The days from `first` up to but without `end` that are kept, in order.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn kept_usage_days(
        &self,
        form: UsageForm,
        first: i64,
        end: i64,
    ) -> Result<Vec<i64>, StoreError> {
        let days = "SELECT day FROM usage_days WHERE day >= $1 AND day < $2 AND form = $3 AND part IS NOT NULL ORDER BY day";
        Ok(query_scalar(days).bind(first).bind(end).bind(form.0).fetch_all(&self.readers).await?)
    }

    /// Those of these days that are kept still, in order.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn usage_days(
        &self,
        form: UsageForm,
        first: i64,
        end: i64,
        with_tasks: bool,
    ) -> Result<Vec<UsageDay>, StoreError> {
        let tasks = if with_tasks { ", tasks" } else { "" };
        let sql = format!(
            "SELECT day, part{tasks} FROM usage_days WHERE day >= $1 AND day < $2 AND form = $3 AND part IS NOT NULL ORDER BY day"
        );
        let read = |row: &Row| {
            let tasks = if with_tasks { row.try_get("tasks")? } else { None };
            Ok(UsageDay { day: row.try_get("day")?, part: row.try_get("part")?, tasks })
        };
        let rows = query(sql).bind(first).bind(end).bind(form.0).fetch_all(&self.readers).await?;
        rows.iter().map(read).collect()
    }

    /// Marks the days from `first` up to but without `end` that are not marked yet, so that changes of their records are seen from now on.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn mark_usage_days(
        &self,
        form: UsageForm,
        first: i64,
        end: i64,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let known = query_scalar("SELECT day FROM usage_days WHERE day >= $1 AND day < $2 AND form >= $3");
        let known = known.bind(first).bind(end).bind(form.0).fetch_all(&self.readers).await?;
        let known: BTreeSet<i64> = known.into_iter().collect();
        let new: Vec<i64> = (first..end).filter(|day| !known.contains(day)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut write = self.write_bulk().await?;
        let mark = "INSERT INTO usage_days (day, marked_us, form) VALUES ($1, $2, $3) \
             ON CONFLICT (day) DO UPDATE SET marked_us = $2, form = $3, part = NULL, tasks = NULL WHERE usage_days.form < $3";
        for day in new {
            query(mark).bind(day).bind(now_us).bind(form.0).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// The oldest days that were marked before a time and are not kept yet, each with the time of its mark.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn marked_usage_days(
        &self,
        form: UsageForm,
        before_us: i64,
        most: i64,
    ) -> Result<Vec<(i64, i64)>, StoreError> {
        let marked = "SELECT day, marked_us FROM usage_days WHERE part IS NULL AND form = $1 AND marked_us < $2 ORDER BY day LIMIT $3";
        let marked = query_as(marked).bind(form.0).bind(before_us).bind(most);
        Ok(marked.fetch_all(&self.readers).await?)
    }

    /// Keeps a day, unless its records have changed since it was marked at `marked_us`. Returns whether it is kept.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn keep_usage_day(
        &self,
        form: UsageForm,
        day: UsageDay,
        marked_us: i64,
    ) -> Result<bool, StoreError> {
        let mut write = self.write_bulk().await?;
        let keep =
            "UPDATE usage_days SET part = $4, tasks = $5 WHERE day = $1 AND marked_us = $2 AND form = $3";
        let keep = query(keep).bind(day.day).bind(marked_us).bind(form.0);
        let kept = keep.bind(day.part).bind(day.tasks.unwrap_or_default()).execute(&mut write.tx).await?;
        write.commit().await?;
        Ok(kept > 0)
    }

    /// The beginning of the first record of a GPU or a run; `None`: there is none.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn first_usage(&self) -> Result<Option<i64>, StoreError> {
        let first = "SELECT MIN(from_us) FROM (SELECT MIN(from_us) AS from_us FROM gpu_times \
             UNION ALL SELECT MIN(COALESCE(taken_us, started_us)) FROM runs) AS firsts";
        Ok(query_scalar(first).fetch_one(&self.readers).await?)
    }
}
