//! Workers: ClearML's agents, and the tasks that report for themselves.

use std::collections::BTreeMap;

use super::samples::sample_worker;
use crate::data::{WorkerReport, WorkerRow};
use crate::db::{Sql, query, query_as};
use crate::{Store, StoreError, row};

/// Seconds without a report after which a worker counts as gone, unless it set its own limit.
const TIMEOUT_S: i64 = 600;

impl Store {
    /// Records a worker's registration or report; an unknown worker is added.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn report_worker(&self, report: &WorkerReport, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        let queues = report.queues.as_ref().map(row::to_json).transpose()?;
        let tags = report.tags.as_ref().map(row::to_json).transpose()?;
        query(
            "INSERT INTO workers (id, registered_us, last_seen_us, timeout_s, task, queue, queues, tags, ip, \
             machine_stats) \
             VALUES ($1, $2, $2, COALESCE($3, $9), $4, $5, COALESCE($6, '[]'), COALESCE($7, '[]'), $8, $10) \
             ON CONFLICT (id) DO UPDATE SET last_seen_us = $2, timeout_s = COALESCE($3, workers.timeout_s), \
             task = $4, queue = $5, queues = COALESCE($6, workers.queues), tags = COALESCE($7, workers.tags), \
             ip = $8, machine_stats = COALESCE($10, workers.machine_stats)",
        )
        .bind(&report.id)
        .bind(now_us)
        .bind(report.timeout_s)
        .bind(&report.task)
        .bind(&report.queue)
        .bind(queues)
        .bind(tags)
        .bind(&report.ip)
        .bind(TIMEOUT_S)
        .bind(&report.machine_stats)
        .execute(&mut write.tx)
        .await?;
        sample_worker(&mut write.tx, report, now_us).await?;
        write.commit().await
    }

    /// Forgets a worker. Returns whether it was known: agents unregister twice.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn unregister_worker(&self, id: &str) -> Result<bool, StoreError> {
        let mut write = self.write_bulk().await?;
        let done = query("DELETE FROM workers WHERE id = $1").bind(id).execute(&mut write.tx).await?;
        write.commit().await?;
        Ok(done > 0)
    }

    /// All workers that reported since then, by id.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn workers(&self, since_us: i64) -> Result<Vec<WorkerRow>, StoreError> {
        let rows = query(select!(workers, "WHERE last_seen_us >= $1 ORDER BY id")).bind(since_us);
        rows.fetch_all(&self.readers).await?.iter().map(row::worker).collect()
    }

    /// A worker's runtime properties.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn worker_properties(&self, worker: &str) -> Result<BTreeMap<String, String>, StoreError> {
        let rows = query_as("SELECT key, value FROM worker_properties WHERE worker = $1").bind(worker);
        let pairs: Vec<(String, String)> = rows.fetch_all(&self.readers).await?;
        Ok(pairs.into_iter().collect())
    }

    /// Sets some of a worker's runtime properties.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_worker_properties(
        &self,
        worker: &str,
        properties: &BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        if properties.is_empty() {
            return Ok(());
        }
        let mut write = self.write_bulk().await?;
        let mut sql = Sql::new("INSERT INTO worker_properties (worker, key, value) ");
        sql.push_values(properties, |row, (key, value)| {
            row.push_bind(worker).push_bind(key).push_bind(value);
        });
        sql.push(" ON CONFLICT (worker, key) DO UPDATE SET value = excluded.value");
        sql.build().execute(&mut write.tx).await?;
        write.commit().await
    }
}
