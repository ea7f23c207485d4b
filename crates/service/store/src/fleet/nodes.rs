//! Nodes with cantle's agent.

use crate::data::NodeRow;
use crate::db::query;
use crate::{Store, StoreError, row};

impl Store {
    /// Keeps a node's newest report.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn report_node(&self, new: &NodeRow) -> Result<(), StoreError> {
        let mut write = self.write_bulk().await?;
        query(
            "INSERT INTO nodes (node, last_seen_us, interval_ms, report) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (node) DO UPDATE SET last_seen_us = $2, interval_ms = $3, report = $4",
        )
        .bind(&new.node)
        .bind(new.last_seen_us)
        .bind(new.interval_ms)
        .bind(&new.report)
        .execute(&mut write.tx)
        .await?;
        write.commit().await
    }

    /// All nodes that ever reported, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn nodes(&self) -> Result<Vec<NodeRow>, StoreError> {
        let rows = query(select!(nodes, "ORDER BY node")).fetch_all(&self.readers).await?;
        rows.iter().map(row::node).collect()
    }
}
