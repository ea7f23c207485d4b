//! The one writer of a SQLite file.
//!
//! sqlx runs SQLite's statements on a thread of their own, and to hand a statement to it and to get the answer costs as much as
//! most statements do. So a statement whose answer is not needed waits here, and goes to the thread together with the
//! next one or with the commit. For the same reason there is no pool: it asks the thread whether the connection is well
//! before and after each use.
//!
//! A commit waits for the disk. While others wait to write, a transaction that ends is not committed at once. The next one
//! continues in the same transaction of the database, behind a savepoint. The first of them that gets its turn again commits
//! for all, and only then do their calls return, also those that were refused: the reason may not be on disk yet. Each has
//! written all or nothing, as if it were alone. If the commit fails, it fails for all of them. Only transactions that say so
//! share a commit; before any other, the group is committed.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sqlx::{Connection as _, Executor as _, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use super::Shared;
use super::query::Statement;

/// The failure that a transaction must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outlives {
    /// The machine's power: it is on disk when the commit returns.
    Power,
    /// A crash of the server.
    Crash,
}

/// How a group ended.
type Outcome = Result<(), Arc<sqlx::Error>>;

/// A connection for each; `None` when they are closed.
#[derive(Debug)]
struct Connections {
    durable: Option<SqliteConnection>,
    bulk: Option<SqliteConnection>,
    /// Transactions that have ended and are not committed. While no caller holds the connections, the database's
    /// transaction is open if there are any.
    group: Option<watch::Sender<Option<Outcome>>>,
}

impl Connections {
    fn get(&mut self, outlives: Outlives) -> Result<&mut SqliteConnection, sqlx::Error> {
        let connection = match outlives {
            Outlives::Power => &mut self.durable,
            Outlives::Crash => &mut self.bulk,
        };
        connection.as_mut().ok_or(sqlx::Error::PoolClosed)
    }

    async fn run(&mut self, outlives: Outlives, text: &'static str) -> Result<(), sqlx::Error> {
        self.get(outlives)?.execute(text).await.map(drop)
    }

    /// Commits the group, and tells its callers. To be run to its end.
    async fn end_group(&mut self) {
        let Some(group) = self.group.take() else { return };
        let committed = self.run(Outlives::Power, "COMMIT").await;
        if committed.is_err() {
            // It fails if SQLite took the transaction back itself.
            let _ = self.run(Outlives::Power, "ROLLBACK").await;
        }
        group.send_replace(Some(committed.map_err(Arc::new)));
    }

    /// Takes back what one transaction wrote, and nothing of the group that it is in.
    async fn roll_back(&mut self, outlives: Outlives, is_in_group: bool) {
        if !is_in_group {
            // It fails if there is none: it never began, or SQLite took it back because the disk is full.
            let _ = self.run(outlives, "ROLLBACK").await;
            return;
        }
        if self.run(outlives, "ROLLBACK TO own; RELEASE own").await.is_ok() {
            return;
        }
        // It never began, or SQLite took all of the group back.
        match self.run(outlives, "BEGIN IMMEDIATE").await {
            Err(error) if error.to_string().contains("within a transaction") => {}
            begun => {
                let _ = self.run(outlives, "ROLLBACK").await;
                let lost = begun.err().unwrap_or_else(|| std::io::Error::other("SQLite rolled back").into());
                if let Some(group) = self.group.take() {
                    group.send_replace(Some(Err(Arc::new(lost))));
                }
            }
        }
    }
}

/// One transaction at a time. Waiting here is fair; waiting in SQLite is polling.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    connections: Arc<Mutex<Connections>>,
    /// How many wait to write.
    waiting: Arc<AtomicUsize>,
}

/// One that waits to write.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Writer {
    pub(crate) fn new(durable: SqliteConnection, bulk: SqliteConnection) -> Self {
        let connections = Connections { durable: Some(durable), bulk: Some(bulk), group: None };
        Self { connections: Arc::new(Mutex::new(connections)), waiting: Arc::default() }
    }

    /// IMMEDIATE: a transaction that begins by reading must not fail at its first write because another program wrote first.
    pub(crate) async fn begin(&self, outlives: Outlives) -> Writing {
        self.begin_after(outlives, false).await
    }

    /// One that may share its commit with others. It ends with [`Writing::commit`] or [`Writing::give_up`].
    pub(crate) async fn begin_shared(&self) -> Writing {
        self.begin_after(Outlives::Power, true).await
    }

    async fn begin_after(&self, outlives: Outlives, is_shared: bool) -> Writing {
        let connections = self.turn(is_shared).await;
        let is_in_group = connections.group.is_some();
        let begin = if is_in_group { "SAVEPOINT own" } else { "BEGIN IMMEDIATE" };
        Writing {
            writer: self.clone(),
            connections: Some(connections),
            outlives,
            is_shared,
            is_in_group,
            waiting: vec![word(begin)],
            has_begun: false,
        }
    }

    /// The connections, in a state in which this transaction may begin.
    async fn turn(&self, is_shared: bool) -> OwnedMutexGuard<Connections> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waits = Waiting(&self.waiting);
        loop {
            let mut connections = Arc::clone(&self.connections).lock_owned().await;
            if is_shared || connections.group.is_none() {
                return connections;
            }
            let ended = tokio::spawn(async move {
                connections.end_group().await;
                connections
            });
            if let Ok(connections) = ended.await {
                return connections;
            }
        }
    }

    /// Waits until the group is committed, and does so behind those that wait now.
    async fn settled(&self, mut outcome: watch::Receiver<Option<Outcome>>) -> Result<(), sqlx::Error> {
        let ended = async { outcome.wait_for(Option::is_some).await.map(drop).is_ok() };
        let turn = tokio::select! {
            biased;
            _ = ended => None,
            turn = Arc::clone(&self.connections).lock_owned() => Some(turn),
        };
        if let Some(mut connections) = turn.filter(|_| outcome.borrow().is_none()) {
            connections.end_group().await;
        }
        let outcome = outcome.borrow().clone();
        let outcome = outcome.unwrap_or(Err(Arc::new(sqlx::Error::WorkerCrashed)));
        outcome.map_err(|error| Shared::of(&error))
    }

    /// Everything that was written is in the file itself afterwards.
    pub(crate) async fn close(&self) {
        let mut connections = self.turn(false).await;
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
    writer: Writer,
    /// `None` after the commit.
    connections: Option<OwnedMutexGuard<Connections>>,
    outlives: Outlives,
    /// It may share its commit.
    is_shared: bool,
    /// It continues the transaction of others that have ended.
    is_in_group: bool,
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

    /// The waiting statements, and `last` after them, as one text.
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

    /// A caller that goes away meanwhile changes nothing for the others of its group.
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        tokio::spawn(self.end()).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }

    /// Nothing of it stays. Returns when all that it may have read is on disk; an error if that failed.
    pub(crate) async fn give_up(self) -> Result<(), sqlx::Error> {
        tokio::spawn(self.back()).await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
    }

    async fn end(mut self) -> Result<(), sqlx::Error> {
        let others_wait = self.writer.waiting.load(Ordering::Relaxed) > 0;
        if !(self.is_in_group || self.is_shared && others_wait) {
            self.later(word("COMMIT"));
            self.flush().await?;
            self.connections = None;
            return Ok(());
        }
        if self.is_in_group {
            self.later(word("RELEASE own"));
        }
        self.flush().await?;
        let mut connections = self.connections.take().ok_or(sqlx::Error::PoolClosed)?;
        let outcome = connections.group.get_or_insert_with(|| watch::channel(None).0).subscribe();
        if !others_wait {
            connections.end_group().await;
        }
        drop(connections);
        self.writer.settled(outcome).await
    }

    async fn back(mut self) -> Result<(), sqlx::Error> {
        let mut connections = self.connections.take().ok_or(sqlx::Error::PoolClosed)?;
        let group = connections.group.as_ref().map(watch::Sender::subscribe);
        if self.has_begun {
            connections.roll_back(self.outlives, self.is_in_group).await;
        }
        drop(connections);
        match group {
            Some(outcome) => self.writer.settled(outcome).await,
            None => Ok(()),
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(mut connections) = self.connections.take().filter(|_| self.has_begun) else { return };
        let (outlives, is_in_group) = (self.outlives, self.is_in_group);
        // Without a runtime the program ends, and SQLite takes the transaction back by itself.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move { connections.roll_back(outlives, is_in_group).await });
    }
}

/// A statement without values.
fn word(text: &'static str) -> Statement {
    Statement { text: Cow::Borrowed(text), values: Vec::new() }
}

#[cfg(test)]
mod tests;
