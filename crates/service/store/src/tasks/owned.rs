//! The owners of tasks and models: only the fields that decide on a right.

use cantle_model::TaskStatus;
use serde_json::{Map, Value};

use super::documents::sized;
use super::record::any_of;
use crate::data::ProjectRow;
use crate::db::{Row, Sql, query};
use crate::output::models::ModelRow;
use crate::{Scope, Store, StoreError, row};

/// A task or a model, with its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its id.
    pub id: String,
    /// Id of its user.
    pub owner: String,
    /// Name of its project.
    pub project: Option<String>,
    /// Id of the task in whose run it was made.
    pub made_by: Option<String>,
    /// Of a task: its state.
    pub status: Option<TaskStatus>,
    /// Of a task: the node that holds or held it, or the worker that reported for it last.
    pub held_by: Option<String>,
}

/// A task with its parameters and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithParams {
    /// Its id.
    pub id: String,
    /// Id of its user.
    pub owner: String,
    /// Name of its project.
    pub project: Option<String>,
    /// The fields that have no column, parameters among them.
    pub doc: Map<String, Value>,
}

/// The lease that holds a task, and the time when its process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// The lease.
    pub lease: String,
    /// The state of the task.
    pub status: TaskStatus,
    /// The node has reported how the process ended.
    pub has_exited: bool,
    /// When the task ended.
    pub completed_us: Option<i64>,
}

impl Store {
    /// The lease that holds a task, or held it last; `None`: no lease ever did, or there is no such task.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn holder(&self, task: &str) -> Result<Option<LeaseHolder>, StoreError> {
        let found = query("SELECT lease, status, exit_code, completed_us FROM tasks WHERE id = $1");
        let Some(row) = found.bind(task).fetch_optional(&self.readers).await? else { return Ok(None) };
        let Some(lease) = row.try_get("lease")? else { return Ok(None) };
        Ok(Some(LeaseHolder {
            lease,
            status: row::status(&row)?,
            has_exited: row.try_get::<Option<i64>, _>("exit_code")?.is_some(),
            completed_us: row.try_get("completed_us")?,
        }))
    }

    /// Those of these tasks that exist.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn owned_tasks(&self, ids: &[String]) -> Result<Vec<Owned>, StoreError> {
        // No ids are no condition elsewhere; here they are no objects.
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = Sql::new(
            "SELECT tasks.id, tasks.owner, projects.name AS project, tasks.made_by, tasks.status, \
             COALESCE(tasks.node, tasks.last_worker) AS held_by \
             FROM tasks LEFT JOIN projects ON projects.id = tasks.project WHERE 1 = 1",
        );
        any_of(&mut sql, "tasks.id", ids);
        let read = |found: &Row| {
            Ok(Owned {
                status: Some(row::status(found)?),
                held_by: found.try_get("held_by")?,
                ..owned(found)?
            })
        };
        sql.build().fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// Those of these models that exist.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn owned_models(&self, ids: &[String]) -> Result<Vec<Owned>, StoreError> {
        // No ids are no condition elsewhere; here they are no objects.
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = Sql::new(
            "SELECT models.id, models.owner, projects.name AS project, models.task AS made_by \
             FROM models LEFT JOIN projects ON projects.id = models.project WHERE 1 = 1",
        );
        any_of(&mut sql, "models.id", ids);
        sql.build().fetch_all(&self.readers).await?.iter().map(owned).collect()
    }

    /// The parameters of tasks.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn params_of_tasks(&self, ids: &[String]) -> Result<Vec<Map<String, Value>>, StoreError> {
        // No ids are no condition elsewhere; here they are no objects.
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = Sql::new("SELECT tasks.doc FROM tasks WHERE 1 = 1");
        any_of(&mut sql, "tasks.id", ids);
        sql.build().fetch_all(&self.readers).await?.iter().map(|found| row::json(found, "doc")).collect()
    }

    /// Those of these tasks that exist, with their parameters.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn tasks_with_params(&self, ids: &[String]) -> Result<Vec<WithParams>, StoreError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut sql = Sql::new(
            "SELECT tasks.id, tasks.owner, projects.name AS project, tasks.doc \
             FROM tasks LEFT JOIN projects ON projects.id = tasks.project WHERE 1 = 1",
        );
        any_of(&mut sql, "tasks.id", ids);
        let read = |found: &Row| {
            Ok(WithParams {
                id: found.try_get("id")?,
                owner: found.try_get("owner")?,
                project: found.try_get("project")?,
                doc: row::json(found, "doc")?,
            })
        };
        sql.build().fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// The ids of tasks that begin like this, in their order.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn task_ids_from(&self, beginning: &str, limit: i64) -> Result<Vec<String>, StoreError> {
        // Behind all hex digits.
        let end = format!("{beginning}g");
        let mut sql = Sql::new("SELECT id FROM tasks WHERE id >= ");
        sql.push_bind(beginning.to_owned()).push(" AND id < ").push_bind(end);
        sql.push(" ORDER BY id LIMIT ").push_bind(limit);
        Ok(sql.build_scalar().fetch_all(&self.readers).await?)
    }

    /// Whether a task, perhaps a deleted one, had this id: there are runs or events of it.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn was_task(&self, id: &str) -> Result<bool, StoreError> {
        for sql in [
            "SELECT task FROM runs WHERE task = $1 LIMIT 1",
            "SELECT task FROM happenings WHERE task = $1 LIMIT 1",
        ] {
            if query(sql).bind(id).fetch_optional(&self.readers).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The ids of the models that [`Store::models_seen`] finds, in its order, with the bytes of their documents.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn model_sizes_seen(
        &self,
        ids: &[String],
        tasks: &[String],
        scope: Option<&Scope>,
    ) -> Result<Vec<(String, usize)>, StoreError> {
        let mut sql =
            Sql::new("SELECT id, CAST(octet_length(doc) AS BIGINT) AS bytes FROM models WHERE 1 = 1");
        any_of(&mut sql, "id", ids);
        any_of(&mut sql, "task", tasks);
        if let Some(scope) = scope {
            scope.of_owned(&mut sql, "models");
        }
        sql.push(" ORDER BY created_us DESC, id");
        sized(&sql.build().fetch_all(&self.readers).await?)
    }

    /// As [`Store::models`], but only what may be seen.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn models_seen(
        &self,
        ids: &[String],
        tasks: &[String],
        scope: Option<&Scope>,
    ) -> Result<Vec<ModelRow>, StoreError> {
        let mut sql = Sql::new(select!(models, "WHERE 1 = 1"));
        any_of(&mut sql, "id", ids);
        any_of(&mut sql, "task", tasks);
        if let Some(scope) = scope {
            scope.of_owned(&mut sql, "models");
        }
        sql.push(" ORDER BY created_us DESC, id");
        sql.build().fetch_all(&self.readers).await?.iter().map(row::model).collect()
    }

    /// As [`Store::projects`], but only what may be seen.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn projects_seen(&self, scope: Option<&Scope>) -> Result<Vec<ProjectRow>, StoreError> {
        let mut sql = Sql::new(select!(projects, "WHERE 1 = 1"));
        if let Some(scope) = scope {
            scope.of_projects(&mut sql);
        }
        sql.push(" ORDER BY name");
        sql.build().fetch_all(&self.readers).await?.iter().map(row::project).collect()
    }

    /// The ids of waiting and running tasks that may be seen.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn active_seen(&self, scope: &Scope) -> Result<Vec<String>, StoreError> {
        let mut sql = Sql::new("SELECT tasks.id FROM tasks WHERE tasks.status IN ('queued', 'in_progress')");
        scope.of_tasks(&mut sql);
        Ok(sql.build_scalar().fetch_all(&self.readers).await?)
    }
}

fn owned(row: &Row) -> Result<Owned, StoreError> {
    Ok(Owned {
        id: row.try_get("id")?,
        owner: row.try_get("owner")?,
        project: row.try_get("project")?,
        made_by: row.try_get("made_by")?,
        status: None,
        held_by: None,
    })
}
