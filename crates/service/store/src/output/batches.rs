//! The output and the measured values of tasks. Batches are written with few statements; reading is paged.

use std::collections::{BTreeMap, BTreeSet};

use crate::data::{LatestScalar, LogLine, ReportRow, Scalar};
use crate::db::{Kind, Sql, Tx, query, query_as, query_scalar};
use crate::{Store, StoreError, row};

/// Rows per statement: SQLite takes 32766 values in one, and a scalar has six.
const ROWS: usize = 1000;
/// Rows per transaction: other writers wait no longer than this takes (some 30 ms).
const ROWS_PER_WRITE: usize = 5000;

/// A part of what a run prints, between two bytes of its output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputPiece {
    /// The task.
    pub task: String,
    /// The lease of the run.
    pub lease: String,
    /// Where it begins in the output of the run.
    pub begin_bytes: u64,
    /// Where it ends.
    pub end_bytes: u64,
    /// Its text.
    pub lines: Vec<LogLine>,
}

impl Store {
    /// Keeps pieces of output, in the order given. The store gives their ids.
    ///
    /// # Errors
    /// Only if the database fails; what was written before stays.
    pub async fn add_logs(&self, lines: &[LogLine], now_us: i64) -> Result<(), StoreError> {
        for chunk in lines.chunks(ROWS) {
            let mut write = self.write_bulk().await?;
            self.insert_logs(&mut write.tx, chunk, now_us).await?;
            write.commit().await?;
        }
        Ok(())
    }

    /// Keeps a piece of a run's output and where it ends, in one step; a piece that begins before the end of what is kept is not kept.
    /// Returns that end then. A run that is not known keeps everything.
    ///
    /// # Errors
    /// Only if the database fails; then nothing of the piece is kept.
    pub async fn add_output(&self, piece: &OutputPiece, now_us: i64) -> Result<Option<u64>, StoreError> {
        let OutputPiece { task, lease, begin_bytes, end_bytes, lines } = piece;
        let mut write = self.write_bulk().await?;
        let kept = query_scalar("SELECT MAX(output_bytes) FROM runs WHERE task = $1 AND lease = $2");
        let kept: Option<i64> = kept.bind(task).bind(lease).fetch_one(&mut write.tx).await?;
        let kept_bytes = kept.map_or(0, i64::unsigned_abs);
        if *begin_bytes < kept_bytes {
            return Ok(Some(kept_bytes));
        }
        for chunk in lines.chunks(ROWS) {
            self.insert_logs(&mut write.tx, chunk, now_us).await?;
        }
        query("UPDATE runs SET output_bytes = $3 WHERE task = $1 AND lease = $2")
            .bind(task)
            .bind(lease)
            .bind(i64::try_from(*end_bytes).unwrap_or(i64::MAX))
            .execute(&mut write.tx)
            .await?;
        write.commit().await?;
        Ok(None)
    }

    async fn insert_logs(&self, tx: &mut Tx, chunk: &[LogLine], now_us: i64) -> Result<(), StoreError> {
        let mut sql = Sql::new(match self.kind {
            Kind::Sqlite => "INSERT INTO logs (task, timestamp_ms, worker, level, msg, id) ",
            Kind::Postgres => "INSERT INTO logs (task, timestamp_ms, worker, level, msg, arrived_us) ",
        });
        let (first, step) = match self.kind {
            Kind::Sqlite => (self.next_ids(now_us, i64::try_from(chunk.len()).unwrap_or(i64::MAX)), 1),
            Kind::Postgres => (now_us, 0),
        };
        sql.push_values((0..).zip(chunk), |row, (n, line)| {
            row.push_bind(&line.task).push_bind(line.timestamp_ms);
            row.push_bind(&line.worker).push_bind(&line.level).push_bind(&line.msg);
            row.push_bind(first + n * step);
        });
        sql.build().execute(tx).await?;
        Ok(())
    }

    /// The pieces that exist already, as task, time and text.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn known_logs(&self, lines: &[LogLine]) -> Result<BTreeSet<(String, i64, String)>, StoreError> {
        let mut times: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for line in lines {
            let (from, to) = times.entry(&line.task).or_insert((line.timestamp_ms, line.timestamp_ms));
            (*from, *to) = (line.timestamp_ms.min(*from), line.timestamp_ms.max(*to));
        }
        let mut known = BTreeSet::new();
        for (task, (from, to)) in times {
            let rows = query_as(
                "SELECT task, timestamp_ms, msg FROM logs WHERE task = $1 AND timestamp_ms BETWEEN $2 AND $3",
            );
            let rows: Vec<(String, i64, String)> =
                rows.bind(task).bind(from).bind(to).fetch_all(&self.readers).await?;
            known.extend(rows);
        }
        Ok(known)
    }

    /// Pieces of a task's output after a position, in order of arrival.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn logs_after(&self, task: &str, after: i64, limit: i64) -> Result<Vec<LogLine>, StoreError> {
        let mut sql = Sql::new(select!(logs, "WHERE task = "));
        sql.push_bind(task).push(" AND id > ").push_bind(after).push(self.kind.settled("arrived_us"));
        sql.push(" ORDER BY id LIMIT ").push_bind(limit);
        sql.build().fetch_all(&self.readers).await?.iter().map(row::log_line).collect()
    }

    /// Pieces of a task's output by time: from `from_ms` on (`earlier` = false), or up to it, newest first.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn logs_by_time(
        &self,
        task: &str,
        from_ms: Option<i64>,
        earlier: bool,
        limit: i64,
    ) -> Result<Vec<LogLine>, StoreError> {
        let sql = if earlier {
            select!(
                logs,
                "WHERE task = $1 AND timestamp_ms < $2 ORDER BY timestamp_ms DESC, id DESC LIMIT $3"
            )
        } else {
            select!(logs, "WHERE task = $1 AND timestamp_ms > $2 ORDER BY timestamp_ms, id LIMIT $3")
        };
        let from_ms = from_ms.unwrap_or(if earlier { i64::MAX } else { i64::MIN });
        let rows = query(sql).bind(task).bind(from_ms).bind(limit).fetch_all(&self.readers).await?;
        rows.iter().map(row::log_line).collect()
    }

    /// How many pieces of output a task has.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn count_logs(&self, task: &str) -> Result<i64, StoreError> {
        let count = query_scalar("SELECT COUNT(*) FROM logs WHERE task = $1").bind(task);
        Ok(count.fetch_one(&self.readers).await?)
    }

    /// Keeps measured values. A value for the same point replaces the old one.
    ///
    /// # Errors
    /// Only if the database fails; what was written before stays.
    pub async fn add_scalars(&self, scalars: &[Scalar]) -> Result<(), StoreError> {
        for part in scalars.chunks(ROWS_PER_WRITE) {
            let mut write = self.write_bulk().await?;
            for chunk in part.chunks(ROWS) {
                insert_scalars(&mut write.tx, chunk).await?;
            }
            note_latest(&mut write.tx, part).await?;
            write.commit().await?;
        }
        Ok(())
    }

    /// All values of a task, by metric, variant and iteration.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn scalars(&self, task: &str) -> Result<Vec<Scalar>, StoreError> {
        let rows = query(select!(scalars, "WHERE task = $1 ORDER BY metric, variant, iter")).bind(task);
        rows.fetch_all(&self.readers).await?.iter().map(row::scalar).collect()
    }

    /// Values of a task in the same order, page by page: after this metric, variant and iteration.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn scalar_page(
        &self,
        task: &str,
        after: Option<(String, String, i64)>,
        limit: i64,
    ) -> Result<Vec<Scalar>, StoreError> {
        let (metric, variant, iter) = after.unwrap_or((String::new(), String::new(), i64::MIN));
        let rows = query(select!(
            scalars,
            "WHERE task = $1 AND (metric, variant, iter) > ($2, $3, $4) \
             ORDER BY metric, variant, iter LIMIT $5"
        ));
        let rows = rows.bind(task).bind(metric).bind(variant).bind(iter).bind(limit);
        rows.fetch_all(&self.readers).await?.iter().map(row::scalar).collect()
    }

    /// How many values a task has.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn count_scalars(&self, task: &str) -> Result<i64, StoreError> {
        let count = query_scalar("SELECT COUNT(*) FROM scalars WHERE task = $1").bind(task);
        Ok(count.fetch_one(&self.readers).await?)
    }

    /// Newest, least and greatest value of each line of a task.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn latest_scalars(&self, task: &str) -> Result<Vec<LatestScalar>, StoreError> {
        let rows = query(select!(latest_scalars, "WHERE task = $1 ORDER BY metric, variant")).bind(task);
        rows.fetch_all(&self.readers).await?.iter().map(row::latest_scalar).collect()
    }

    /// Names of all lines that any task has: metric and variant.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn scalar_lines(&self) -> Result<Vec<(String, String)>, StoreError> {
        // From one to the next by the index: the tasks of each, which may be many, are not read. SQLite reads them for a comparison of pairs.
        let rows = query_as(
            "WITH RECURSIVE metrics (metric) AS (SELECT (SELECT MIN(metric) FROM latest_scalars) UNION ALL SELECT \
             (SELECT MIN(l.metric) FROM latest_scalars l WHERE l.metric > metrics.metric) \
             FROM metrics WHERE metrics.metric IS NOT NULL), \
             lines (metric, variant) AS (SELECT metrics.metric, \
             (SELECT MIN(l.variant) FROM latest_scalars l WHERE l.metric = metrics.metric) \
             FROM metrics WHERE metrics.metric IS NOT NULL UNION ALL SELECT lines.metric, \
             (SELECT MIN(l.variant) FROM latest_scalars l WHERE l.metric = lines.metric AND l.variant > lines.variant) \
             FROM lines WHERE lines.variant IS NOT NULL) \
             SELECT metric, variant FROM lines WHERE variant IS NOT NULL ORDER BY metric, variant",
        );
        Ok(rows.fetch_all(&self.readers).await?)
    }

    /// Keeps plots and the like. A new one replaces the old one of the same metric, variant and iteration.
    ///
    /// # Errors
    /// Only if the database fails; what was written before stays.
    pub async fn add_reports(&self, reports: &[ReportRow]) -> Result<(), StoreError> {
        for chunk in reports.chunks(ROWS) {
            let mut write = self.write_bulk().await?;
            for report in chunk {
                insert_report(&mut write.tx, report).await?;
            }
            write.commit().await?;
        }
        Ok(())
    }

    /// Plots and the like of a task, of one kind, by metric, variant and iteration.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn reports(&self, task: &str, kind: &str) -> Result<Vec<ReportRow>, StoreError> {
        let rows = query(select!(reports, "WHERE task = $1 AND kind = $2 ORDER BY metric, variant, iter"));
        let rows = rows.bind(task).bind(kind).fetch_all(&self.readers).await?;
        rows.iter().map(row::report).collect()
    }
}

async fn insert_scalars(tx: &mut Tx, scalars: &[Scalar]) -> Result<(), StoreError> {
    // One statement must not write the same row twice (PostgreSQL's rule): the last value of a batch counts.
    let key = |s: &Scalar| (s.task.clone(), s.metric.clone(), s.variant.clone(), s.iter);
    let unique: BTreeMap<_, _> = scalars.iter().map(|scalar| (key(scalar), scalar)).collect();
    let mut sql = Sql::new("INSERT INTO scalars (task, metric, variant, iter, timestamp_ms, value) ");
    sql.push_values(unique.into_values(), |row, scalar| {
        row.push_bind(&scalar.task).push_bind(&scalar.metric).push_bind(&scalar.variant);
        row.push_bind(scalar.iter).push_bind(scalar.timestamp_ms).push_bind(scalar.value);
    });
    sql.push(" ON CONFLICT (task, metric, variant, iter) DO UPDATE SET ");
    sql.push("timestamp_ms = excluded.timestamp_ms, value = excluded.value");
    sql.build().execute(tx).await?;
    Ok(())
}

/// Keeps what clients read most often: the last iteration of each task, and the summary of each line.
async fn note_latest(tx: &mut Tx, scalars: &[Scalar]) -> Result<(), StoreError> {
    let mut iterations: BTreeMap<&str, i64> = BTreeMap::new();
    let mut lines: BTreeMap<(&str, &str, &str), LatestScalar> = BTreeMap::new();
    for scalar in scalars {
        let iteration = iterations.entry(&scalar.task).or_insert(0);
        *iteration = scalar.iter.max(*iteration);
        let line = lines.entry((&scalar.task, &scalar.metric, &scalar.variant)).or_insert_with(|| {
            LatestScalar { last: scalar.clone(), least: scalar.value, greatest: scalar.value }
        });
        if scalar.iter >= line.last.iter {
            line.last = scalar.clone();
        }
        line.least = scalar.value.min(line.least);
        line.greatest = scalar.value.max(line.greatest);
    }
    for (task, iteration) in iterations {
        query("UPDATE tasks SET last_iteration = $2 WHERE id = $1 AND last_iteration < $2")
            .bind(task)
            .bind(iteration)
            .execute(&mut *tx)
            .await?;
    }
    for line in lines.into_values() {
        query(
            "INSERT INTO latest_scalars (task, metric, variant, iter, timestamp_ms, value, least, greatest) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (task, metric, variant) DO UPDATE SET \
             value = CASE WHEN $4 >= latest_scalars.iter THEN $6 ELSE latest_scalars.value END, \
             timestamp_ms = CASE WHEN $4 >= latest_scalars.iter THEN $5 ELSE latest_scalars.timestamp_ms END, \
             iter = CASE WHEN $4 >= latest_scalars.iter THEN $4 ELSE latest_scalars.iter END, \
             least = CASE WHEN $7 < latest_scalars.least THEN $7 ELSE latest_scalars.least END, \
             greatest = CASE WHEN $8 > latest_scalars.greatest THEN $8 ELSE latest_scalars.greatest END",
        )
        .bind(line.last.task)
        .bind(line.last.metric)
        .bind(line.last.variant)
        .bind(line.last.iter)
        .bind(line.last.timestamp_ms)
        .bind(line.last.value)
        .bind(line.least)
        .bind(line.greatest)
        .execute(&mut *tx)
        .await?;
    }
    Ok(())
}

async fn insert_report(tx: &mut Tx, report: &ReportRow) -> Result<(), StoreError> {
    query(
        "INSERT INTO reports (task, kind, metric, variant, iter, timestamp_ms, doc) \
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (task, kind, metric, variant, iter) \
         DO UPDATE SET timestamp_ms = excluded.timestamp_ms, doc = excluded.doc",
    )
    .bind(&report.task)
    .bind(&report.kind)
    .bind(&report.metric)
    .bind(&report.variant)
    .bind(report.iter)
    .bind(report.timestamp_ms)
    .bind(row::to_json(&report.doc)?)
    .execute(tx)
    .await?;
    Ok(())
}
