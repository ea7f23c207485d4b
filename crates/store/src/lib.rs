//! The database of tasks, queues, projects, workers, nodes and what they report.
//!
//! The SQL keeps to the subset that SQLite and PostgreSQL share; today it runs on SQLite. All writes go one after the
//! other, each in one transaction, so a task is in exactly one state at any instant and after any crash. The store
//! knows no clock and makes no ids: both are arguments.

#[macro_use]
mod columns;

mod audit;
pub mod backup;
mod charts;
mod data;
mod erase;
mod error;
mod events;
mod evictions;
mod flow;
mod listing;
mod migrations;
mod models;
mod nodes;
mod output;
mod owned;
mod projects;
mod queues;
mod quotas;
mod row;
mod samples;
mod scope;
mod tasks;
mod usage;
mod users;
mod values;
mod workers;

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use cantle_metrics::{Fallback, Fallbacks};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection as _, Sqlite, SqliteConnection, Transaction};
use tokio::sync::{Mutex, MutexGuard};

pub use audit::{AuditFilter, AuditRow};
pub use data::{
    Change, ChartRow, EventRow, Evicted, FleetRows, HeldSince, HeldSum, LatestScalar, LogLine, ModelRow,
    NodeRow, ProjectRow, ProjectUse, QueueRow, QueueSample, ReportRow, Scalar, TaskClaim, TaskIndex, TaskRow,
    Terms, VictimTask, WaitingRow, WorkerReport, WorkerRow, WorkerSample,
};
pub use error::{StorageFault, StoreError};
pub use flow::may_follow;
pub use listing::{Compare, OrderBy, TagRule, TaskFilter, TaskKey, TaskTime, TimeRule, Which};
pub use owned::Owned;
pub use scope::Scope;
pub use tasks::{NewTask, TaskEdit};
pub use users::{GrantRow, KeyRow, KeyUse, PeopleRows, UserRow};
pub use values::{ParentTask, TaskValue};

/// The database.
#[derive(Debug)]
pub struct Store {
    state: SqlitePool,
    bulk: SqlitePool,
    readers: SqlitePool,
    /// One writer at a time, as in SQLite itself. Waiting here is fair; waiting in SQLite is polling.
    write_lock: Mutex<()>,
    /// Last id given to a record that is kept in order of arrival.
    last_id: AtomicI64,
}

/// One write: a transaction and the write lock.
struct Write<'a> {
    tx: Transaction<'static, Sqlite>,
    _lock: MutexGuard<'a, ()>,
}

impl Write<'_> {
    async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }
}

const READERS: u32 = 4;

/// A pool of one connection that writes. When a disk is full or fails, SQLite takes the transaction back by itself, which
/// the connection does not notice: it would refuse every later one. Such a connection is replaced.
fn writer() -> SqlitePoolOptions {
    let is_usable = |connection: &mut SqliteConnection| !connection.is_in_transaction();
    SqlitePoolOptions::new().max_connections(1).before_acquire(move |connection, _| {
        let usable = is_usable(connection);
        Box::pin(async move { Ok(usable) })
    })
}

/// What this crate assumed because it could not read a record.
pub static FALLBACKS: Fallbacks = Fallbacks::new(&[Fallback::UnknownStatus]);

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
            .busy_timeout(Duration::from_secs(10))
            .with_regexp();
        // State is on disk when the call returns. Logs, scalars and heartbeats survive a crash of the server, but may
        // lose their last second when the machine loses power: they are sent again or only displayed.
        let full = options.clone().synchronous(SqliteSynchronous::Full);
        let normal = options.clone().synchronous(SqliteSynchronous::Normal);
        let state = writer().connect_with(full).await?;
        migrations::migrator().run(&state).await?;
        let bulk = writer().connect_with(normal).await?;
        let reading = options.pragma("query_only", "true");
        let readers = SqlitePoolOptions::new().max_connections(READERS).connect_with(reading).await?;
        let last_id: i64 = sqlx::query_scalar(
            "SELECT COALESCE(MAX(id), 0) FROM (SELECT MAX(id) AS id FROM happenings UNION ALL SELECT MAX(id) FROM logs)",
        )
        .fetch_one(&readers)
        .await?;
        Ok(Self { state, bulk, readers, write_lock: Mutex::new(()), last_id: AtomicI64::new(last_id) })
    }

    /// Closes all connections; what was written is in the database file itself afterwards.
    pub async fn close(&self) {
        for pool in [&self.readers, &self.bulk, &self.state] {
            pool.close().await;
        }
    }

    /// Writes something that is never read, to see whether anything can be written.
    ///
    /// # Errors
    /// [`StoreError::Storage`] as long as it can't.
    pub async fn probe(&self, now_us: i64) -> Result<(), StoreError> {
        const FILLER_BYTES: usize = 16 << 10;
        let mut write = self.write().await?;
        sqlx::query(
            "INSERT INTO probes (id, filler) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET filler = $1",
        )
        .bind(format!("{now_us:0FILLER_BYTES$}"))
        .execute(&mut *write.tx)
        .await?;
        write.commit().await
    }

    async fn write(&self) -> Result<Write<'_>, StoreError> {
        self.begin(&self.state).await
    }

    /// For records that may be lost with the machine's power, see [`Store::open`].
    async fn write_bulk(&self) -> Result<Write<'_>, StoreError> {
        self.begin(&self.bulk).await
    }

    async fn begin(&self, pool: &SqlitePool) -> Result<Write<'_>, StoreError> {
        let lock = self.write_lock.lock().await;
        // IMMEDIATE: a transaction that begins by reading must not fail at its first write because another one wrote first.
        let tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        Ok(Write { tx, _lock: lock })
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
