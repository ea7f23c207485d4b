//! The state of each GPU over time, for accounts. The times of a GPU follow each other without a gap from its first report on.

use crate::db::query;
use crate::{Store, StoreError, row};

/// A time of a GPU. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTimeRow {
    /// UUID of the GPU.
    pub gpu: String,
    /// When it began.
    pub from_us: i64,
    /// When it ended; `None`: it lasts.
    pub to_us: Option<i64>,
    /// The node that had the GPU.
    pub node: String,
    /// Product name of the GPU.
    pub model: String,
    /// Names of the pools that it belonged to, with commas, in order.
    pub pools: String,
    /// `here`, `faulty` or `away`.
    pub state: String,
}

impl Store {
    /// The times that last; of one node, if it is named.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn lasting_gpu_times(&self, node: Option<&str>) -> Result<Vec<GpuTimeRow>, StoreError> {
        let rows = match node {
            Some(node) => query(select!(gpu_times, "WHERE to_us IS NULL AND node = $1")).bind(node),
            None => query(select!(gpu_times, "WHERE to_us IS NULL")),
        };
        rows.fetch_all(&self.readers).await?.iter().map(row::gpu_time).collect()
    }

    /// The times that overlap these, by GPU and beginning.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn gpu_times(&self, from_us: i64, to_us: i64) -> Result<Vec<GpuTimeRow>, StoreError> {
        let rows = query(select!(
            gpu_times,
            "WHERE from_us < $2 AND (to_us IS NULL OR to_us > $1) ORDER BY gpu, from_us"
        ));
        let rows = rows.bind(from_us).bind(to_us).fetch_all(&self.readers).await?;
        rows.iter().map(row::gpu_time).collect()
    }

    /// Begins these times and ends those that lasted until then. A time that would begin before the one that lasts, because the
    /// clock was set back, begins a microsecond after it.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn begin_gpu_times(&self, new: &[GpuTimeRow]) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        for time in new {
            let ended = "UPDATE gpu_times SET to_us = CASE WHEN from_us < $2 THEN $2 ELSE from_us + 1 END \
                 WHERE gpu = $1 AND to_us IS NULL";
            query(ended).bind(&time.gpu).bind(time.from_us).execute(&mut write.tx).await?;
            let begun = "INSERT INTO gpu_times (gpu, from_us, node, model, pools, state) \
                 SELECT $1, COALESCE(MAX(to_us), $2), $3, $4, $5, $6 FROM gpu_times WHERE gpu = $1";
            query(begun)
                .bind(&time.gpu)
                .bind(time.from_us)
                .bind(&time.node)
                .bind(&time.model)
                .bind(&time.pools)
                .bind(&time.state)
                .execute(&mut write.tx)
                .await?;
        }
        write.commit().await
    }
}
