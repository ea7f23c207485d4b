//! The database of tasks, queues, projects, workers, nodes and what they report.
//!
//! It runs on SQLite or PostgreSQL with one SQL text; `db` handles the differences. Each change is one transaction that
//! locks the task's row, so a task is in exactly one state at any instant and after any crash. On SQLite, all changes run
//! one after the other. The store reads no clock and makes no ids of tasks: both are arguments.

#[macro_use]
mod columns;

mod data;
mod db;
mod error;
pub(crate) mod fleet;
pub(crate) mod output;
pub(crate) mod people;
mod row;
mod runs;
pub(crate) mod tasks;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use cantle_metrics::{Fallback, Fallbacks};

use db::{Kind, Outlives, Pool, Tx, Writers, query, query_scalar};

pub use data::{
    Change, ChartRow, EventRow, Evicted, FleetRows, HeldSince, HeldSum, LatestScalar, LogLine, NodeRow,
    ProjectRow, ProjectUse, QueueRow, QueueSample, ReportRow, Scalar, Taken, TaskClaim, TaskIndex, TaskRow,
    Terms, VictimTask, WaitingRow, WorkerReport, WorkerRow, WorkerSample,
};
pub use db::backup;
pub use db::copy::copy;
pub use db::database::Database;
pub use db::status::{Broken, ConnectedServer, DatabaseStatus};
pub use error::{StorageFault, StoreError};
pub use output::batches::OutputPiece;
pub use output::former::former_output;
pub use output::models::ModelRow;
pub use people::audit::{AuditFilter, AuditRow};
pub use people::budgets::{BudgetMonth, BudgetRow};
pub use people::limits::HeldBack;
pub use people::notices::{NoticeRow, ReceiverRow, ReceiverState};
pub use people::quota_times::QuotaTime;
pub use people::secrets::{MOST_SECRETS, SecretRow};
pub use people::sessions::{SessionRow, SessionUse};
pub use people::users::{GrantRow, KeyRow, KeyUse, PeopleRows, UserRow};
pub use runs::direct::DirectRun;
pub use runs::gpu_times::GpuTimeRow;
pub use runs::lost::{FenceRow, LOST, Renewal, Renewed};
pub use runs::usage_days::{DAY_US, UsageDay, UsageForm};
pub use runs::{HeldFrom, RunRow};
pub use tasks::after::{AfterRow, Settled};
pub use tasks::arrays::{ArrayProgress, ArrayStep};
pub use tasks::batch::NamedRun;
pub use tasks::documents::DOCUMENT_BYTES;
pub use tasks::filter::{Compare, OrderBy, TagRule, TaskFilter, TaskKey, TaskTime, TimeRule, Which};
pub use tasks::flow::may_follow;
pub use tasks::owned::{LeaseHolder, Owned, WithParams};
pub use tasks::record::{NewTask, TaskEdit};
pub use tasks::scope::Scope;
pub use tasks::values::{ParentTask, TaskValue};
pub use tasks::wishes::{ChangedLimit, QueueTimes, Wishes};

/// The database.
#[derive(Debug)]
pub struct Store {
    kind: Kind,
    writers: Writers,
    readers: Pool,
    /// Last id given to a record that is kept in order of arrival, where the database gives none itself.
    last_id: AtomicI64,
    wakeups: fleet::wakeups::Wakeups,
    takers: Arc<runs::take::Takers>,
    documents: tasks::documents::Documents,
}

/// One write: a transaction.
struct Write {
    tx: Tx,
}

impl Write {
    async fn commit(self) -> Result<(), StoreError> {
        Ok(self.tx.commit().await?)
    }

    /// Commits, or takes back what was written if it was refused.
    async fn end<T>(self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match &done {
            Ok(_) => self.tx.commit().await?,
            Err(_) => self.tx.give_up().await?,
        }
        done
    }
}

/// Values that this crate assumed because it could not read a record.
pub static FALLBACKS: Fallbacks = Fallbacks::new(&[Fallback::UnknownStatus]);

impl Store {
    /// Opens the database file, makes it if it does not exist, and brings its tables up to date.
    ///
    /// # Errors
    /// If the file cannot be opened or its tables are of a newer version.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Self::with(Kind::Sqlite, db::sqlite::open(path).await?).await
    }

    /// Opens a database, and brings its tables up to date.
    ///
    /// # Errors
    /// See [`Database::check`]; or its tables are of a newer version.
    pub async fn connect(database: &Database) -> Result<Self, StoreError> {
        match database {
            Database::Sqlite(path) => Self::open(path).await,
            Database::Postgres(options) => {
                Self::with(Kind::Postgres, db::postgres::open((**options).clone()).await?).await
            }
        }
    }

    async fn with(kind: Kind, (writers, readers): (Writers, Pool)) -> Result<Self, StoreError> {
        let last_id: i64 = match kind {
            Kind::Sqlite => {
                let newest = "SELECT COALESCE(MAX(id), 0) FROM \
                     (SELECT MAX(id) AS id FROM happenings UNION ALL SELECT MAX(id) FROM logs)";
                query_scalar(newest).fetch_one(&readers).await?
            }
            Kind::Postgres => 0,
        };
        let last_id = AtomicI64::new(last_id);
        Ok(Self {
            kind,
            writers,
            readers,
            last_id,
            wakeups: fleet::wakeups::Wakeups::default(),
            takers: Arc::default(),
            documents: tasks::documents::Documents::default(),
        })
    }

    /// Closes all connections; what was written is in the database file itself afterwards.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writers.close().await;
    }

    /// Writes something that is never read, to see whether anything can be written.
    ///
    /// # Errors
    /// [`StoreError::Storage`] as long as it cannot.
    pub async fn probe(&self, now_us: i64) -> Result<(), StoreError> {
        const FILLER_BYTES: usize = 16 << 10;
        let mut write = self.write().await?;
        query("INSERT INTO probes (id, filler) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET filler = $1")
            .bind(format!("{now_us:0FILLER_BYTES$}"))
            .execute(&mut write.tx)
            .await?;
        write.commit().await
    }

    /// Whether other servers may use the database too.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.kind == Kind::Postgres
    }

    /// `PostgreSQL` or `SQLite`.
    #[must_use]
    pub const fn database_name(&self) -> &'static str {
        self.kind.name()
    }

    async fn write(&self) -> Result<Write, StoreError> {
        Ok(Write { tx: self.writers.begin(Outlives::Power).await? })
    }

    /// For what is done often and by many. It ends with [`Write::end`]: the others that share its commit may have written what
    /// it was refused for.
    async fn write_shared(&self) -> Result<Write, StoreError> {
        Ok(Write { tx: self.writers.begin_shared().await? })
    }

    /// As [`Self::write_shared`], for a step of one task; on PostgreSQL without locks. If [`Self::is_to_repeat`] is
    /// true afterwards, the step is repeated with them.
    async fn write_seen(&self) -> Result<Write, StoreError> {
        Ok(Write { tx: self.writers.begin_seen().await? })
    }

    /// Another transaction changed a row that a step had read, or the step had to read more.
    fn is_to_repeat<T>(&self, done: &Result<T, StoreError>) -> bool {
        self.is_shared() && matches!(done, Err(StoreError::Storage { fault: StorageFault::Busy, .. }))
    }

    /// For records that may be lost with the machine's power, see [`Store::open`].
    async fn write_bulk(&self) -> Result<Write, StoreError> {
        Ok(Write { tx: self.writers.begin(Outlives::Crash).await? })
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
