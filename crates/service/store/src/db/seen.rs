//! A step of one task on PostgreSQL without a lock: it reads the task's row, decides, and writes all with one statement, which is
//! a transaction by itself. The statement fails if another transaction has changed the row since. Then, or if the step
//! has to read more, it is repeated in a transaction that locks the row.
//!
//! In most steps no other transaction interferes, and three ways to the server and back are saved: `BEGIN`, the lock
//! and `COMMIT`.

use std::borrow::Cow;
use std::io;

use sqlx::PgPool;

use super::merged::{fits, parts};
use super::query::{Row, Statement, Value, numbered};

/// The step has to be repeated with locks.
#[derive(Debug, thiserror::Error)]
#[error("the step needs locks")]
struct NeedsLocks;

pub(crate) fn needs_locks() -> sqlx::Error {
    io::Error::new(io::ErrorKind::WouldBlock, NeedsLocks).into()
}

#[derive(Debug)]
pub(crate) struct CheckedTask {
    pool: PgPool,
    /// Which version of the task's row was read: the transaction that wrote it.
    version: Option<String>,
    /// The queue that must not be deleted meanwhile.
    queue: Option<String>,
    /// In this order, with `?` for each value.
    waiting: Vec<Statement>,
    /// The one of them that changes the task's row.
    of_task: Option<usize>,
    is_refused: bool,
}

impl CheckedTask {
    pub(crate) const fn new(pool: PgPool) -> Self {
        Self { pool, version: None, queue: None, waiting: Vec::new(), of_task: None, is_refused: false }
    }

    pub(crate) const fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Its columns include `version`.
    pub(crate) fn note(&mut self, task: &Row) -> Result<(), sqlx::Error> {
        self.version = Some(task.try_get("version")?);
        Ok(())
    }

    pub(crate) fn keep_queue(&mut self, id: &str) {
        self.queue = Some(id.to_owned());
    }

    /// Runs the statement at the end.
    pub(crate) fn later(&mut self, statement: Statement) {
        self.is_refused |= !fits(&self.waiting, &statement);
        self.waiting.push(statement);
    }

    /// Runs the statement, which ends in a condition, at the end, if the task's row is as it was read.
    pub(crate) fn later_of_task(&mut self, mut statement: Statement) {
        self.of_task = Some(self.waiting.len());
        statement.text.to_mut().push_str(" AND xmin::text = ? RETURNING id");
        statement.values.push(Value::from(self.version.clone()));
        self.later(statement);
    }

    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let pool = self.pool.clone();
        let all = self.merged().ok_or_else(needs_locks)?;
        all.postgres()?.execute(&pool).await.map(drop)
    }

    /// All as one statement.
    fn merged(self) -> Option<Statement> {
        let of_task = self.of_task.filter(|_| !self.is_refused)?;
        let (mut text, mut values) = parts(self.waiting);
        let mut holds = format!("(SELECT COUNT(*) FROM part{of_task}) = 1");
        if let Some(queue) = self.queue {
            text.push_str(", kept AS MATERIALIZED (SELECT id FROM queues WHERE id = ? FOR KEY SHARE)");
            values.push(Value::from(queue));
            holds.push_str(" AND (SELECT COUNT(*) FROM kept) = 1");
        }
        text.push_str(&format!(" SELECT cantle_unchanged({holds})"));
        Some(Statement { text: Cow::Owned(numbered(&text)), values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> CheckedTask {
        let pool = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
        CheckedTask { version: Some("7".to_owned()), ..CheckedTask::new(pool) }
    }

    fn statement(text: &'static str) -> Statement {
        Statement { text: Cow::Borrowed(text), values: vec![Value::from("x")] }
    }

    #[tokio::test]
    async fn all_is_one_statement_about_the_version_that_was_read() {
        let mut seen = seen();
        seen.keep_queue("q");
        seen.later(statement("DELETE FROM runs WHERE task = ?"));
        seen.later_of_task(statement("UPDATE tasks SET a = 1 WHERE id = ?"));
        let all = seen.merged().unwrap();
        assert_eq!(
            all.text,
            "WITH part0 AS (DELETE FROM runs WHERE task = $1) \
             , part1 AS (UPDATE tasks SET a = 1 WHERE id = $2 AND xmin::text = $3 RETURNING id) \
             , kept AS MATERIALIZED (SELECT id FROM queues WHERE id = $4 FOR KEY SHARE) \
             SELECT cantle_unchanged((SELECT COUNT(*) FROM part1) = 1 AND (SELECT COUNT(*) FROM kept) = 1)"
        );
        assert_eq!(all.values.len(), 4);
    }

    #[tokio::test]
    async fn what_does_not_go_together_or_is_about_no_task_needs_locks() {
        let mut twice = seen();
        twice.later_of_task(statement("UPDATE tasks SET a = 1 WHERE id = ?"));
        twice.later(statement("UPDATE tasks SET b = 1 WHERE id = ?"));
        let mut nobody = seen();
        nobody.later(statement("DELETE FROM runs WHERE task = ?"));
        assert!(twice.merged().is_none() && nobody.merged().is_none());
        assert!(seen().commit().await.is_ok(), "nothing to write");
    }
}
