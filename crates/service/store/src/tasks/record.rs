//! Tasks as records: create, read, change. Their states change in `flow`.

use cantle_model::TaskStatus;
use serde_json::{Map, Value};

use super::arrays::set_array;
use super::wishes::{Wishes, idle_seconds, insert_after, seconds};
use crate::data::TaskRow;
use crate::db::{Sql, Tx, query};
use crate::people::secrets::give;
use crate::{Store, StoreError, row};

/// A task to be made. It begins as a draft.
#[derive(Clone, Debug, Default)]
pub struct NewTask {
    /// Its id, made by the caller.
    pub id: String,
    /// Its name.
    pub name: String,
    /// ClearML's `type`.
    pub kind: String,
    /// Id of the user whose it is.
    pub owner: String,
    /// Id of its project; must exist.
    pub project: Option<String>,
    /// Id of the task that it was made from.
    pub parent: Option<String>,
    /// Id of the task in whose run it was made.
    pub made_by: Option<String>,
    /// Tags that users set.
    pub tags: Vec<String>,
    /// System tags.
    pub system_tags: Vec<String>,
    /// Its requests when it enters a queue.
    pub wishes: Wishes,
    /// Everything else.
    pub doc: Map<String, Value>,
}

/// New values of a task; `None` leaves the old one.
#[derive(Clone, Debug, Default)]
pub struct TaskEdit {
    /// Its name.
    pub name: Option<String>,
    /// ClearML's `type`.
    pub kind: Option<String>,
    /// Id of its project; must exist.
    pub project: Option<String>,
    /// Id of the task that it was made from.
    pub parent: Option<String>,
    /// Tags that users set.
    pub tags: Option<Vec<String>>,
    /// System tags.
    pub system_tags: Option<Vec<String>>,
    /// Why, for people.
    pub status_message: Option<String>,
    /// The new message asks the task's agent to stop it.
    pub stop_asked: bool,
    /// Why, for programs.
    pub status_reason: Option<String>,
    /// Members of `doc` to be replaced; `null` removes one.
    pub doc: Map<String, Value>,
}

impl Store {
    /// Makes a task.
    ///
    /// # Errors
    /// [`StoreError::NoProject`], [`StoreError::LongDocument`], [`StoreError::ManyDocuments`].
    pub async fn create_task(&self, new: &NewTask, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        self.insert(&mut write.tx, new, now_us).await?;
        write.commit().await
    }

    /// Makes tasks that have ended, each at its time: what a measurement begins with, and an import.
    ///
    /// # Errors
    /// [`StoreError::NoProject`].
    pub async fn create_ended(&self, new: &[(i64, NewTask)], status: TaskStatus) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for (now_us, new) in new {
            self.insert(&mut write.tx, new, *now_us).await?;
            let end = query("UPDATE tasks SET status = $2, started_us = $3, completed_us = $3 WHERE id = $1");
            end.bind(&new.id).bind(status.as_str()).bind(now_us).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// One task.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn task(&self, id: &str) -> Result<TaskRow, StoreError> {
        let found = query(select!(tasks, "WHERE id = $1")).bind(id).fetch_optional(&self.readers);
        found.await?.as_ref().map_or_else(|| Err(StoreError::NoTask(id.to_owned())), row::task)
    }

    /// Changes a task; with `drafts_only` only a draft.
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::NoProject`], [`StoreError::Status`]; those of its document.
    pub async fn edit_task(
        &self,
        id: &str,
        edit: &TaskEdit,
        drafts_only: bool,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load_whole(&mut write.tx, id).await?;
        if drafts_only && old.index.status != TaskStatus::Created {
            let (task, from) = (id.to_owned(), old.index.status);
            return Err(StoreError::Status { task, from, wanted: "changes without force".to_owned() });
        }
        project_must_exist(&mut write.tx, edit.project.as_deref()).await?;
        let mut doc = old.doc;
        for (key, value) in &edit.doc {
            if value.is_null() {
                doc.remove(key);
            } else {
                doc.insert(key.clone(), value.clone());
            }
        }
        let index = old.index;
        let tags = row::tags_to_json(edit.tags.as_ref().unwrap_or(&index.tags))?;
        let system_tags = row::tags_to_json(edit.system_tags.as_ref().unwrap_or(&index.system_tags))?;
        let doc = self.document(&mut write.tx, &old.owner, tags.len() + system_tags.len(), &doc).await?;
        // A request to stop stays until the agent handles it: a report of where the task runs must not overwrite it.
        let to_stop = index.status == TaskStatus::InProgress && old.stop_asked;
        let message = edit.status_message.as_ref().filter(|_| !to_stop);
        let stop_asked = if message.is_some() { edit.stop_asked } else { old.stop_asked };
        query(
            "UPDATE tasks SET name = $2, kind = $3, project = $4, parent = $5, tags = $6, system_tags = $7, \
             status_message = $8, status_reason = $9, last_update_us = $10, doc = $11, stop_asked = $12 \
             WHERE id = $1",
        )
        .bind(id)
        .bind(edit.name.as_ref().unwrap_or(&index.name))
        .bind(edit.kind.as_ref().unwrap_or(&index.kind))
        .bind(edit.project.as_ref().or(index.project.as_ref()))
        .bind(edit.parent.as_ref().or(index.parent.as_ref()))
        .bind(tags)
        .bind(system_tags)
        .bind(message.unwrap_or(&old.status_message))
        .bind(edit.status_reason.as_ref().unwrap_or(&old.status_reason))
        .bind(now_us)
        .bind(doc)
        .bind(i64::from(stop_asked))
        .execute(&mut write.tx)
        .await?;
        write.commit().await
    }

    /// Changes members of a task's `doc` with a function that sees the old ones, in one step.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; those of its document.
    pub async fn update_task_doc(
        &self,
        id: &str,
        now_us: i64,
        change: impl FnOnce(&mut Map<String, Value>) + Send,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load_whole(&mut write.tx, id).await?;
        let mut doc = old.doc;
        change(&mut doc);
        let doc = self.document(&mut write.tx, &old.owner, 0, &doc).await?;
        query("UPDATE tasks SET doc = $2, last_update_us = $3 WHERE id = $1")
            .bind(id)
            .bind(doc)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        write.commit().await
    }

    /// Records that a worker reported for tasks.
    ///
    /// # Errors
    /// Only if the database fails; unknown tasks are ignored.
    pub async fn touch_tasks(&self, ids: &[String], worker: &str, now_us: i64) -> Result<(), StoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut write = self.write_bulk().await?;
        let mut sql = Sql::new("UPDATE tasks SET last_worker = ");
        sql.push_bind(worker).push(", last_worker_report_us = ").push_bind(now_us);
        // In order: transactions that keep several tasks must not wait for each other.
        sql.push(" WHERE id IN (SELECT id FROM tasks WHERE 1 = 1");
        any_of(&mut sql, "id", ids);
        sql.push(self.kind.in_order("id")).push(")");
        sql.build().execute(&mut write.tx).await?;
        write.commit().await
    }

    /// Records that a task is alive.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn ping_task(&self, id: &str, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        let done = query(
            "UPDATE tasks SET last_update_us = $2, \
             last_worker_report_us = CASE WHEN last_worker IS NULL THEN NULL ELSE $2 END WHERE id = $1",
        )
        .bind(id)
        .bind(now_us)
        .execute(&mut write.tx)
        .await?;
        if done == 0 {
            return Err(StoreError::NoTask(id.to_owned()));
        }
        write.commit().await
    }
}

impl Store {
    /// Makes a task inside a write.
    pub(crate) async fn insert(&self, tx: &mut Tx, new: &NewTask, now_us: i64) -> Result<(), StoreError> {
        project_must_exist(&mut *tx, new.project.as_deref()).await?;
        let tags = row::tags_to_json(&new.tags)?;
        let system_tags = row::tags_to_json(&new.system_tags)?;
        let doc = self.document(tx, &new.owner, tags.len() + system_tags.len(), &new.doc).await?;
        query(
            "INSERT INTO tasks (id, name, kind, status, project, parent, tags, system_tags, status_reason, \
             status_message, created_us, last_update_us, status_changed_us, last_iteration, slices, doc, owner, \
             made_by, time_limit_s, idle_limit_s) \
             VALUES ($1, $2, $3, 'created', $4, $5, $6, $7, '', '', $8, $8, $8, 0, '[]', $9, $10, $11, $12, $13)",
        )
        .bind(&new.id)
        .bind(&new.name)
        .bind(&new.kind)
        .bind(&new.project)
        .bind(&new.parent)
        .bind(tags)
        .bind(system_tags)
        .bind(now_us)
        .bind(doc)
        .bind(&new.owner)
        .bind(&new.made_by)
        .bind(seconds(new.wishes.time))
        .bind(idle_seconds(new.wishes.idle))
        .execute(&mut *tx)
        .await?;
        insert_after(tx, &new.id, &new.wishes.after).await?;
        if !new.wishes.secrets.is_empty() {
            give(tx, &new.id, &new.wishes.secrets).await?;
        }
        match &new.wishes.array {
            None => Ok(()),
            array => set_array(tx, &new.id, array.as_ref()).await,
        }
    }
}

/// ` AND column IN (…)`, or nothing for no values. `column` is a literal of this crate, never input.
pub(crate) fn any_of(sql: &mut Sql, column: &str, values: &[String]) {
    if values.is_empty() {
        return;
    }
    sql.push(format_args!(" AND {column} IN ("));
    let mut list = sql.separated(", ");
    for value in values {
        list.push_bind(value.clone());
    }
    sql.push(")");
}

/// Reads a task inside a write, without what clients keep in it: that may be long.
pub(crate) async fn load(tx: &mut Tx, id: &str) -> Result<TaskRow, StoreError> {
    let sql = concat!("SELECT ", columns!(tasks_without_doc), " FROM tasks WHERE id = $1");
    let on_postgres =
        concat!("SELECT ", columns!(tasks_without_doc), columns!(version), " FROM tasks WHERE id = $1");
    let found = query(sql).on_postgres(on_postgres).for_update().bind(id).fetch_task(tx).await?;
    found.as_ref().map_or_else(|| Err(StoreError::NoTask(id.to_owned())), row::task)
}

/// Reads a whole task inside a write.
pub(crate) async fn load_whole(tx: &mut Tx, id: &str) -> Result<TaskRow, StoreError> {
    let found = query(select!(tasks, "WHERE id = $1")).for_update().bind(id).fetch_optional(tx).await?;
    found.as_ref().map_or_else(|| Err(StoreError::NoTask(id.to_owned())), row::task)
}

async fn project_must_exist(tx: &mut Tx, id: Option<&str>) -> Result<(), StoreError> {
    let Some(id) = id else {
        return Ok(());
    };
    let found =
        query("SELECT id FROM projects WHERE id = $1").for_share().bind(id).fetch_optional(tx).await?;
    if found.is_some() { Ok(()) } else { Err(StoreError::NoProject(id.to_owned())) }
}
