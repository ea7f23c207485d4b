//! One interface to both databases. The rest of the crate writes one SQL text with `$n`, and does not know which database
//! runs it. [`sqlite`], [`postgres`] and [`words`] have the differences.

pub mod backup;
pub(crate) mod copy;
pub(crate) mod database;
pub(crate) mod leader;
pub(crate) mod migrations;
pub(crate) mod status;

mod builder;
mod merged;
pub(crate) mod postgres;
mod query;
mod seen;
pub(crate) mod sqlite;
mod words;
mod writer;

use std::sync::Arc;

use sqlx::{PgPool, Sqlite, SqlitePool, Transaction};

pub(crate) use builder::Sql;
pub(crate) use query::{Row, Value, query, query_as, query_scalar, without_nul};
pub(crate) use writer::{Outlives, Writer};

/// The kind of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    Postgres,
}

/// The error of a statement that was for several callers.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Shared(pub(crate) Arc<sqlx::Error>);

impl Shared {
    /// The error for one of them.
    pub(crate) fn of(error: &Arc<sqlx::Error>) -> sqlx::Error {
        std::io::Error::other(Self(Arc::clone(error))).into()
    }
}

/// Connections to one of them.
#[derive(Clone, Debug)]
pub(crate) enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

/// The writers of one of them.
#[derive(Clone, Debug)]
pub(crate) enum Writers {
    Sqlite(Writer),
    Postgres(PgPool),
}

impl Writers {
    /// Begins a transaction that writes.
    pub(crate) async fn begin(&self, outlives: Outlives) -> Result<Tx, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(writer) => Tx::Writing(writer.begin(outlives).await),
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await?.into()),
        })
    }

    /// The same for one that ends with [`Tx::commit`] or [`Tx::give_up`]: on SQLite, those that wait for each other share a
    /// commit.
    pub(crate) async fn begin_shared(&self) -> Result<Tx, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(writer) => Tx::Writing(writer.begin_shared().await),
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await?.into()),
        })
    }

    /// The same for a step of one task, on PostgreSQL without locks. It may have to be repeated with [`Self::begin_shared`].
    pub(crate) async fn begin_seen(&self) -> Result<Tx, sqlx::Error> {
        match self {
            Self::Sqlite(_) => self.begin_shared().await,
            Self::Postgres(pool) => Ok(Tx::CheckedTask(seen::CheckedTask::new(pool.clone()))),
        }
    }

    /// Connections for a statement that writes, and is a transaction by itself; `None`: SQLite cannot write in the
    /// middle of a statement that reads.
    pub(crate) fn at_once(&self) -> Option<Pool> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres(pool) => Some(Pool::Postgres(pool.clone())),
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(writer) => writer.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// A transaction on one of them.
#[derive(Debug)]
pub(crate) enum Tx {
    /// One that reads.
    Sqlite(Transaction<'static, Sqlite>),
    /// One that writes.
    Writing(writer::Writing),
    Postgres(merged::Merged),
    /// One that has not begun.
    CheckedTask(seen::CheckedTask),
}

/// The kinds of work that one transaction does at a time: the first numbers of their locks on PostgreSQL. The second one
/// is the schema's: two fleets in one database have a leader each.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(crate) enum Alone {
    /// Evictions are decided on the last one's result.
    Evict = 0x636e_0001,
    /// One server does the periodic work.
    Lead = 0x636e_0002,
}

/// The connection or transaction of a statement.
pub(crate) enum ConnectionRef<'c> {
    Pool(&'c Pool),
    Tx(&'c mut Tx),
}

impl<'c> From<&'c Pool> for ConnectionRef<'c> {
    fn from(pool: &'c Pool) -> Self {
        Self::Pool(pool)
    }
}

impl<'c> From<&'c mut Tx> for ConnectionRef<'c> {
    fn from(tx: &'c mut Tx) -> Self {
        Self::Tx(tx)
    }
}

impl Pool {
    /// Begins a transaction that reads everything as of one moment.
    pub(crate) async fn begin(&self) -> Result<Tx, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(pool) => Tx::Sqlite(pool.begin().await?),
            Self::Postgres(pool) => Tx::Postgres(
                pool.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?.into(),
            ),
        })
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(pool) => pool.close().await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

impl Tx {
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(tx) => tx.commit().await,
            Self::Writing(writing) => writing.commit().await,
            Self::Postgres(tx) => tx.commit().await,
            Self::CheckedTask(seen) => seen.commit().await,
        }
    }

    /// Takes back what it wrote. Data that it read is on disk afterwards.
    pub(crate) async fn give_up(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Writing(writing) => writing.give_up().await,
            // They end by themselves, and have read nothing that was not committed.
            Self::Sqlite(_) | Self::Postgres(_) | Self::CheckedTask(_) => Ok(()),
        }
    }

    /// The queue must not be deleted before the commit, where reading its row did not keep it.
    pub(crate) fn keep_queue(&mut self, id: &str) {
        if let Self::CheckedTask(seen) = self {
            seen.keep_queue(id);
        }
    }

    /// Of all transactions that request this, one proceeds at a time.
    pub(crate) async fn alone(&mut self, what: Alone) -> Result<(), sqlx::Error> {
        if let Self::Postgres(_) = self {
            let lock = query("SELECT pg_advisory_xact_lock($1::int, hashtext(current_schema()))");
            lock.bind(what as i64).execute(self).await?;
        }
        Ok(())
    }
}
