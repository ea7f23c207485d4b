//! The existing values of fields, which the filters of a web page offer. Each statement reads every task of the
//! projects once.

use super::record::any_of;
use crate::db::Sql;
use crate::{Scope, Store, StoreError};

/// A place in tasks that holds one of several values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskValue {
    /// Their type.
    Kind,
    /// A tag that users set.
    Tag,
    /// A system tag.
    SystemTag,
}

/// A task that others were made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentTask {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its project.
    pub project: Option<String>,
}

impl Store {
    /// All values of a kind that tasks of these projects have, in order; an empty list is all projects.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn task_values(
        &self,
        value: TaskValue,
        projects: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let mut sql = match value {
            TaskValue::Kind => Sql::new("SELECT DISTINCT kind FROM tasks WHERE 1 = 1"),
            TaskValue::Tag => self.each_of("tags"),
            TaskValue::SystemTag => self.each_of("system_tags"),
        };
        any_of(&mut sql, "project", projects);
        sql.push(" ORDER BY 1");
        Ok(sql.build_scalar().fetch_all(&self.readers).await?)
    }

    fn each_of(&self, column: &str) -> Sql {
        let elements = self.kind.elements(&format!("tasks.{column}"));
        Sql::new(format!("SELECT DISTINCT value FROM tasks, {elements} WHERE {column} <> '[]'"))
    }

    /// Sections and names of all hyperparameters that tasks of these projects have.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn param_names(&self, projects: &[String]) -> Result<Vec<(String, String)>, StoreError> {
        let mut sql = Sql::new("SELECT DISTINCT section.key, param.key FROM tasks, ");
        sql.push(self.kind.sections_and_params()).push(" WHERE 1 = 1");
        any_of(&mut sql, "project", projects);
        sql.push(" ORDER BY 1, 2");
        Ok(sql.build_as().fetch_all(&self.readers).await?)
    }

    /// All values of one hyperparameter.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn param_values(
        &self,
        section: &str,
        name: &str,
        projects: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let doc = self.kind.json("doc");
        let mut sql =
            Sql::new(format!("SELECT DISTINCT found FROM (SELECT project, {doc} -> 'hyperparams' -> "));
        sql.push_bind(section).push(" -> ").push_bind(name);
        sql.push(" ->> 'value' AS found FROM tasks) AS params WHERE found IS NOT NULL");
        any_of(&mut sql, "project", projects);
        sql.push(" ORDER BY 1");
        Ok(sql.build_scalar().fetch_all(&self.readers).await?)
    }

    /// Graphs and lines that tasks of these projects measured.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn lines_of(&self, projects: &[String]) -> Result<Vec<(String, String)>, StoreError> {
        if projects.is_empty() {
            return self.scalar_lines().await;
        }
        let mut sql = Sql::new(
            "SELECT DISTINCT metric, variant FROM latest_scalars JOIN tasks ON tasks.id = latest_scalars.task WHERE 1 = 1",
        );
        any_of(&mut sql, "tasks.project", projects);
        sql.push(" ORDER BY 1, 2");
        Ok(sql.build_as().fetch_all(&self.readers).await?)
    }

    /// Tasks that tasks of these projects were made from.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn parents_of(
        &self,
        projects: &[String],
        scope: Option<&Scope>,
    ) -> Result<Vec<ParentTask>, StoreError> {
        let mut sql = Sql::new(
            "SELECT DISTINCT parent.id, parent.name, parent.project FROM tasks \
             JOIN tasks parent ON parent.id = tasks.parent WHERE 1 = 1",
        );
        any_of(&mut sql, "tasks.project", projects);
        if let Some(scope) = scope {
            scope.of_owned(&mut sql, "parent");
        }
        sql.push(" ORDER BY 2, 1");
        let rows: Vec<(String, String, Option<String>)> = sql.build_as().fetch_all(&self.readers).await?;
        Ok(rows.into_iter().map(|(id, name, project)| ParentTask { id, name, project }).collect())
    }

    /// How many tasks these projects have, and how many of them are not archived.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn count_tasks(&self, projects: &[String]) -> Result<(i64, i64), StoreError> {
        let place = self.kind.place();
        let mut sql = Sql::new(format!(
            "SELECT COUNT(*), COALESCE(SUM(CASE WHEN {place}(system_tags, '\"archived\"') = 0 THEN 1 ELSE 0 END), 0) \
             FROM tasks WHERE 1 = 1"
        ));
        any_of(&mut sql, "project", projects);
        Ok(sql.build_as().fetch_one(&self.readers).await?)
    }

    /// Moves tasks and models to another project, all that are in these projects. Returns how many there were.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn move_all(&self, projects: &[String], to: &str) -> Result<u64, StoreError> {
        let mut write = self.write().await?;
        let mut moved = 0;
        for table in ["tasks", "models"] {
            let mut sql = Sql::new(format!("UPDATE {table} SET project = "));
            sql.push_bind(to.to_owned()).push(" WHERE 1 = 1");
            any_of(&mut sql, "project", projects);
            moved += sql.build().execute(&mut write.tx).await?;
        }
        write.commit().await?;
        Ok(moved)
    }
}
