//! The history of workers and queues: one sample a minute, kept for a week.

use crate::data::{QueueSample, WorkerReport, WorkerSample};
use crate::db::{Sql, Tx, query};
use crate::tasks::record::any_of;
use crate::{Store, StoreError, row};

/// Distance between two samples of one worker or queue.
const EVERY_US: i64 = 60_000_000;
/// Samples older than this are deleted.
const KEPT_US: i64 = 7 * 24 * 3600 * 1_000_000;

const fn minute(time_us: i64) -> i64 {
    time_us - time_us.rem_euclid(EVERY_US)
}

impl Store {
    /// Records how many tasks wait in each queue, and for how long; deletes samples that are too old.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn sample_queues(&self, now_us: i64) -> Result<(), StoreError> {
        let queues = self.queues().await?;
        let mut write = self.write_bulk().await?;
        for queue in queues {
            let waiting = i64::try_from(queue.entries.len()).unwrap_or(i64::MAX);
            let wait_us = |(_, added_us): &(String, i64)| now_us.saturating_sub(*added_us).max(0);
            let total_wait_s: i64 = queue.entries.iter().map(|entry| wait_us(entry) / 1_000_000).sum();
            query(
                "INSERT INTO queue_samples (queue, time_us, waiting, total_wait_s) VALUES ($1, $2, $3, $4) \
                 ON CONFLICT (queue, time_us) DO UPDATE SET waiting = $3, total_wait_s = $4",
            )
            .bind(queue.id)
            .bind(minute(now_us))
            .bind(waiting)
            .bind(total_wait_s)
            .execute(&mut write.tx)
            .await?;
        }
        for sql in
            ["DELETE FROM queue_samples WHERE time_us < $1", "DELETE FROM worker_samples WHERE time_us < $1"]
        {
            query(sql).bind(now_us.saturating_sub(KEPT_US)).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// Samples of these queues (all, if none is named) from `from_us` until before `to_us`, oldest first.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn queue_samples(
        &self,
        queues: &[String],
        from_us: i64,
        to_us: i64,
    ) -> Result<Vec<QueueSample>, StoreError> {
        let mut sql = Sql::new(select!(queue_samples, "WHERE time_us >= "));
        sql.push_bind(from_us).push(" AND time_us < ").push_bind(to_us);
        any_of(&mut sql, "queue", queues);
        sql.push(" ORDER BY time_us, queue");
        sql.build().fetch_all(&self.readers).await?.iter().map(row::queue_sample).collect()
    }

    /// Samples of these workers (all, if none is named) from `from_us` until before `to_us`, oldest first, at most
    /// `limit`.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn worker_samples(
        &self,
        workers: &[String],
        from_us: i64,
        to_us: i64,
        limit: i64,
    ) -> Result<Vec<WorkerSample>, StoreError> {
        let mut sql = Sql::new(select!(worker_samples, "WHERE time_us >= "));
        sql.push_bind(from_us).push(" AND time_us < ").push_bind(to_us);
        any_of(&mut sql, "worker", workers);
        sql.push(" ORDER BY time_us, worker LIMIT ").push_bind(limit);
        sql.build().fetch_all(&self.readers).await?.iter().map(row::worker_sample).collect()
    }
}

/// A report is a sample: the last one of a minute counts, and the worker was busy if any of them had a task.
pub(crate) async fn sample_worker(tx: &mut Tx, report: &WorkerReport, now_us: i64) -> Result<(), StoreError> {
    query(
        "INSERT INTO worker_samples (worker, time_us, busy, machine_stats) \
         VALUES ($1, $2, $3, COALESCE($4, '{}')) ON CONFLICT (worker, time_us) DO UPDATE SET \
         busy = CASE WHEN $3 > worker_samples.busy THEN $3 ELSE worker_samples.busy END, \
         machine_stats = COALESCE($4, worker_samples.machine_stats)",
    )
    .bind(&report.id)
    .bind(minute(now_us))
    .bind(i64::from(report.task.is_some()))
    .bind(&report.machine_stats)
    .execute(tx)
    .await?;
    Ok(())
}
