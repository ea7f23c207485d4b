//! Whose tasks and models are: what a right is decided by, and nothing else.

use cantle_model::TaskStatus;
use serde_json::{Map, Value};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite};

use crate::data::{ModelRow, ProjectRow};
use crate::tasks::any_of;
use crate::{Scope, Store, StoreError, row};

/// A task or a model, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Its id.
    pub id: String,
    /// Id of its user.
    pub owner: String,
    /// Name of its project.
    pub project: Option<String>,
    /// Of a task: its state.
    pub status: Option<TaskStatus>,
    /// Of a task: the node that holds or held it, or the worker that reported for it last.
    pub held_by: Option<String>,
}

impl Store {
    /// Those of these tasks that exist.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn owned_tasks(&self, ids: &[String]) -> Result<Vec<Owned>, StoreError> {
        let mut sql = QueryBuilder::<Sqlite>::new(
            "SELECT tasks.id, tasks.owner, projects.name AS project, tasks.status, \
             COALESCE(tasks.node, tasks.last_worker) AS held_by \
             FROM tasks LEFT JOIN projects ON projects.id = tasks.project WHERE 1 = 1",
        );
        any_of(&mut sql, "tasks.id", ids);
        let read = |found: &SqliteRow| {
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
        let mut sql = QueryBuilder::<Sqlite>::new(
            "SELECT models.id, models.owner, projects.name AS project \
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
        let mut sql = QueryBuilder::<Sqlite>::new("SELECT tasks.doc FROM tasks WHERE 1 = 1");
        any_of(&mut sql, "tasks.id", ids);
        sql.build().fetch_all(&self.readers).await?.iter().map(|found| row::json(found, "doc")).collect()
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
        let mut sql = QueryBuilder::<Sqlite>::new(select!(models, "WHERE 1 = 1"));
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
        let mut sql = QueryBuilder::<Sqlite>::new(select!(projects, "WHERE 1 = 1"));
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
        let mut sql = QueryBuilder::<Sqlite>::new(
            "SELECT tasks.id FROM tasks WHERE tasks.status IN ('queued', 'in_progress')",
        );
        scope.of_tasks(&mut sql);
        Ok(sql.build_query_scalar().fetch_all(&self.readers).await?)
    }
}

fn owned(row: &SqliteRow) -> Result<Owned, StoreError> {
    Ok(Owned {
        id: row.try_get("id")?,
        owner: row.try_get("owner")?,
        project: row.try_get("project")?,
        status: None,
        held_by: None,
    })
}
