//! Trained models: ClearML's registry entries, not the files.

use serde_json::{Map, Value};

use crate::db::{Sql, query};
use crate::tasks::record::any_of;
use crate::{Store, StoreError, row};

/// A trained model.
#[derive(Clone, Debug)]
pub struct ModelRow {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// The task that made it.
    pub task: Option<String>,
    /// Its project.
    pub project: Option<String>,
    /// Id of the user whose it is.
    pub owner: String,
    /// When it was made.
    pub created_us: i64,
    /// Last change.
    pub last_update_us: i64,
    /// Everything else.
    pub doc: Map<String, Value>,
}

impl Store {
    /// Makes a model.
    ///
    /// # Errors
    /// [`StoreError::LongDocument`], [`StoreError::ManyDocuments`].
    pub async fn create_model(&self, new: &ModelRow) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let doc = self.document(&mut write.tx, &new.owner, 0, &new.doc).await?;
        query(
            "INSERT INTO models (id, name, task, project, created_us, last_update_us, doc, owner) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
        )
        .bind(&new.id)
        .bind(&new.name)
        .bind(&new.task)
        .bind(&new.project)
        .bind(new.created_us)
        .bind(new.last_update_us)
        .bind(doc)
        .bind(&new.owner)
        .execute(&mut write.tx)
        .await?;
        write.commit().await
    }

    /// One model.
    ///
    /// # Errors
    /// [`StoreError::NoModel`].
    pub async fn model(&self, id: &str) -> Result<ModelRow, StoreError> {
        let found = query(select!(models, "WHERE id = $1")).bind(id);
        let found = found.fetch_optional(&self.readers).await?;
        found.as_ref().map_or_else(|| Err(StoreError::NoModel(id.to_owned())), row::model)
    }

    /// Models, newest first: with one of these ids, of one of these tasks; an empty list is no condition.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn models(&self, ids: &[String], tasks: &[String]) -> Result<Vec<ModelRow>, StoreError> {
        let mut sql = Sql::new(select!(models, "WHERE 1 = 1"));
        any_of(&mut sql, "id", ids);
        any_of(&mut sql, "task", tasks);
        sql.push(" ORDER BY created_us DESC, id");
        sql.build().fetch_all(&self.readers).await?.iter().map(row::model).collect()
    }

    /// Changes a model's name, project, task and members of its `doc`.
    ///
    /// # Errors
    /// [`StoreError::NoModel`]; those of its document.
    pub async fn update_model(
        &self,
        id: &str,
        name: Option<&str>,
        project: Option<&str>,
        task: Option<&str>,
        doc: Map<String, Value>,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query(select!(models, "WHERE id = $1")).for_change().bind(id);
        let found = found.fetch_optional(&mut write.tx).await?;
        let Some(old) = found.as_ref().map(row::model).transpose()? else {
            return Err(StoreError::NoModel(id.to_owned()));
        };
        let mut merged = old.doc;
        merged.extend(doc);
        let merged = self.document(&mut write.tx, &old.owner, 0, &merged).await?;
        let set = "UPDATE models SET name = $2, project = $3, task = $4, doc = $5, last_update_us = $6 WHERE id = $1";
        query(set)
            .bind(id)
            .bind(name.unwrap_or(&old.name))
            .bind(project.or(old.project.as_deref()))
            .bind(task.or(old.task.as_deref()))
            .bind(merged)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        write.commit().await
    }

    /// Deletes a model's entry.
    ///
    /// # Errors
    /// [`StoreError::NoModel`].
    pub async fn delete_model(&self, id: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let done = query("DELETE FROM models WHERE id = $1").bind(id).execute(&mut write.tx).await?;
        if done == 0 {
            return Err(StoreError::NoModel(id.to_owned()));
        }
        write.commit().await
    }
}
