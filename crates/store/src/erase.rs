//! What takes a task's past away: it becomes a draft again, or it is deleted.

use cantle_model::TaskStatus::{Created, InProgress, Published, Publishing, Queued};
use serde_json::{Map, Value};
use sqlx::SqliteConnection;

use crate::data::Change;
use crate::flow::{about, forget_run, leave_queue, refusal};
use crate::tasks::load;
use crate::{Store, StoreError, row};

impl Store {
    /// Back to a draft, with nothing left of its last run; `forget` removes what else of `doc` is to go.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::Status`] for a running or published task without force.
    pub async fn reset(
        &self,
        task: &str,
        change: &Change,
        forget: impl FnOnce(&mut Map<String, Value>) + Send,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let mut old = load(&mut write.tx, task).await?;
        if !change.force && matches!(old.index.status, InProgress | Published | Publishing) {
            return Err(refusal(&old, "reset"));
        }
        self.move_to(&mut write, &old, Created, change, "reset").await?;
        forget_run(&mut write.tx, task).await?;
        forget(&mut old.doc);
        sqlx::query(
            "UPDATE tasks SET queue = NULL, evicted_for = NULL, last_worker = NULL, last_worker_report_us = NULL, \
             last_iteration = 0, doc = $2 WHERE id = $1",
        )
        .bind(task)
        .bind(row::to_json(&old.doc)?)
        .execute(&mut *write.tx)
        .await?;
        delete_output(&mut write.tx, task).await?;
        write.commit().await
    }

    /// Deletes a task and all that it reported. Returns how many tasks lost their parent.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::Status`] for a waiting, running or published task without force.
    pub async fn delete_task(&self, task: &str, change: &Change) -> Result<u64, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        if !change.force && matches!(old.index.status, Queued | InProgress | Published | Publishing) {
            return Err(refusal(&old, "delete"));
        }
        leave_queue(&mut write.tx, task).await?;
        delete_output(&mut write.tx, task).await?;
        let children = sqlx::query("UPDATE tasks SET parent = NULL WHERE parent = $1").bind(task);
        let children = children.execute(&mut *write.tx).await?.rows_affected();
        sqlx::query("DELETE FROM tasks WHERE id = $1").bind(task).execute(&mut *write.tx).await?;
        self.record(&mut write.tx, about(&old, "delete", change, "deleted".to_owned())).await?;
        write.commit().await?;
        Ok(children)
    }
}

async fn delete_output(tx: &mut SqliteConnection, task: &str) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM logs WHERE task = $1",
        "DELETE FROM scalars WHERE task = $1",
        "DELETE FROM latest_scalars WHERE task = $1",
        "DELETE FROM reports WHERE task = $1",
    ] {
        sqlx::query(sql).bind(task).execute(&mut *tx).await?;
    }
    Ok(())
}
