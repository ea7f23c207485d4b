//! Tasks that are stopped for others: decided one after the other, and back in front of their queue in one step.

use cantle_model::{Cause, TaskStatus};
use sqlx::SqliteConnection;

use crate::data::{Change, Happening, TaskRow, Victim};
use crate::flow::{about, entry, prepend, queue_name, set_status};
use crate::tasks::load;
use crate::{Store, StoreError, row};

impl Store {
    /// Moment of the newest eviction.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn last_eviction(&self) -> Result<i64, StoreError> {
        let mut reader = self.readers.acquire().await?;
        last_eviction(&mut reader).await
    }

    /// Notes that `node` stops tasks for others, all of them or none; gives the reason of each, for people. `last_us` is
    /// the newest eviction that was known when this was decided.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::StaleEviction`] if any of it is not as it was when this was decided.
    pub async fn evict(
        &self,
        node: &str,
        victims: &[Victim],
        last_us: i64,
        now_us: i64,
    ) -> Result<Vec<String>, StoreError> {
        let mut write = self.write().await?;
        if last_eviction(&mut write.tx).await? != last_us {
            return Err(StoreError::StaleEviction("others were asked to stop meanwhile".to_owned()));
        }
        let mut reasons = Vec::new();
        for Victim { task, lease, for_task, cause } in victims {
            let (old, claimant) = (load(&mut write.tx, task).await?, load(&mut write.tx, for_task).await?);
            if entry(&mut write.tx, for_task).await?.is_none() {
                return Err(StoreError::StaleEviction(format!("task {for_task} does not wait any more")));
            }
            let runs = old.index.status == TaskStatus::InProgress && old.exit_code.is_none();
            if !runs || old.lease.as_ref() != Some(lease) || old.evicted.is_some() {
                let why = format!("task {task} does not run under lease {lease}, or stops already");
                return Err(StoreError::StaleEviction(why));
            }
            sqlx::query(
                "UPDATE tasks SET evicted_for = $2, evicted_cause = $3, evicted_us = $4 WHERE id = $1",
            )
            .bind(task)
            .bind(for_task)
            .bind(row::to_json(cause)?)
            .bind(now_us.max(last_us + 1))
            .execute(&mut *write.tx)
            .await?;
            let reason = reason(&mut write.tx, &claimant, &old, *cause).await?;
            let change = Change { now_us, ..Change::default() };
            let happening = about(&old, word(*cause), &change, reason.clone());
            let node = Some(node.to_owned());
            self.record(&mut write.tx, Happening { node, ..happening }).await?;
            reasons.push(reason);
        }
        write.commit().await?;
        Ok(reasons)
    }

    /// A task that was stopped for another leaves its lease and is the first of its queue again. Nothing happens if that
    /// lease does not hold it any more; a task that somebody asked to stop stays stopped.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn give_back(&self, task: &str, lease: &str, change: &Change) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let holds = matches!(old.index.status, TaskStatus::Queued | TaskStatus::InProgress);
        if !holds || old.lease.as_deref() != Some(lease) {
            return Ok(false);
        }
        let queue = match &old.index.queue {
            Some(queue) => queue_name(&mut write.tx, queue).await.ok().map(|name| (queue, name)),
            None => None,
        };
        let aborted = old.status_message == "stopping";
        let Some((queue, name)) = queue.filter(|_| !aborted) else {
            set_status(&mut write.tx, task, TaskStatus::Stopped, change).await?;
            let why = if aborted { "stopped, as asked" } else { "stopped: its queue is gone" };
            self.record(&mut write.tx, about(&old, "end", change, why.to_owned())).await?;
            return write.commit().await.map(|()| true);
        };
        if entry(&mut write.tx, task).await?.is_none() {
            prepend(&mut write.tx, task, queue, change.now_us).await?;
        }
        sqlx::query(
            "UPDATE tasks SET taken_us = NULL, started_us = NULL, node = NULL, lease = NULL, slices = '[]', \
             exit_code = NULL, reason = NULL WHERE id = $1",
        )
        .bind(task)
        .execute(&mut *write.tx)
        .await?;
        set_status(&mut write.tx, task, TaskStatus::Queued, change).await?;
        let message = format!("back to the front of {name}: {}", change.reason);
        let happening = about(&old, "requeue", change, message);
        self.record(&mut write.tx, Happening { queue: Some(name), ..happening }).await?;
        write.commit().await?;
        Ok(true)
    }
}

async fn last_eviction(tx: &mut SqliteConnection) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar("SELECT COALESCE(MAX(evicted_us), 0) FROM tasks").fetch_one(tx).await?)
}

/// The kind of event that it is.
const fn word(cause: Cause) -> &'static str {
    match cause {
        Cause::Reclaim => "reclaim",
        Cause::Preempt => "preempt",
        Cause::Consolidate => "move",
    }
}

async fn reason(
    tx: &mut SqliteConnection,
    claimant: &TaskRow,
    victim: &TaskRow,
    cause: Cause,
) -> Result<String, StoreError> {
    let claimant_project = project_name(tx, claimant).await?;
    let (name, id) = (&claimant.index.name, &claimant.index.id);
    Ok(match cause {
        Cause::Reclaim => {
            let victim_project = project_name(tx, victim).await?;
            format!(
                "reclaimed by project {claimant_project} for task {name} ({id}): project {victim_project} has more \
                 than its share"
            )
        }
        Cause::Preempt => {
            format!("preempted by task {name} ({id}) of higher priority in project {claimant_project}")
        }
        Cause::Consolidate => format!("moves to another place, so that task {name} ({id}) fits"),
    })
}

async fn project_name(tx: &mut SqliteConnection, task: &TaskRow) -> Result<String, StoreError> {
    let found = sqlx::query_scalar("SELECT name FROM projects WHERE id = $1").bind(&task.index.project);
    Ok(found.fetch_optional(tx).await?.unwrap_or_else(|| "none".to_owned()))
}
