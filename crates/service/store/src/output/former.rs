//! The output of former runs. A task's own output is that of its newest run: it is what ClearML's clients ask for. The
//! output of an earlier run is kept under a name of its own in the same tables, from the moment the next run starts or
//! the task is reset.

use crate::db::{Tx, query, query_scalar};
use crate::{Store, StoreError};

/// Where output is kept, by the task or model that it is of.
const TABLES: [&str; 4] = ["logs", "scalars", "latest_scalars", "reports"];

/// The name under which the output of a run that is not its task's newest is kept. No task and no model has such an id.
#[must_use]
pub fn former_output(task: &str, run: i64) -> String {
    format!("{task}@{run}")
}

impl Store {
    /// Is the output of this run of a task, whose newest run is `newest`, kept under [`former_output`]? The newest run has the task's
    /// own output; until it starts, the run before it has.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn is_former_output(&self, task: &str, run: i64, newest: i64) -> Result<bool, StoreError> {
        let started = query_scalar("SELECT MAX(run) FROM runs WHERE task = $1 AND started_us IS NOT NULL");
        let started: Option<i64> = started.bind(task).fetch_one(&self.readers).await?;
        match started {
            // A task that was reset has only former runs.
            Some(started) if !self.is_put_aside(task, started).await? => Ok(run != started),
            _ => Ok(run != newest || started == Some(run)),
        }
    }

    async fn is_put_aside(&self, task: &str, run: i64) -> Result<bool, StoreError> {
        let name = former_output(task, run);
        for table in TABLES {
            let known = query(known_in(table)).bind(&name);
            if known.fetch_optional(&self.readers).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn known_in(table: &str) -> String {
    format!("SELECT task FROM {table} WHERE task = $1 LIMIT 1")
}

/// Puts a task's output aside as that of its newest run before `next` that an agent started. Returns whether there is
/// such a run. The output of a program that no agent took from a queue stays where it is, because the program may
/// continue it.
pub(crate) async fn put_aside(tx: &mut Tx, task: &str, next: i64) -> Result<bool, StoreError> {
    let newest: Option<i64> = query_scalar(
        "SELECT MAX(run) FROM runs WHERE task = $1 AND run < $2 AND started_us IS NOT NULL AND taken_us IS NOT NULL",
    )
    .bind(task)
    .bind(next)
    .fetch_one(&mut *tx)
    .await?;
    let Some(run) = newest else { return Ok(false) };
    let name = former_output(task, run);
    for table in TABLES {
        // Put aside already: what came since then is no run's.
        let known = query(known_in(table)).bind(&name);
        if known.fetch_optional(&mut *tx).await?.is_some() {
            return Ok(true);
        }
    }
    for table in TABLES {
        query(format!("UPDATE {table} SET task = $2 WHERE task = $1"))
            .bind(task)
            .bind(&name)
            .execute(&mut *tx)
            .await?;
    }
    Ok(true)
}

/// Deletes what a task reported, but not what its former runs did.
pub(crate) async fn delete_output(tx: &mut Tx, task: &str) -> Result<(), StoreError> {
    for table in TABLES {
        query(format!("DELETE FROM {table} WHERE task = $1")).bind(task).execute(&mut *tx).await?;
    }
    Ok(())
}

/// Deletes what all runs of a task reported.
pub(crate) async fn delete_all_output(tx: &mut Tx, task: &str) -> Result<(), StoreError> {
    let runs: Vec<i64> =
        query_scalar("SELECT run FROM runs WHERE task = $1").bind(task).fetch_all(&mut *tx).await?;
    for run in runs {
        delete_output(tx, &former_output(task, run)).await?;
    }
    delete_output(tx, task).await
}
