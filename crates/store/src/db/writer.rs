//! The one writer of a SQLite file.
//!
//! sqlx runs SQLite's statements on a thread of their own, and to hand a statement to it and to get the answer costs as much as
//! most statements do. So a statement whose answer nobody needs waits here, and goes to the thread together with the next one
//! or with the commit. For the same reason there is no pool: it asks the thread whether the connection is well before and after
//! each use.

use std::borrow::Cow;
use std::sync::Arc;

use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::query::Statement;

/// What a transaction must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The machine's power: it is on disk when the commit returns.
    Power,
    /// A crash of the server.
    Crash,
}

/// A connection for each; `None` when they are closed.
#[derive(Debug)]
struct Connections {
    durable: Option<SqliteConnection>,
    bulk: Option<SqliteConnection>,
}

impl Connections {
    fn get(&mut self, outlives: Outlives) -> Result<&mut SqliteConnection, sqlx::Error> {
        let connection = match outlives {
            Outlives::Power => &mut self.durable,
            Outlives::Crash => &mut self.bulk,
        };
        connection.as_mut().ok_or(sqlx::Error::PoolClosed)
    }
}

/// One transaction at a time. Waiting here is fair; waiting in SQLite is polling.
#[derive(Clone, Debug)]
pub(crate) struct Writer(Arc<Mutex<Connections>>);

impl Writer {
    pub(crate) fn new(durable: SqliteConnection, bulk: SqliteConnection) -> Self {
        Self(Arc::new(Mutex::new(Connections { durable: Some(durable), bulk: Some(bulk) })))
    }

    /// IMMEDIATE: a transaction that begins by reading must not fail at its first write because another program wrote first.
    pub(crate) async fn begin(&self, outlives: Outlives) -> Writing {
        let begin = Statement { text: Cow::Borrowed("BEGIN IMMEDIATE"), values: Vec::new() };
        let connections = Arc::clone(&self.0).lock_owned().await;
        Writing { connections: Some(connections), outlives, waiting: vec![begin], has_begun: false }
    }

    /// What was written is in the file itself afterwards.
    pub(crate) async fn close(&self) {
        let mut connections = self.0.lock().await;
        for connection in [connections.bulk.take(), connections.durable.take()].into_iter().flatten() {
            if let Err(error) = connection.close().await {
                tracing::warn!("the database file was not closed well: {error}");
            }
        }
    }
}

/// A transaction, and the right to write. If it is dropped, nothing of it stays.
#[derive(Debug)]
pub(crate) struct Writing {
    /// `None` after the commit.
    connections: Option<OwnedMutexGuard<Connections>>,
    outlives: Outlives,
    /// In this order, before the next one.
    waiting: Vec<Statement>,
    /// Whether any has gone to the database.
    has_begun: bool,
}

impl Writing {
    /// Runs the statement before the next one or the commit, which reports its error.
    pub(crate) fn later(&mut self, statement: Statement) {
        self.waiting.push(statement);
    }

    /// What waits, and `last` after it, as one text.
    pub(crate) fn with_waiting(&mut self, last: Statement) -> Statement {
        self.has_begun = true;
        if self.waiting.is_empty() {
            return last;
        }
        let mut statements = std::mem::take(&mut self.waiting);
        statements.push(last);
        let texts: Vec<&str> = statements.iter().map(|statement| &*statement.text).collect();
        let text = Cow::Owned(texts.join("; "));
        Statement { text, values: statements.into_iter().flat_map(|statement| statement.values).collect() }
    }

    /// Runs what waits.
    pub(crate) async fn flush(&mut self) -> Result<(), sqlx::Error> {
        let Some(last) = self.waiting.pop() else { return Ok(()) };
        let all = self.with_waiting(last);
        self.connection()?.execute(all.sqlite()).await?;
        Ok(())
    }

    pub(crate) fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        let outlives = self.outlives;
        self.connections.as_mut().ok_or(sqlx::Error::PoolClosed)?.get(outlives)
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.later(Statement { text: Cow::Borrowed("COMMIT"), values: Vec::new() });
        self.flush().await?;
        self.connections = None;
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(mut connections) = self.connections.take().filter(|_| self.has_begun) else { return };
        let outlives = self.outlives;
        // Without a runtime the program ends, and SQLite takes the transaction back by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Ok(connection) = connections.get(outlives) {
                // It fails if there is none: it never began, or SQLite took it back because the disk is full.
                let _ = connection.execute("ROLLBACK").await;
            }
        });
    }
}
