//! Limits of users: stores them, and enforces them where tasks enter a queue and where they are claimed.

use cantle_model::{Resource, UserLimits};

use super::quotas::holds;
use super::users::changed;
use crate::data::{TaskClaim, TaskRow};
use crate::db::{Row, Tx, query, query_scalar};
use crate::tasks::wishes::seconds;
use crate::{Store, StoreError};

/// A waiting task whose owner holds too much for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBack {
    /// The task.
    pub task: String,
    /// Name of its owner.
    pub user: String,
    /// The owner's limit of GPUs, in thousandths.
    pub most_milli: u64,
    /// The holdings of its tasks.
    pub held_milli: u64,
}

impl Store {
    /// Sets all limits of a user.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_limits(&self, user: &str, limits: &UserLimits) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let sql = "UPDATE users SET most_gpu_milli = $2, most_queued = $3, most_priority = $4, most_time_s = $5 WHERE id = $1";
        query(sql)
            .bind(user)
            .bind(limits.gpu_milli.map(u64::cast_signed))
            .bind(limits.queued.map(u64::cast_signed))
            .bind(limits.priority.map(i64::from))
            .bind(seconds(limits.time_s))
            .execute(&mut write.tx)
            .await?;
        changed(&mut write.tx).await?;
        write.commit().await
    }

    /// The waiting tasks that a claim would be refused for. A task counts with what it held or asked for last; one that was never
    /// claimed counts as the least there is.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn held_back(&self) -> Result<Vec<HeldBack>, StoreError> {
        let sql = concat!(
            "SELECT waits.id AS task, users.name AS name, users.most_gpu_milli AS most, COALESCE(held.milli, 0) AS held \
             FROM queue_entries JOIN tasks AS waits ON waits.id = queue_entries.task \
             JOIN users ON users.id = waits.owner LEFT JOIN \
             (SELECT owner, CAST(SUM(milli) AS BIGINT) AS milli FROM tasks WHERE ",
            holds!(),
            " GROUP BY owner) AS held ON held.owner = users.id \
             WHERE users.most_gpu_milli IS NOT NULL AND COALESCE(held.milli, 0) \
             + CASE WHEN COALESCE(waits.milli, 0) > 0 THEN waits.milli ELSE 1 END > users.most_gpu_milli ORDER BY 1"
        );
        let read = |row: &Row| {
            Ok(HeldBack {
                task: row.try_get("task")?,
                user: row.try_get("name")?,
                most_milli: row.try_get("most").map(i64::unsigned_abs)?,
                held_milli: row.try_get("held").map(i64::unsigned_abs)?,
            })
        };
        query(sql).fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// Remembers what a task asked for when its claim was refused: it is held back until its owner holds less.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn note_asked(&self, task: &str, milli: u64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let sql = query("UPDATE tasks SET milli = $2 WHERE id = $1 AND lease IS NULL");
        sql.bind(task).bind(milli.cast_signed()).execute(&mut write.tx).await?;
        write.commit().await
    }
}

/// Refuses `more` tasks in queues to a user who would have more there than it may. One enqueue after the other counts them.
pub(crate) async fn check_queued(tx: &mut Tx, owner: &str, more: u64) -> Result<(), StoreError> {
    let sql = "SELECT name, most_queued AS most FROM users WHERE id = $1 AND most_queued IS NOT NULL";
    let Some((user, most)) = limit(tx, sql, owner).await? else { return Ok(()) };
    // Those that wait for other tasks are in no queue, and count all the same.
    let sql = "SELECT (SELECT COUNT(*) FROM queue_entries JOIN tasks ON tasks.id = queue_entries.task WHERE tasks.owner = $1) \
         + (SELECT COUNT(DISTINCT tasks.id) FROM task_after JOIN tasks ON tasks.id = task_after.task \
         WHERE tasks.owner = $1 AND tasks.status = 'queued')";
    let queued: i64 = query_scalar(sql).bind(owner).fetch_one(tx).await?;
    if queued.unsigned_abs() + more <= most { Ok(()) } else { Err(StoreError::OverQueued { user, most }) }
}

/// Refuses a claim with which the task's owner would hold more GPUs than it may.
pub(crate) async fn check_gpus(tx: &mut Tx, task: &TaskRow, claim: &TaskClaim) -> Result<(), StoreError> {
    let sql = "SELECT name, most_gpu_milli AS most FROM users WHERE id = $1 AND most_gpu_milli IS NOT NULL";
    let Some((user, most)) = limit(tx, sql, &task.owner).await? else { return Ok(()) };
    let sql = concat!(
        "SELECT CAST(COALESCE(SUM(milli), 0) AS BIGINT) FROM tasks WHERE owner = $1 AND id <> $2 AND ",
        holds!()
    );
    let held: i64 = query_scalar(sql).bind(&task.owner).bind(&claim.task).fetch_one(tx).await?;
    let (held, asked) = (held.unsigned_abs(), claim.terms.amounts(&claim.slices).0[0]);
    if asked == 0 || held.saturating_add(asked) <= most {
        return Ok(());
    }
    let (task, text) = (claim.task.clone(), |milli| Resource::Gpu.text(milli));
    Err(StoreError::OverLimit { user, task, most: text(most), held: text(held), asked_milli: asked })
}

async fn limit(tx: &mut Tx, sql: &'static str, owner: &str) -> Result<Option<(String, u64)>, StoreError> {
    let found = query(sql).for_change().bind(owner).fetch_optional(tx).await?;
    let read = |row: Row| Ok((row.try_get("name")?, row.try_get("most").map(i64::unsigned_abs)?));
    found.map(read).transpose()
}
