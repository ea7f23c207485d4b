//! Tasks that are stopped for others: decided one after the other, and back in front of their queue in one step.

use cantle_model::{ASKED_TO_MAKE_ROOM, ASKED_TO_STOP, Cause, TaskStatus};
use sqlx::SqliteConnection;

use crate::data::{Change, Happening, TaskRow, Victim};
use crate::flow::{about, entry, forget_run, prepend, queue_name, set_message, set_status};
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

    /// Notes that `node` is to stop tasks for others, all of them or none. `last_us` is the newest eviction that was known
    /// when this was decided.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::StaleEviction`] if any of it is not as it was when this was decided.
    pub async fn evict(
        &self,
        node: &str,
        victims: &[Victim],
        last_us: i64,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        if last_eviction(&mut write.tx).await? != last_us {
            return Err(StoreError::StaleEviction("others were asked to stop meanwhile".to_owned()));
        }
        for Victim { task, lease, for_task, cause } in victims {
            let (old, claimant) = (load(&mut write.tx, task).await?, load(&mut write.tx, for_task).await?);
            if entry(&mut write.tx, for_task).await?.is_none() {
                return Err(StoreError::StaleEviction(format!("task {for_task} does not wait any more")));
            }
            let runs = old.index.status == TaskStatus::InProgress && old.exit_code.is_none();
            let stops = old.evicted.is_some() || old.status_message == ASKED_TO_STOP;
            if !runs || stops || old.lease.as_ref() != Some(lease) {
                let why = format!("task {task} does not run under lease {lease}, or stops already");
                return Err(StoreError::StaleEviction(why));
            }
            let reason = reason(&mut write.tx, &claimant, &old, *cause).await?;
            sqlx::query(
                "UPDATE tasks SET evicted_for = $2, evicted_cause = $3, evicted_reason = $4, evicted_us = $5 \
                 WHERE id = $1",
            )
            .bind(task)
            .bind(for_task)
            .bind(row::to_json(cause)?)
            .bind(&reason)
            .bind(now_us.max(last_us + 1))
            .execute(&mut *write.tx)
            .await?;
            // Its abort callback, if it has one, is called inside the task: that looks at the message.
            let told =
                Change { now_us, reason: reason.clone(), message: ASKED_TO_MAKE_ROOM.into(), force: true };
            set_message(&mut write.tx, task, &told).await?;
            let happening = about(&old, word(*cause), &Change { now_us, ..Change::default() }, reason);
            self.record(&mut write.tx, Happening { node: Some(node.to_owned()), ..happening }).await?;
        }
        write.commit().await
    }

    /// A task that was stopped for another leaves its lease and is the first of its queue again, whatever it said about
    /// its end: programs that clean up after SIGTERM report all sorts of things. Only one that says it is done is done,
    /// and one that somebody asked to stop stays stopped. Nothing happens if that lease does not hold it any more. Is it
    /// queued again?
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn give_back(&self, task: &str, lease: &str, change: &Change) -> Result<bool, StoreError> {
        use TaskStatus::{Failed, InProgress, Queued, Stopped};
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        if old.lease.as_deref() != Some(lease) {
            return Ok(false);
        }
        let evicted = old.evicted.is_some();
        let queue = match &old.index.queue {
            Some(queue) if evicted => queue_name(&mut write.tx, queue).await.ok().map(|name| (queue, name)),
            _ => None,
        };
        match (old.index.status, queue) {
            (Queued | InProgress | Stopped | Failed, Some((queue, name))) => {
                if entry(&mut write.tx, task).await?.is_none() {
                    prepend(&mut write.tx, task, queue, change.now_us).await?;
                }
                forget_run(&mut write.tx, task).await?;
                set_status(&mut write.tx, task, Queued, change).await?;
                let message = format!("back to the front of {name}: {}", change.reason);
                let happening = about(&old, "requeue", change, message);
                self.record(&mut write.tx, Happening { queue: Some(name), ..happening }).await?;
                write.commit().await?;
                Ok(true)
            }
            (Queued | InProgress, None) => {
                let why = if evicted { "stopped: its queue is gone" } else { "stopped, as asked" };
                let stopped = Change { reason: why.to_owned(), ..change.clone() };
                self.move_to(&mut write, &old, Stopped, &stopped, "end").await?;
                write.commit().await?;
                Ok(false)
            }
            _ => Ok(false),
        }
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
