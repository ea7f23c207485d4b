//! Queues and the order in them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::data::{Change, QueueRow};
use crate::db::{Tx, query, query_as, query_scalar};
use crate::tasks::flow::entry;
use crate::{Store, StoreError, row};

/// Beyond all positions that queues get.
const ASIDE: i64 = 1 << 61;

impl Store {
    /// Makes a queue.
    ///
    /// # Errors
    /// [`StoreError::NameTaken`].
    pub async fn create_queue(
        &self,
        id: &str,
        name: &str,
        doc: &Map<String, Value>,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let done = query(
            "INSERT INTO queues (id, name, created_us, last_update_us, doc) VALUES ($1, $2, $3, $3, $4) \
             ON CONFLICT (name) DO NOTHING",
        )
        .bind(id)
        .bind(name)
        .bind(now_us)
        .bind(row::to_json(doc)?)
        .execute(&mut write.tx)
        .await?;
        if done == 0 {
            return Err(StoreError::NameTaken { what: "queue", name: name.to_owned() });
        }
        write.commit().await
    }

    /// Changes a queue's name and members of its `doc`.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`], [`StoreError::NameTaken`].
    pub async fn update_queue(
        &self,
        id: &str,
        name: Option<&str>,
        doc: Map<String, Value>,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query(select!(queues, "WHERE id = $1")).for_change().bind(id);
        let found = found.fetch_optional(&mut write.tx).await?;
        let old = found.ok_or_else(|| StoreError::NoQueue(id.to_owned()))?;
        let name = name.map_or_else(|| old.try_get("name"), |name| Ok(name.to_owned()))?;
        let taken = query("SELECT id FROM queues WHERE name = $1 AND id <> $2").bind(&name).bind(id);
        if taken.fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::NameTaken { what: "queue", name });
        }
        let mut merged: Map<String, Value> = row::json(&old, "doc")?;
        merged.extend(doc);
        query("UPDATE queues SET name = $2, doc = $3, last_update_us = $4 WHERE id = $1")
            .bind(id)
            .bind(&name)
            .bind(row::to_json(&merged)?)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        write.commit().await
    }

    /// Deletes a queue.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`]; [`StoreError::QueueNotEmpty`] if tasks wait in it, see [`Store::clear_queue`].
    pub async fn delete_queue(&self, id: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query("SELECT id FROM queues WHERE id = $1").for_update().bind(id);
        found.fetch_optional(&mut write.tx).await?.ok_or_else(|| StoreError::NoQueue(id.to_owned()))?;
        let waiting = query("SELECT task FROM queue_entries WHERE queue = $1 LIMIT 1").bind(id);
        if waiting.fetch_optional(&mut write.tx).await?.is_some() {
            return Err(StoreError::QueueNotEmpty(id.to_owned()));
        }
        query("DELETE FROM queues WHERE id = $1").bind(id).execute(&mut write.tx).await?;
        write.commit().await
    }

    /// Takes all tasks out of a queue; they become drafts again. Returns how many.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn clear_queue(&self, id: &str, change: &Change) -> Result<u64, StoreError> {
        let mut cleared = 0;
        for (task, _) in self.queue(id).await?.entries {
            // One by one: each is an event of its own, and a task may have left the queue meanwhile.
            match self.dequeue(&task, Some(id), cantle_model::TaskStatus::Created, change).await {
                Ok(true) => cleared += 1,
                Ok(false) | Err(StoreError::NotInQueue { .. } | StoreError::NoTask(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(cleared)
    }

    /// All queues with their entries, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn queues(&self) -> Result<Vec<QueueRow>, StoreError> {
        // One transaction, so that no task is seen in two queues or in none while it moves.
        let mut tx = self.readers.begin().await?;
        let rows = query(select!(queues, "ORDER BY name")).fetch_all(&mut tx).await?;
        let waiting: Vec<(String, String, i64)> =
            query_as("SELECT queue, task, added_us FROM queue_entries ORDER BY queue, position")
                .fetch_all(&mut tx)
                .await?;
        let mut entries: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
        for (queue, task, added_us) in waiting {
            entries.entry(queue).or_default().push((task, added_us));
        }
        let mut queues = Vec::with_capacity(rows.len());
        for found in &rows {
            let id: &str = found.try_get("id")?;
            queues.push(row::queue(found, entries.remove(id).unwrap_or_default())?);
        }
        Ok(queues)
    }

    /// Ids and names of all queues.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn queue_names(&self) -> Result<Vec<(String, String)>, StoreError> {
        Ok(query_as("SELECT id, name FROM queues ORDER BY name").fetch_all(&self.readers).await?)
    }

    /// One queue.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn queue(&self, id: &str) -> Result<QueueRow, StoreError> {
        let mut tx = self.readers.begin().await?;
        let found = query(select!(queues, "WHERE id = $1")).bind(id).fetch_optional(&mut tx).await?;
        let found = found.ok_or_else(|| StoreError::NoQueue(id.to_owned()))?;
        let waiting = entries(&mut tx, id).await?;
        row::queue(&found, waiting)
    }

    /// Whether a task waits in a queue.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn is_waited_in(&self, queue: &str) -> Result<bool, StoreError> {
        let first = query("SELECT task FROM queue_entries WHERE queue = $1 LIMIT 1").bind(queue);
        Ok(first.fetch_optional(&self.readers).await?.is_some())
    }

    /// Checks that these queues exist.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`] with the first that does not.
    pub async fn check_queues(&self, ids: &[String]) -> Result<(), StoreError> {
        for id in ids {
            let one = query("SELECT id FROM queues WHERE id = $1").bind(id);
            one.fetch_optional(&self.readers).await?.ok_or_else(|| StoreError::NoQueue(id.clone()))?;
        }
        Ok(())
    }

    /// Moves a task within its queue: `place` gets its position and the number of entries, and returns the new position.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`], [`StoreError::NotInQueue`].
    pub async fn move_in_queue(
        &self,
        queue: &str,
        task: &str,
        place: impl FnOnce(usize, usize) -> usize + Send,
    ) -> Result<usize, StoreError> {
        let mut write = self.write().await?;
        let found = query("SELECT id FROM queues WHERE id = $1").for_change().bind(queue);
        found.fetch_optional(&mut write.tx).await?.ok_or_else(|| StoreError::NoQueue(queue.to_owned()))?;
        let order = query_as("SELECT task, position FROM queue_entries WHERE queue = $1 ORDER BY position");
        let order: Vec<(String, i64)> = order.bind(queue).fetch_all(&mut write.tx).await?;
        let Some(from) = order.iter().position(|(id, _)| id == task) else {
            return Err(StoreError::NotInQueue { task: task.to_owned(), queue: queue.to_owned() });
        };
        let to = place(from, order.len()).min(order.len() - 1);
        reorder(&mut write.tx, &order[from.min(to)..=from.max(to)], from < to).await?;
        write.commit().await?;
        Ok(to)
    }

    /// The position of a waiting task: its queue and its position there, 0 for the front.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn place_of(&self, task: &str) -> Result<Option<(String, u64)>, StoreError> {
        let mut tx = self.readers.begin().await?;
        let Some((queue, position)) = entry(&mut tx, task).await? else {
            return Ok(None);
        };
        let before: i64 =
            query_scalar("SELECT COUNT(*) FROM queue_entries WHERE queue = $1 AND position < $2")
                .bind(&queue)
                .bind(position)
                .fetch_one(&mut tx)
                .await?;
        Ok(Some((queue, before.unsigned_abs())))
    }
}

/// The first of these entries goes behind the others, or the last one before them. They have the same positions together
/// afterwards: what comes into the queue or leaves it meanwhile is not touched.
async fn reorder(tx: &mut Tx, entries: &[(String, i64)], first_goes_last: bool) -> Result<(), StoreError> {
    let mut tasks: Vec<&String> = entries.iter().map(|(task, _)| task).collect();
    if first_goes_last {
        tasks.rotate_left(1)
    } else {
        tasks.rotate_right(1)
    }
    // Positions are unique, so all leave before they get their new ones.
    for (task, position) in entries {
        let aside = query("UPDATE queue_entries SET position = $2 WHERE task = $1");
        aside.bind(task).bind(position + ASIDE).execute(&mut *tx).await?;
    }
    for (task, (_, position)) in tasks.into_iter().zip(entries) {
        let new = query("UPDATE queue_entries SET position = $2 WHERE task = $1");
        new.bind(task).bind(*position).execute(&mut *tx).await?;
    }
    Ok(())
}

async fn entries(tx: &mut Tx, queue: &str) -> Result<Vec<(String, i64)>, StoreError> {
    let rows = query_as("SELECT task, added_us FROM queue_entries WHERE queue = $1 ORDER BY position");
    Ok(rows.bind(queue).fetch_all(tx).await?)
}
