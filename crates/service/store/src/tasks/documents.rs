//! The documents of tasks and models: what clients keep with them and no column holds. They are bounded, one by one and all of a
//! user's together, because each list may have to read them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;

use super::record::any_of;
use crate::db::{Row, Sql, Tx, query_scalar};
use crate::{Store, StoreError, row};

/// The most bytes of one document, as JSON.
pub const DOCUMENT_BYTES: usize = 4 << 20;
/// A document up to this many bytes is small: a user may have any number of them.
const SMALL_BYTES: usize = 64 << 10;
/// The most bytes of a user's documents that are not small.
const OF_USER_BYTES: u64 = 4 << 30;
/// For how long a sum is carried on before it is made from the tables again.
const KEPT: Duration = Duration::from_secs(60);

/// The sizes of the documents that users have kept, and the limit.
#[derive(Debug)]
pub(crate) struct Documents {
    most: u64,
    /// The sums, and when they were made. Documents that were added since are in them, those that were removed are not.
    sums: Mutex<BTreeMap<String, (u64, Instant)>>,
}

impl Default for Documents {
    fn default() -> Self {
        Self { most: OF_USER_BYTES, sums: Mutex::default() }
    }
}

impl Documents {
    /// Counts a document if the sum is new enough, and there is room. Otherwise the sum has to be made.
    fn add(&self, owner: &str, bytes: u64) -> bool {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.retain(|_, (_, since)| since.elapsed() < KEPT);
        let Some((sum, _)) = sums.get_mut(owner).filter(|(sum, _)| sum.saturating_add(bytes) <= self.most)
        else {
            return false;
        };
        *sum += bytes;
        true
    }

    fn set(&self, owner: &str, sum: u64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.insert(owner.to_owned(), (sum, Instant::now()));
    }
}

impl Store {
    /// Another limit of the documents above 64 KiB that each user may have, in bytes.
    #[must_use]
    pub fn with_documents_up_to(mut self, bytes: u64) -> Self {
        self.documents.most = bytes;
        self
    }

    /// The text of a document that is about to be written, if it is not too long and its owner has room for it. `tags` are the
    /// bytes of the tags next to it.
    pub(crate) async fn document(
        &self,
        tx: &mut Tx,
        owner: &str,
        tags: usize,
        doc: &Map<String, Value>,
    ) -> Result<String, StoreError> {
        let text = row::to_json(doc)?;
        let length = text.len().saturating_add(tags);
        if length > DOCUMENT_BYTES {
            return Err(StoreError::LongDocument { bytes: length, most: DOCUMENT_BYTES });
        }
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if text.len() <= SMALL_BYTES || self.documents.add(owner, bytes) {
            return Ok(text);
        }
        let sum = large_documents(tx, owner).await?;
        let most = self.documents.most;
        if sum.saturating_add(bytes) > most {
            return Err(StoreError::ManyDocuments { owner: owner.to_owned(), sum, most });
        }
        self.documents.set(owner, sum + bytes);
        Ok(text)
    }

    /// How long the documents of these tasks are, in bytes; in no order, and without what is not there.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn document_sizes(&self, tasks: &[String]) -> Result<BTreeMap<String, usize>, StoreError> {
        let mut sql = Sql::new(
            "SELECT id, CAST(octet_length(doc) + octet_length(tags) AS BIGINT) AS bytes FROM tasks WHERE 1 = 1",
        );
        any_of(&mut sql, "id", tasks);
        Ok(sized(&sql.build().fetch_all(&self.readers).await?)?.into_iter().collect())
    }
}

/// The ids and sizes in rows of `id` and `bytes`.
pub(crate) fn sized(rows: &[Row]) -> Result<Vec<(String, usize)>, StoreError> {
    let size = |row: &Row| {
        let bytes: i64 = row.try_get("bytes")?;
        Ok((row.try_get("id")?, usize::try_from(bytes).unwrap_or(0)))
    };
    rows.iter().map(size).collect()
}

/// The sum of a user's documents that are not small.
async fn large_documents(tx: &mut Tx, owner: &str) -> Result<u64, StoreError> {
    // The length of a text is known without reading it.
    let mut sum = 0_u64;
    for sql in [
        "SELECT CAST(COALESCE(SUM(octet_length(doc)), 0) AS BIGINT) FROM tasks WHERE owner = $1 AND octet_length(doc) > $2",
        "SELECT CAST(COALESCE(SUM(octet_length(doc)), 0) AS BIGINT) FROM models WHERE owner = $1 AND octet_length(doc) > $2",
    ] {
        let small = i64::try_from(SMALL_BYTES).unwrap_or(i64::MAX);
        let bytes: i64 = query_scalar(sql).bind(owner).bind(small).fetch_one(&mut *tx).await?;
        sum = sum.saturating_add(bytes.unsigned_abs());
    }
    Ok(sum)
}
