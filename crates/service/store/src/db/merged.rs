//! A transaction on PostgreSQL.
//!
//! Each statement is a way to the server and back. So statements whose answers are not needed wait here, and go there
//! as one statement, before the next one or the commit. The parts of such a statement see the tables as they were
//! before all of it, and only one of them may change a row. So no two that go together change the same table, and none
//! of them reads.

use std::borrow::Cow;
use std::collections::BTreeSet;

use sqlx::postgres::PgConnection;
use sqlx::{Postgres, Transaction};

use super::query::{Statement, Value, numbered};

#[derive(Debug)]
pub(crate) struct Merged {
    transaction: Transaction<'static, Postgres>,
    /// In this order, with `?` for each value.
    waiting: Vec<Statement>,
}

impl From<Transaction<'static, Postgres>> for Merged {
    fn from(transaction: Transaction<'static, Postgres>) -> Self {
        Self { transaction, waiting: Vec::new() }
    }
}

impl Merged {
    /// Runs the statement before the next one or the commit, which reports its error.
    pub(crate) async fn later(&mut self, statement: Statement) -> Result<(), sqlx::Error> {
        if !fits(&self.waiting, &statement) {
            self.flush().await?;
        }
        self.waiting.push(statement);
        Ok(())
    }

    /// Runs what waits.
    pub(crate) async fn flush(&mut self) -> Result<(), sqlx::Error> {
        if let Some(all) = merged(std::mem::take(&mut self.waiting)) {
            all.postgres()?.execute(&mut *self.transaction).await?;
        }
        Ok(())
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.transaction
    }

    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.flush().await?;
        self.transaction.commit().await
    }
}

/// Whether a statement can be one with those that wait.
pub(super) fn fits(waiting: &[Statement], statement: &Statement) -> bool {
    let mut tables = BTreeSet::new();
    let mut all = waiting.iter().chain([statement]);
    waiting.is_empty() || all.all(|each| table(&each.text).is_some_and(|table| tables.insert(table)))
}

/// The table that a statement changes, if it reads none.
fn table(text: &str) -> Option<&str> {
    let mut words = text.split_whitespace();
    let table = match (words.next()?, words.next()?) {
        ("INSERT", "INTO") | ("DELETE", "FROM") => words.next()?,
        ("UPDATE", table) => table,
        _ => return None,
    };
    if text.contains("SELECT") { None } else { Some(table) }
}

/// All as one statement, the last one as its end.
fn merged(mut statements: Vec<Statement>) -> Option<Statement> {
    let last = statements.pop()?;
    let (mut text, mut values) = parts(statements);
    text.push_str(&last.text);
    values.extend(last.values);
    Some(Statement { text: Cow::Owned(numbered(&text)), values })
}

/// The beginning of a statement of which these are parts: `part0`, `part1`…
pub(super) fn parts(statements: Vec<Statement>) -> (String, Vec<Value>) {
    let (mut text, mut values) = (String::new(), Vec::new());
    for (n, statement) in statements.into_iter().enumerate() {
        let begin = if n == 0 { "WITH" } else { "," };
        text.push_str(&format!("{begin} part{n} AS ({}) ", statement.text));
        values.extend(statement.values);
    }
    (text, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statement(text: &'static str, values: &[i64]) -> Statement {
        Statement { text: Cow::Borrowed(text), values: values.iter().map(Value::from).collect() }
    }

    #[test]
    fn what_a_statement_changes() {
        assert_eq!(table("UPDATE tasks SET a = 1"), Some("tasks"));
        assert_eq!(table("INSERT INTO runs (a) VALUES ($1)"), Some("runs"));
        assert_eq!(table("DELETE FROM queue_entries WHERE task = $1"), Some("queue_entries"));
        for reads in
            ["SELECT a FROM tasks", "UPDATE tasks SET a = (SELECT 1)", "INSERT INTO a SELECT b FROM c"]
        {
            assert_eq!(table(reads), None, "{reads}");
        }
    }

    #[test]
    fn no_two_change_one_table_and_none_reads() {
        let texts =
            ["UPDATE tasks SET a = 1", "INSERT INTO runs (a) SELECT a FROM tasks", "UPDATE runs SET a = 2"];
        let [tasks, reads, runs] = texts.map(|text| statement(text, &[]));
        assert!(fits(&[], &reads) && fits(std::slice::from_ref(&tasks), &runs));
        assert!(!fits(std::slice::from_ref(&tasks), &reads) && !fits(std::slice::from_ref(&reads), &runs));
        assert!(!fits(&[tasks, runs], &statement("DELETE FROM runs", &[])));
    }

    #[test]
    fn values_keep_their_statements() {
        let all = merged(vec![
            statement("DELETE FROM a WHERE b = ?", &[1]),
            statement("UPDATE c SET d = ?, e = ? WHERE f = ?", &[3, 3, 2]),
            statement("INSERT INTO g VALUES (?)", &[4]),
        ])
        .unwrap();
        assert_eq!(
            all.text,
            "WITH part0 AS (DELETE FROM a WHERE b = $1) , part1 AS (UPDATE c SET d = $2, e = $3 WHERE f = $4) \
             INSERT INTO g VALUES ($5)"
        );
        assert_eq!(all.values.len(), 5);
        assert!(merged(Vec::new()).is_none());
        assert_eq!(
            merged(vec![statement("DELETE FROM a WHERE b = ?", &[1])]).unwrap().text,
            "DELETE FROM a WHERE b = $1"
        );
    }
}
