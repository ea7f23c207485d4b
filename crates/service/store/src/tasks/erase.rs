//! Erases the history of a task: the task becomes a draft again, or it is deleted.

use cantle_model::TaskStatus::{Created, InProgress, Published, Publishing, Queued, Stopped};
use serde_json::{Map, Value};

use super::arrays::set_array;
use super::flow::{about, give_up, leave_queue, refusal};
use super::record::{load, load_whole};
use crate::data::Change;
use crate::db::{Sql, query};
use crate::output::former::{delete_all_output, delete_output, put_aside};
use crate::people::secrets::give;
use crate::{Store, StoreError, row, runs};

impl Store {
    /// Back to a draft. The output that an agent's run reported is kept as that of a former run, other output is
    /// deleted. `forget` removes what else of `doc` is to go.
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
        let mut old = load_whole(&mut write.tx, task).await?;
        if !change.force && matches!(old.index.status, InProgress | Published | Publishing) {
            return Err(refusal(&old, "reset"));
        }
        self.move_to(&mut write, &old, Created, change, "reset").await?;
        give_up(&mut write.tx, task, Created, change).await?;
        forget(&mut old.doc);
        query(
            "UPDATE tasks SET queue = NULL, evicted_for = NULL, last_worker = NULL, last_worker_report_us = NULL, \
             last_iteration = 0, doc = $2 WHERE id = $1",
        )
        .bind(task)
        .bind(row::to_json(&old.doc)?)
        .execute(&mut write.tx)
        .await?;
        if !put_aside(&mut write.tx, task, old.run + 1).await? {
            delete_output(&mut write.tx, task).await?;
        }
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
        runs::end(&mut write.tx, task, Stopped, "the task was deleted", change.now_us).await?;
        delete_all_output(&mut write.tx, task).await?;
        let children = query("UPDATE tasks SET parent = NULL WHERE parent = $1").bind(task);
        let children = children.execute(&mut write.tx).await?;
        query("DELETE FROM task_after WHERE task = $1").bind(task).execute(&mut write.tx).await?;
        set_array(&mut write.tx, task, None).await?;
        give(&mut write.tx, task, &[]).await?;
        query("DELETE FROM tasks WHERE id = $1").bind(task).execute(&mut write.tx).await?;
        self.record(&mut write.tx, about(&old, "delete", change, "deleted".to_owned())).await?;
        write.commit().await?;
        Ok(children)
    }

    /// Deletes all that a task reported.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn delete_task_reports(&self, task: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        delete_output(&mut write.tx, task).await?;
        write.commit().await
    }

    /// Deletes all that was reported about a model. The output of tasks and of models is in the same tables: what has the id
    /// of a task is the task's, also in a database in which a model has the same id.
    ///
    /// # Errors
    /// [`StoreError::NoModel`].
    pub async fn delete_model_reports(&self, model: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let task = query("SELECT id FROM tasks WHERE id = $1").bind(model);
        if task.fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::NoModel(model.to_owned()));
        }
        delete_output(&mut write.tx, model).await?;
        write.commit().await
    }

    /// Deletes a task's output, that from before a moment if one is given. Returns how many pieces there were.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn delete_logs(&self, task: &str, before_ms: Option<i64>) -> Result<u64, StoreError> {
        let mut write = self.write().await?;
        let sql = query("DELETE FROM logs WHERE task = $1 AND timestamp_ms < $2");
        let sql = sql.bind(task).bind(before_ms.unwrap_or(i64::MAX));
        let deleted = sql.execute(&mut write.tx).await?;
        write.commit().await?;
        Ok(deleted)
    }

    /// Deletes the oldest events and pieces of output from before these times, at most `limit` of each; what belongs to a task that
    /// has not ended stays. Returns how many events and pieces there were.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn prune(
        &self,
        events_before_us: i64,
        logs_before_us: i64,
        limit: i64,
    ) -> Result<(u64, u64), StoreError> {
        let mut pruned = [0, 0];
        // The records to delete are looked up first: no transaction has to wait for a reader.
        let limits = [events_before_us, logs_before_us];
        for (count, ((table, arrived), before_us)) in self.kind.arrival().into_iter().zip(limits).enumerate()
        {
            let ended =
                "task NOT IN (SELECT id FROM tasks WHERE status IN ('created', 'queued', 'in_progress'))";
            let mut old = Sql::new(format!("SELECT id FROM {table} WHERE {arrived} < "));
            old.push_bind(before_us)
                .push(format_args!(" AND (task IS NULL OR {ended}) ORDER BY {arrived} LIMIT "));
            old.push_bind(limit);
            let ids: Vec<i64> = old.build_scalar().fetch_all(&self.readers).await?;
            if ids.is_empty() {
                continue;
            }
            let mut write = self.write_bulk().await?;
            let mut sql = Sql::new(format!("DELETE FROM {table} WHERE id IN "));
            sql.push("(");
            let mut list = sql.separated(", ");
            for id in &ids {
                list.push_bind(*id);
            }
            sql.push(")");
            pruned[count] = sql.build().execute(&mut write.tx).await?;
            write.commit().await?;
        }
        Ok((pruned[0], pruned[1]))
    }

    /// Those of these models that a task other than this one names.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn models_in_use(&self, task: &str, models: &[String]) -> Result<Vec<String>, StoreError> {
        let mut used = Vec::new();
        for model in models {
            let place = self.kind.place();
            let found =
                query(format!("SELECT id FROM tasks WHERE {place}(doc, $2) > 0 AND id <> $1 LIMIT 1"));
            if found.bind(task).bind(model).fetch_optional(&self.readers).await?.is_some() {
                used.push(model.clone());
            }
        }
        Ok(used)
    }
}
