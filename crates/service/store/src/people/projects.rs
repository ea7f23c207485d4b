//! Projects.

use serde_json::{Map, Value};

use super::users::changed;
use crate::data::ProjectRow;
use crate::db::{Tx, query};
use crate::{Store, StoreError, row};

impl Store {
    /// Makes a project.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub async fn create_project(&self, new: &ProjectRow) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let done = query(
            "INSERT INTO projects (id, name, description, created_us, last_update_us, doc) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name) DO NOTHING",
        )
        .bind(&new.id)
        .bind(&new.name)
        .bind(&new.description)
        .bind(new.created_us)
        .bind(new.last_update_us)
        .bind(row::to_json(&new.doc)?)
        .execute(&mut write.tx)
        .await?;
        if done == 0 {
            return Err(StoreError::NameTaken { what: "project", name: new.name.clone() });
        }
        write.commit().await
    }

    /// All projects, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn projects(&self) -> Result<Vec<ProjectRow>, StoreError> {
        let rows = query(select!(projects, "ORDER BY name")).fetch_all(&self.readers).await?;
        rows.iter().map(row::project).collect()
    }

    /// One project.
    ///
    /// # Errors
    /// [`StoreError::NoProject`].
    pub async fn project(&self, id: &str) -> Result<ProjectRow, StoreError> {
        let found = query(select!(projects, "WHERE id = $1")).bind(id);
        let found = found.fetch_optional(&self.readers).await?;
        found.as_ref().map_or_else(|| Err(StoreError::NoProject(id.to_owned())), row::project)
    }

    /// Changes a project's name, description and members of its `doc`. The roles in it go with a new name.
    ///
    /// # Errors
    /// [`StoreError::NoProject`], [`StoreError::NameTaken`].
    pub async fn update_project(
        &self,
        id: &str,
        name: Option<&str>,
        description: Option<&str>,
        doc: Map<String, Value>,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query(select!(projects, "WHERE id = $1")).for_change().bind(id);
        let found = found.fetch_optional(&mut write.tx).await?;
        let Some(old) = found.as_ref().map(row::project).transpose()? else {
            return Err(StoreError::NoProject(id.to_owned()));
        };
        let name = name.unwrap_or(&old.name);
        let taken = query("SELECT id FROM projects WHERE name = $1 AND id <> $2").bind(name).bind(id);
        if taken.fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::NameTaken { what: "project", name: name.to_owned() });
        }
        let mut merged = old.doc;
        merged.extend(doc);
        query("UPDATE projects SET name = $2, description = $3, doc = $4, last_update_us = $5 WHERE id = $1")
            .bind(id)
            .bind(name)
            .bind(description.unwrap_or(&old.description))
            .bind(row::to_json(&merged)?)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        if name != old.name {
            let carry = "INSERT INTO user_grants (subject, project, role) \
                 SELECT subject, $2, role FROM user_grants WHERE project = $1 ON CONFLICT DO NOTHING";
            query(carry).bind(&old.name).bind(name).execute(&mut write.tx).await?;
            take_roles_away(&mut write.tx, &old.name).await?;
        }
        write.commit().await
    }

    /// Deletes a project, and the roles in it: a later project of that name is another one. With `force` its tasks lose their
    /// project.
    ///
    /// # Errors
    /// [`StoreError::NoProject`], [`StoreError::ProjectHasTasks`].
    pub async fn delete_project(&self, id: &str, force: bool) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let has_tasks = query("SELECT id FROM tasks WHERE project = $1 LIMIT 1").bind(id);
        if !force && has_tasks.fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::ProjectHasTasks(id.to_owned()));
        }
        let leave = query("UPDATE tasks SET project = NULL WHERE project = $1").bind(id);
        leave.execute(&mut write.tx).await?;
        let name = query("SELECT name FROM projects WHERE id = $1").for_change().bind(id);
        let Some(row) = name.fetch_optional(&mut write.tx).await? else {
            return Err(StoreError::NoProject(id.to_owned()));
        };
        let name: String = row.try_get("name")?;
        query("DELETE FROM projects WHERE id = $1").bind(id).execute(&mut write.tx).await?;
        take_roles_away(&mut write.tx, &name).await?;
        write.commit().await
    }
}

/// Removes all roles in the project of this name.
async fn take_roles_away(tx: &mut Tx, project: &str) -> Result<(), StoreError> {
    query("DELETE FROM user_grants WHERE project = $1").bind(project).execute(&mut *tx).await?;
    changed(tx).await
}
