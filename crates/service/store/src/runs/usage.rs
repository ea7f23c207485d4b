//! The GPU time that projects have used, decayed up to the last count.

use crate::data::ProjectUse;
use crate::db::{Row, query};
use crate::{Store, StoreError};

impl Store {
    /// The past use of each project's own tasks, without the projects below it.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn project_use(&self) -> Result<Vec<ProjectUse>, StoreError> {
        let rows = query(select!(project_use, "ORDER BY project")).fetch_all(&self.readers).await?;
        let read = |row: &Row| {
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
        query("DELETE FROM project_use").execute(&mut write.tx).await?;
        for ProjectUse { project, used, as_of_us } in uses {
            query(
                "INSERT INTO project_use (project, used, as_of_us) VALUES ($1, $2, $3) \
                 ON CONFLICT (project) DO UPDATE SET used = $2, as_of_us = $3",
            )
            .bind(project)
            .bind(used)
            .bind(as_of_us)
            .execute(&mut write.tx)
            .await?;
        }
        write.commit().await
    }
}
