//! Where tasks, queues, projects, workers, nodes and what they report are kept.
//!
//! One SQL text in the subset that SQLite and PostgreSQL share; SQLite is what runs today. All writes go one after the
//! other, each in one transaction, so a task is in exactly one state at any instant and after any crash. The store
//! knows no clock and makes no ids: both are arguments.

mod charts;
mod data;
mod error;
mod evictions;
mod flow;
mod happenings;
mod models;
mod nodes;
mod output;
mod projects;
mod queues;
mod quotas;
mod row;
mod samples;
mod tasks;
mod usage;
mod workers;

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Sqlite, Transaction};
use tokio::sync::{Mutex, MutexGuard};

pub use data::{
    Change, ChartRow, Claim, Evicted, Fleet, Happening, HeldSince, HeldSum, LatestScalar, LogLine, ModelRow,
    NodeRow, ProjectRow, ProjectUse, QueueRow, QueueSample, ReportRow, Scalar, TaskFilter, TaskIndex,
    TaskRow, Terms, Victim, WaitingRow, WorkerReport, WorkerRow, WorkerSample,
};
pub use error::StoreError;
pub use flow::may_follow;
pub use tasks::{NewTask, TaskEdit};

/// The database.
#[derive(Debug)]
pub struct Store {
    state: SqlitePool,
    bulk: SqlitePool,
    readers: SqlitePool,
    /// SQLite has one writer at a time. Waiting here is fair; waiting in SQLite is polling.
    turn: Mutex<()>,
    /// Last given id of something that is kept in order of arrival.
    last_id: AtomicI64,
}

/// One write: a transaction and the right to make it.
struct Write<'a> {
    tx: Transaction<'static, Sqlite>,
    _turn: MutexGuard<'a, ()>,
}

impl Write<'_> {
    async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

const READERS: u32 = 4;

impl Store {
    /// Opens the database file, makes it if it does not exist, and brings its tables up to date.
    ///
    /// # Errors
    /// If the file can't be opened or its tables are of a newer version.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(10));
        // State is on disk when the call returns. Logs, scalars and heartbeats survive a crash of the server, but may
        // lose their last second when the machine loses power: they come again or are only looked at.
        let full = options.clone().synchronous(SqliteSynchronous::Full);
        let normal = options.clone().synchronous(SqliteSynchronous::Normal);
        let state = SqlitePoolOptions::new().max_connections(1).connect_with(full).await?;
        sqlx::migrate!().run(&state).await?;
        let bulk = SqlitePoolOptions::new().max_connections(1).connect_with(normal).await?;
        let reading = options.pragma("query_only", "true");
        let readers = SqlitePoolOptions::new().max_connections(READERS).connect_with(reading).await?;
        let last_id: i64 = sqlx::query_scalar(
            "SELECT COALESCE(MAX(id), 0) FROM (SELECT MAX(id) AS id FROM happenings UNION ALL SELECT MAX(id) FROM logs)",
        )
        .fetch_one(&readers)
        .await?;
        Ok(Self { state, bulk, readers, turn: Mutex::new(()), last_id: AtomicI64::new(last_id) })
    }

    /// Closes all connections; what was written is in the database file itself afterwards.
    pub async fn close(&self) {
        for pool in [&self.readers, &self.bulk, &self.state] {
            pool.close().await;
        }
    }

    async fn write(&self) -> Result<Write<'_>, StoreError> {
        self.begin(&self.state).await
    }

    /// For what may be lost with the machine's power, see [`Store::open`].
    async fn write_bulk(&self) -> Result<Write<'_>, StoreError> {
        self.begin(&self.bulk).await
    }

    async fn begin(&self, pool: &SqlitePool) -> Result<Write<'_>, StoreError> {
        let turn = self.turn.lock().await;
        // IMMEDIATE: a transaction that begins by reading must not find out at its first write that it is late.
        let tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        Ok(Write { tx, _turn: turn })
    }

    /// Reserves `count` ids in a row and gives the first. They grow with time, so they also are positions.
    fn next_ids(&self, now_us: i64, count: i64) -> i64 {
        let first = |last: i64| now_us.max(last + 1);
        let step = |last| Some(first(last) + count - 1);
        match self.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) {
            Ok(last) | Err(last) => first(last),
        }
    }
}
