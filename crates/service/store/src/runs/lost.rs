//! Handles nodes that are gone for good. A node can agree to end a run without the server at a given time (its
//! *fence*). After that time the task is given to another node, because the run has certainly ended.

use std::collections::BTreeMap;

use cantle_model::TaskStatus::{InProgress, Queued};

use crate::data::{Change, EventRow};
use crate::db::{Row, query, query_as, query_scalar};
use crate::tasks::flow::{about, entry, give_up, prepend, queue_name};
use crate::tasks::record::load;
use crate::{Store, StoreError};

/// An agent's statement about one of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The task's id.
    pub task: String,
    /// The lease it runs under.
    pub lease: String,
    /// Time without renewal after which the node ends it; `None`: never.
    pub fence_ms: Option<i64>,
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewed {
    /// The lease holds the task.
    pub held: bool,
    /// The requeue time of the task's queue.
    pub fence_ms: Option<i64>,
}

/// A run that its node ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRow {
    /// The lease it runs under.
    pub lease: String,
    /// When the node last reported it.
    pub renewed_us: i64,
    /// The time after which the node ends it.
    pub after_ms: i64,
}

const FENCES: &str = "SELECT t.id, f.lease, f.renewed_us, f.after_ms FROM run_fences f \
     JOIN tasks t ON t.id = f.task AND t.lease = f.lease \
     WHERE t.exit_code IS NULL AND t.status IN ('queued', 'in_progress')";

impl Store {
    /// Sets what a queue does with a task whose node is gone: queue it again after this time, or hold it.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn set_requeue(&self, queue: &str, after_ms: Option<i64>) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        queue_name(&mut write.tx, queue).await?;
        query("DELETE FROM queue_requeues WHERE queue = $1 OR queue NOT IN (SELECT id FROM queues)")
            .bind(queue)
            .execute(&mut write.tx)
            .await?;
        if let Some(after_ms) = after_ms {
            query("INSERT INTO queue_requeues (queue, after_ms) VALUES ($1, $2)")
                .bind(queue)
                .bind(after_ms)
                .execute(&mut write.tx)
                .await?;
        }
        write.commit().await
    }

    /// The queues that give tasks of lost nodes to others, by id, and after how many milliseconds.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn requeues(&self) -> Result<BTreeMap<String, i64>, StoreError> {
        let rows: Vec<(String, i64)> =
            query_as("SELECT queue, after_ms FROM queue_requeues").fetch_all(&self.readers).await?;
        Ok(rows.into_iter().collect())
    }

    /// The runs that their nodes end by themselves, by task.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn fences(&self) -> Result<BTreeMap<String, FenceRow>, StoreError> {
        query(FENCES).fetch_all(&self.readers).await?.iter().map(fence).collect()
    }

    /// Renews runs, in order.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn renew(&self, runs: &[Renewal], now_us: i64) -> Result<Vec<Renewed>, StoreError> {
        let (fences, requeues) = (self.fences().await?, self.requeues().await?);
        let is_recorded = |run: &Renewal| fences.get(&run.task).is_some_and(|row| row.lease == run.lease);
        let answer = |run: &Renewal, holder: Option<Row>| -> Result<Renewed, StoreError> {
            let Some(holder) = holder else { return Ok(Renewed::default()) };
            let (lease, queue): (Option<String>, Option<String>) =
                (holder.try_get("lease")?, holder.try_get("queue")?);
            let fence_ms = queue.and_then(|queue| requeues.get(&queue).copied());
            Ok(Renewed { held: lease.as_deref() == Some(&run.lease), fence_ms })
        };
        const HOLDER: &str = "SELECT lease, queue FROM tasks WHERE id = $1";
        let mut answers = Vec::with_capacity(runs.len());
        // Runs without a fence, which most are, cost no write.
        if !runs.iter().any(|run| run.fence_ms.is_some() || is_recorded(run)) {
            for run in runs {
                let holder = query(HOLDER).bind(&run.task).fetch_optional(&self.readers).await?;
                answers.push(answer(run, holder)?);
            }
            return Ok(answers);
        }
        let mut write = self.write().await?;
        for run in runs {
            // A transaction that gives the task away waits for this renewal, or this one detects that it is given away.
            let holder = query(HOLDER).for_update().bind(&run.task).fetch_optional(&mut write.tx).await?;
            let renewed = answer(run, holder)?;
            answers.push(renewed);
            match run.fence_ms.filter(|_| renewed.held) {
                Some(after_ms) => {
                    query(
                        "INSERT INTO run_fences (task, lease, renewed_us, after_ms) VALUES ($1, $2, $3, $4) \
                         ON CONFLICT (task) DO UPDATE SET lease = $2, renewed_us = $3, after_ms = $4",
                    )
                    .bind(&run.task)
                    .bind(&run.lease)
                    .bind(now_us)
                    .bind(after_ms)
                    .execute(&mut write.tx)
                    .await?;
                }
                None if renewed.held => {
                    query("DELETE FROM run_fences WHERE task = $1")
                        .bind(&run.task)
                        .execute(&mut write.tx)
                        .await?;
                }
                None => {}
            }
        }
        write.commit().await?;
        Ok(answers)
    }

    /// Puts the tasks of runs that were not renewed in time back to the front of their queues. `slack_ms` is what a node needs to end
    /// a run. Gives each task with its node.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn requeue_lost(
        &self,
        slack_ms: i64,
        now_us: i64,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let is_lost =
            |row: &FenceRow| row.renewed_us.saturating_add((row.after_ms + slack_ms) * 1000) < now_us;
        let mut lost = self.fences().await?;
        lost.retain(|_, row| is_lost(row));
        let mut queued = Vec::new();
        for (task, row) in lost {
            let silent_s = (now_us - row.renewed_us) / 1_000_000;
            let why = |node: &str| format!("{LOST} {node}, which was silent for {silent_s} s");
            // Looked at again under the lock: it may have been renewed meanwhile.
            let still_lost = Some(now_us - (row.after_ms + slack_ms) * 1000);
            if let Some(node) = self.end_run(&task, &row.lease, still_lost, why, now_us).await? {
                queued.push((task, node));
            }
        }
        Ok(queued)
    }

    /// The node of a run has ended it by itself: the task goes back to the front of its queue. Nothing happens if that lease does not
    /// hold it any more. Gives its node then.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn end_fenced(
        &self,
        task: &str,
        lease: &str,
        now_us: i64,
    ) -> Result<Option<String>, StoreError> {
        let why = |node: &str| format!("{LOST} {node}, which could not reach the server and ended it");
        self.end_run(task, lease, None, why, now_us).await
    }

    async fn end_run(
        &self,
        task: &str,
        lease: &str,
        renewed_before_us: Option<i64>,
        why: impl FnOnce(&str) -> String + Send,
        now_us: i64,
    ) -> Result<Option<String>, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let holds = old.lease.as_deref() == Some(lease) && old.exit_code.is_none();
        if !holds || !matches!(old.index.status, Queued | InProgress) {
            return Ok(None);
        }
        let renewed: Option<i64> =
            query_scalar("SELECT renewed_us FROM run_fences WHERE task = $1 AND lease = $2")
                .bind(task)
                .bind(lease)
                .fetch_optional(&mut write.tx)
                .await?;
        if renewed_before_us.is_some_and(|before_us| renewed.is_none_or(|us| us >= before_us)) {
            return Ok(None);
        }
        let Some(queue) = old.index.queue.clone() else { return Ok(None) };
        let name = match queue_name(&mut write.tx, &queue).await {
            Ok(name) => name,
            // A queue that was deleted has no front; the run stays with its node.
            Err(StoreError::NoQueue(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let node = old.node.clone().unwrap_or_default();
        let reason = why(&node);
        if entry(&mut write.tx, task).await?.is_none() {
            prepend(&mut write.tx, task, &queue, now_us).await?;
        }
        let change = Change { now_us, reason: reason.clone(), ..Change::default() };
        give_up(&mut write.tx, task, Queued, &change).await?;
        query("DELETE FROM run_fences WHERE task = $1").bind(task).execute(&mut write.tx).await?;
        query("UPDATE tasks SET evicted_for = NULL WHERE id = $1").bind(task).execute(&mut write.tx).await?;
        let event = about(&old, "requeue", &change, format!("back to the front of {name}: {reason}"));
        self.record(&mut write.tx, EventRow { queue: Some(name), ..event }).await?;
        write.commit().await?;
        Ok(Some(node))
    }
}

/// Prefix of the reason of a task that was queued again because its node is gone.
pub const LOST: &str = "lost with node";

fn fence(row: &Row) -> Result<(String, FenceRow), StoreError> {
    let fence = FenceRow {
        lease: row.try_get("lease")?,
        renewed_us: row.try_get("renewed_us")?,
        after_ms: row.try_get("after_ms")?,
    };
    Ok((row.try_get("id")?, fence))
}
