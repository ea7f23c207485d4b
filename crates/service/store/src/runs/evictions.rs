//! Tasks that are stopped for other tasks. Each eviction is decided on the result of the last one, and an evicted task
//! returns to the front of its queue in one step.

use std::collections::BTreeMap;

use cantle_model::{Cause, Preempt, TaskStatus};

use crate::data::{Change, EventRow, TaskRow, VictimTask};
use crate::db::{Alone, ConnectionRef, Tx, query, query_as, query_scalar};
use crate::fleet::pools::contested;
use crate::tasks::flow::{about, entry, give_up, prepend, queue_name, set_message};
use crate::tasks::record::load;
use crate::{Store, StoreError, row};

impl Store {
    /// Sets how the tasks of a queue make room for others; `None`: as those of their projects.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn set_queue_preempt(&self, queue: &str, preempt: Option<Preempt>) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        queue_name(&mut write.tx, queue).await?;
        query("DELETE FROM queue_preempts WHERE queue = $1 OR queue NOT IN (SELECT id FROM queues)")
            .bind(queue)
            .execute(&mut write.tx)
            .await?;
        if let Some(preempt) = preempt {
            let set = query("INSERT INTO queue_preempts (queue, preempt) VALUES ($1, $2)");
            set.bind(queue).bind(preempt.to_string()).execute(&mut write.tx).await?;
        }
        write.commit().await
    }

    /// The queues that say how their tasks make room for others, by id.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn queue_preempts(&self) -> Result<BTreeMap<String, Preempt>, StoreError> {
        let rows: Vec<(String, String)> =
            query_as("SELECT queue, preempt FROM queue_preempts").fetch_all(&self.readers).await?;
        // A value that an administrator wrote into the database by hand and that is no list, is ignored.
        Ok(rows.into_iter().filter_map(|(queue, preempt)| Some((queue, preempt.parse().ok()?))).collect())
    }

    /// Moment of the newest eviction.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn last_eviction(&self) -> Result<i64, StoreError> {
        last_eviction(&self.readers).await
    }

    /// Records that `node` has to stop tasks for others, all of them or none. `last_us` is the newest eviction that was known
    /// when this was decided. The tasks get the message of `change`; the reason is written here.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::StaleEviction`] if any of it is not as it was when this was decided.
    pub async fn evict(
        &self,
        node: &str,
        victims: &[VictimTask],
        last_us: i64,
        change: &Change,
    ) -> Result<(), StoreError> {
        let now_us = change.now_us;
        let mut write = self.write().await?;
        write.tx.alone(Alone::Evict).await?;
        if last_eviction(&mut write.tx).await? != last_us {
            return Err(StoreError::StaleEviction("others were asked to stop meanwhile".to_owned()));
        }
        for VictimTask { task, lease, for_task, cause, suspends } in victims {
            let (old, claimant) = (load(&mut write.tx, task).await?, load(&mut write.tx, for_task).await?);
            let waits = entry(&mut write.tx, for_task).await?.is_some() || claimant.is_out();
            if !waits {
                return Err(StoreError::StaleEviction(format!("task {for_task} no longer waits")));
            }
            let runs = old.index.status == TaskStatus::InProgress && old.exit_code.is_none();
            let stops = old.evicted.is_some() || old.stop_asked;
            if !runs || stops || old.lease.as_ref() != Some(lease) {
                let why = format!("task {task} does not run under lease {lease}, or is stopping already");
                return Err(StoreError::StaleEviction(why));
            }
            let reason = reason(&mut write.tx, &claimant, &old, *cause).await?;
            query(
                "UPDATE tasks SET evicted_for = $2, evicted_cause = $3, evicted_reason = $4, evicted_us = $5 \
                 WHERE id = $1",
            )
            .bind(task)
            .bind(for_task)
            .bind(row::to_json(cause)?)
            .bind(&reason)
            .bind(now_us.max(last_us + 1))
            .execute(&mut write.tx)
            .await?;
            if !suspends {
                // A task with an abort callback reads the message itself, and calls it.
                let asked = Change { reason: reason.clone(), stop_asked: false, ..change.clone() };
                set_message(&mut write.tx, task, &asked).await?;
            }
            let event = about(&old, event_kind(*cause), &Change { now_us, ..Change::default() }, reason);
            self.record(&mut write.tx, EventRow { node: Some(node.to_owned()), ..event }).await?;
        }
        write.commit().await
    }

    /// An evicted task cannot be suspended, so it has to stop: it gets the message of `change`. Nothing happens if this lease does not hold it,
    /// or the task does not make room for another one.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn stop_evicted(&self, task: &str, lease: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let Some(evicted) = old.evicted.filter(|_| old.lease.as_deref() == Some(lease) && !old.stop_asked)
        else {
            return Ok(());
        };
        let asked = Change { reason: evicted.reason, stop_asked: false, ..change.clone() };
        set_message(&mut write.tx, task, &asked).await?;
        write.commit().await
    }

    /// An evicted task leaves its lease and becomes the first of its queue again, however it reported
    /// its end: programs that clean up after SIGTERM exit in many ways. Only a task that reports completion stays completed,
    /// and one that a user asked to stop stays stopped. Nothing happens if that lease no longer holds the task. Returns
    /// whether the task is queued again.
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
            Some(queue) if evicted => match queue_name(&mut write.tx, queue).await {
                Ok(name) => Some((queue, name)),
                // It was deleted meanwhile.
                Err(StoreError::NoQueue(_)) => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        match (old.index.status, queue) {
            (Queued | InProgress | Stopped | Failed, Some((queue, name))) => {
                if entry(&mut write.tx, task).await?.is_none() {
                    prepend(&mut write.tx, task, queue, change.now_us).await?;
                }
                give_up(&mut write.tx, task, Queued, change).await?;
                let message = format!("back to the front of {name}: {}", change.reason);
                let event = about(&old, "requeue", change, message);
                self.record(&mut write.tx, EventRow { queue: Some(name), ..event }).await?;
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

async fn last_eviction<'c>(on: impl Into<ConnectionRef<'c>>) -> Result<i64, StoreError> {
    Ok(query_scalar("SELECT COALESCE(MAX(evicted_us), 0) FROM tasks").fetch_one(on).await?)
}

/// The kind of event that an eviction is recorded as.
const fn event_kind(cause: Cause) -> &'static str {
    match cause {
        Cause::Reclaim => "reclaim",
        Cause::Preempt => "preempt",
        Cause::Consolidate => "move",
        Cause::Lent => "preempt",
    }
}

async fn reason(
    tx: &mut Tx,
    claimant: &TaskRow,
    victim: &TaskRow,
    cause: Cause,
) -> Result<String, StoreError> {
    let claimant_project = project_name(tx, claimant).await?;
    let (name, id) = (&claimant.index.name, &claimant.index.id);
    Ok(match cause {
        Cause::Reclaim => {
            let victim_project = project_name(tx, victim).await?;
            let of_pools = match contested(tx, &claimant_project, victim).await?.as_slice() {
                [] => String::new(),
                pools => format!(", of all GPUs or of pool {}", pools.join(", ")),
            };
            format!(
                "reclaimed by project {claimant_project} for task {name} ({id}): project {victim_project} has more \
                 than its share{of_pools}"
            )
        }
        Cause::Preempt => {
            format!("preempted by task {name} ({id}) of higher priority in project {claimant_project}")
        }
        Cause::Lent => {
            format!("task {name} ({id}) needs GPU memory that it uses beyond its request")
        }
        Cause::Consolidate => format!("moves to another place, so that task {name} ({id}) fits"),
    })
}

async fn project_name(tx: &mut Tx, task: &TaskRow) -> Result<String, StoreError> {
    let found = query_scalar("SELECT name FROM projects WHERE id = $1").bind(&task.index.project);
    Ok(found.fetch_optional(tx).await?.unwrap_or_else(|| "none".to_owned()))
}
