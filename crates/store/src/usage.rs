//! What projects have used of the GPUs, decayed up to when it was last counted.

use sqlx::Row as _;

use crate::data::ProjectUse;
use crate::{Store, StoreError};

impl Store {
    /// What each project's own tasks have used, those below it not included.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn project_use(&self) -> Result<Vec<ProjectUse>, StoreError> {
        let rows = sqlx::query(select!(project_use, "ORDER BY project")).fetch_all(&self.readers).await?;
        let read = |row: &sqlx::sqlite::SqliteRow| {
            let (project, used) = (row.try_get("project")?, row.try_get("used")?);
            Ok(ProjectUse { project, used, as_of_us: row.try_get("as_of_us")? })
        };
        rows.iter().map(read).collect()
    }

    /// Replaces all of it.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_project_use(&self, uses: &[ProjectUse]) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        sqlx::query("DELETE FROM project_use").execute(&mut *write.tx).await?;
        for ProjectUse { project, used, as_of_us } in uses {
            sqlx::query("INSERT INTO project_use (project, used, as_of_us) VALUES ($1, $2, $3)")
                .bind(project)
                .bind(used)
                .bind(as_of_us)
                .execute(&mut *write.tx)
                .await?;
        }
        write.commit().await
    }
}
