//! The lines of charts. The server thins them out; the store keeps them across restarts.

use crate::data::ChartRow;
use crate::db::{Row, query};
use crate::{Store, StoreError};

impl Store {
    /// All lines that were saved.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn charts(&self) -> Result<Vec<ChartRow>, StoreError> {
        let rows = query(select!(charts, "ORDER BY kind, id")).fetch_all(&self.readers).await?;
        let read = |row: &Row| {
            Ok(ChartRow { kind: row.try_get("kind")?, id: row.try_get("id")?, line: row.try_get("line")? })
        };
        rows.iter().map(read).collect()
    }

    /// Saves these lines, replaces their former content, and deletes those that are `gone` (kind and id).
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn save_charts(
        &self,
        changed: &[ChartRow],
        gone: &[(String, String)],
    ) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        for (kind, id) in gone {
            let delete = query("DELETE FROM charts WHERE kind = $1 AND id = $2");
            delete.bind(kind).bind(id).execute(&mut write.tx).await?;
        }
        for ChartRow { kind, id, line } in changed {
            let save = query(
                "INSERT INTO charts (kind, id, line) VALUES ($1, $2, $3) \
                 ON CONFLICT (kind, id) DO UPDATE SET line = $3",
            );
            save.bind(kind).bind(id).bind(line).execute(&mut write.tx).await?;
        }
        write.commit().await
    }
}
