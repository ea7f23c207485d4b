//! How tasks move: into queues, out of them, and from state to state. Each function is one transaction, and records
//! what happened in it.

use cantle_model::Amounts;
use cantle_model::TaskStatus::{
    self, Closed, Completed, Created, Failed, InProgress, Published, Publishing, Queued, Stopped, Unknown,
};

use crate::data::{Change, Taken, TaskClaim, TaskRow};
use crate::db::{Tx, query, query_as, query_scalar};
use crate::tasks::{NewTask, insert, load};
use crate::{EventRow, Store, StoreError, Write, quotas, row, runs};

/// Whether a task may go from one state to another without force. It may always stay in its state: clients repeat calls.
#[must_use]
pub const fn may_follow(from: TaskStatus, to: TaskStatus) -> bool {
    match from {
        Created => matches!(to, Created | Queued | InProgress),
        Queued => matches!(to, Created | Queued | InProgress | Stopped | Failed),
        InProgress => matches!(to, Created | InProgress | Stopped | Failed | Completed),
        Stopped | Failed | Completed | Closed => !matches!(to, Unknown),
        Publishing => matches!(to, Publishing | Published),
        Published => matches!(to, Published),
        Unknown => true,
    }
}

impl Store {
    /// Puts a task at the end of a queue, for a new run.
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::NoQueue`], [`StoreError::AlreadyQueued`], [`StoreError::Status`].
    pub async fn enqueue(&self, task: &str, queue: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        self.enqueue_in(&mut write, task, queue, change).await?;
        write.commit().await
    }

    /// Makes a task and puts it at the end of a queue, or does nothing of both.
    ///
    /// # Errors
    /// [`StoreError::NoProject`], [`StoreError::NoQueue`].
    pub async fn submit(&self, new: &NewTask, queue: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        insert(&mut write.tx, new, change.now_us).await?;
        self.enqueue_in(&mut write, &new.id, queue, change).await?;
        write.commit().await
    }

    async fn enqueue_in(
        &self,
        write: &mut Write<'_>,
        task: &str,
        queue: &str,
        change: &Change,
    ) -> Result<(), StoreError> {
        let old = load(&mut write.tx, task).await?;
        let queue_name = queue_name(&mut write.tx, queue).await?;
        if let Some((queue, _)) = entry(&mut write.tx, task).await? {
            return Err(StoreError::AlreadyQueued { task: task.to_owned(), queue });
        }
        // ClearML lets only drafts and stopped tasks into a queue; a task that an agent took may go back, too.
        let may_enter = matches!(old.index.status, Created | Queued | Stopped);
        if !(may_enter || change.force && old.index.status != Published) {
            return Err(refusal(&old, "enqueue"));
        }
        append(&mut write.tx, task, queue, change.now_us).await?;
        give_up(&mut write.tx, task, Queued, change).await?;
        query("UPDATE tasks SET queue = $2, evicted_for = NULL WHERE id = $1")
            .bind(task)
            .bind(queue)
            .execute(&mut write.tx)
            .await?;
        set_status(&mut write.tx, task, Queued, change).await?;
        let event = about(&old, "enqueue", change, format!("queued in {queue_name}"));
        self.record(&mut write.tx, EventRow { queue: Some(queue_name), ..event }).await
    }

    /// Takes the first task out of a queue for an agent, or with `only` that task at any position (quotas and backfill
    /// let tasks overtake others); `None` if there is none. The task must be started or claimed soon, or
    /// [`Store::reclaim`] puts it back.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn take_next(
        &self,
        queue: &str,
        only: Option<&str>,
        now_us: i64,
    ) -> Result<Option<Taken>, StoreError> {
        let mut write = self.write().await?;
        let Some((task, added_us)) = take_entry(&mut write.tx, queue, only).await? else {
            queue_name(&mut write.tx, queue).await?;
            return Ok(None);
        };
        query("UPDATE tasks SET taken_us = $2 WHERE id = $1")
            .bind(&task)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        let run = runs::begin(&mut write.tx, &task).await?;
        write.commit().await?;
        Ok(Some(Taken { task, added_us, run }))
    }

    /// Puts tasks that were taken out of a queue before `before_us`, and neither started nor claimed since, back to the
    /// front of it: the agent that took them is gone. Returns their ids.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn reclaim(&self, before_us: i64, now_us: i64) -> Result<Vec<String>, StoreError> {
        let mut write = self.write().await?;
        let lost: Vec<(String, String)> = query_as(
            "SELECT id, queue FROM tasks WHERE status = 'queued' AND lease IS NULL AND taken_us < $1 \
             AND queue IN (SELECT id FROM queues) ORDER BY taken_us DESC, id DESC",
        )
        .for_update_of_free()
        .bind(before_us)
        .fetch_all(&mut write.tx)
        .await?;
        for (task, queue) in &lost {
            let old = load(&mut write.tx, task).await?;
            prepend(&mut write.tx, task, queue, now_us).await?;
            query("UPDATE tasks SET taken_us = NULL WHERE id = $1").bind(task).execute(&mut write.tx).await?;
            let name = queue_name(&mut write.tx, queue).await?;
            let why = "the agent that took it never started it";
            runs::end(&mut write.tx, task, Queued, why, now_us).await?;
            let change = Change { now_us, ..Change::default() };
            let message = format!("back to the front of {name}: {why}");
            let event = about(&old, "enqueue", &change, message);
            self.record(&mut write.tx, EventRow { queue: Some(name), ..event }).await?;
        }
        write.commit().await?;
        Ok(lost.into_iter().map(|(task, _)| task).collect())
    }

    /// Stops running tasks that no cantle agent holds and that neither reported nor changed since `before_us`. Returns
    /// their ids.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn stop_silent(&self, before_us: i64, change: &Change) -> Result<Vec<String>, StoreError> {
        const SILENT: &str = "SELECT id FROM tasks WHERE status = 'in_progress' AND (lease IS NULL OR exit_code IS NOT NULL) \
             AND last_update_us < $1 AND COALESCE(last_worker_report_us, 0) < $1 \
             AND NOT EXISTS (SELECT 1 FROM logs WHERE logs.task = tasks.id AND logs.timestamp_ms >= $1 / 1000) \
             AND NOT EXISTS (SELECT 1 FROM latest_scalars l WHERE l.task = tasks.id AND l.timestamp_ms >= $1 / 1000)";
        // Nearly always there is none, and nobody has to wait for that.
        let none = query(SILENT).bind(before_us).fetch_optional(&self.readers).await?.is_none();
        if none {
            return Ok(Vec::new());
        }
        let mut write = self.write().await?;
        let silent: Vec<String> =
            query_scalar(SILENT).for_update_of_free().bind(before_us).fetch_all(&mut write.tx).await?;
        for task in &silent {
            let old = load(&mut write.tx, task).await?;
            self.move_to(&mut write, &old, Stopped, change, "end").await?;
        }
        write.commit().await?;
        Ok(silent)
    }

    /// Takes a task out of the queue that it waits in (of `queue`, if given) and brings it into `to`.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::NotInQueue`] if `queue` is given and the task is not in it.
    pub async fn dequeue(
        &self,
        task: &str,
        queue: Option<&str>,
        to: TaskStatus,
        change: &Change,
    ) -> Result<bool, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let waits_in = entry(&mut write.tx, task).await?.map(|(queue, _)| queue);
        if let Some(queue) = queue
            && waits_in.as_deref() != Some(queue)
        {
            return Err(StoreError::NotInQueue { task: task.to_owned(), queue: queue.to_owned() });
        }
        if old.index.status != Queued {
            return Ok(false);
        }
        self.move_to(&mut write, &old, to, change, "dequeue").await?;
        write.commit().await?;
        Ok(true)
    }

    /// Brings a task into a state. The task leaves its queue; [`Store::enqueue`] puts it into one.
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::Status`]; [`StoreError::StaleRun`] if the change names a run that is not the
    /// newest one.
    pub async fn set_status(
        &self,
        task: &str,
        to: TaskStatus,
        change: &Change,
    ) -> Result<TaskStatus, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let from = old.index.status;
        runs::fence(&mut write.tx, &old, change.run).await?;
        if !(change.force || may_follow(from, to)) {
            return Err(refusal(&old, to.as_str()));
        }
        self.move_to(&mut write, &old, to, change, event_kind(to)).await?;
        write.commit().await?;
        Ok(from)
    }

    pub(crate) async fn move_to(
        &self,
        write: &mut Write<'_>,
        old: &TaskRow,
        to: TaskStatus,
        change: &Change,
        event_kind: &str,
    ) -> Result<(), StoreError> {
        let (task, from) = (&old.index.id, old.index.status);
        leave_queue(&mut write.tx, task).await?;
        set_status(&mut write.tx, task, to, change).await?;
        if from == to {
            return Ok(());
        }
        let stamp = match to {
            InProgress => {
                "UPDATE tasks SET started_us = $2, completed_us = NULL, taken_us = NULL, evicted_for = NULL \
                 WHERE id = $1"
            }
            Created => {
                "UPDATE tasks SET started_us = NULL, completed_us = NULL, taken_us = NULL, last_update_us = $2 \
                 WHERE id = $1"
            }
            _ => "UPDATE tasks SET completed_us = COALESCE(completed_us, $2), taken_us = NULL WHERE id = $1",
        };
        query(stamp).bind(task).bind(change.now_us).execute(&mut write.tx).await?;
        match to {
            InProgress => runs::start(&mut write.tx, task, change.now_us).await?,
            _ => runs::end(&mut write.tx, task, to, &change.reason, change.now_us).await?,
        }
        let message = match change.reason.as_str() {
            "" => format!("{from} → {to}"),
            reason => format!("{from} → {to}: {reason}"),
        };
        self.record(&mut write.tx, about(old, event_kind, change, message)).await
    }

    /// Asks the agent that runs a task to stop it: the agent reads the message of `change` at each poll.
    ///
    /// # Errors
    /// [`StoreError::NoTask`].
    pub async fn ask_to_stop(&self, task: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let asked = Change { stop_asked: true, ..change.clone() };
        set_message(&mut write.tx, task, &asked).await?;
        // The task that it was evicted for still gets the capacity, but this one is not queued again.
        query("UPDATE tasks SET evicted_for = NULL WHERE id = $1").bind(task).execute(&mut write.tx).await?;
        self.record(&mut write.tx, about(&old, "stop", change, "asked to stop".to_owned())).await?;
        write.commit().await
    }

    /// An agent claims a task for a lease, or reports how it ended.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::Claimed`] if another lease holds the task; [`StoreError::NotHeld`] for the end
    /// of a run that was given up; [`StoreError::StaleRun`] if it names another run than the newest one;
    /// [`StoreError::OverQuota`] if the claim exceeds the project's quota.
    pub async fn claim(&self, claim: &TaskClaim, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, &claim.task).await?;
        runs::fence(&mut write.tx, &old, claim.run).await?;
        let (node, lease) = (old.node.clone(), old.lease.clone());
        let held = old.exit_code.is_none() && matches!(old.index.status, Queued | InProgress);
        if let (Some(node), Some(lease)) = (node, &lease)
            && *lease != claim.lease
            // A lease that lost its task must not report over the one that holds it now, nor over the end of its run: who enqueues it
            // again makes it nobody's.
            && (held || claim.exit_code.is_some() || old.index.status.is_final())
        {
            return Err(StoreError::Claimed { task: claim.task.clone(), node, lease: lease.clone() });
        }
        // Enqueued again meanwhile, and perhaps taken by another agent that has not claimed it yet: the report is about a run that
        // was given up.
        if lease.is_none() && claim.exit_code.is_some() {
            return Err(StoreError::NotHeld { task: claim.task.clone(), lease: claim.lease.clone() });
        }
        if lease.as_deref() != Some(&claim.lease) && claim.exit_code.is_none() {
            quotas::check(&mut write.tx, &old, claim).await?;
        }
        let slices = if claim.slices.is_empty() { &old.slices } else { &claim.slices };
        let Amounts([milli, cpu_milli, memory_bytes]) = claim.terms.amounts(slices);
        query(
            "UPDATE tasks SET node = $2, lease = $3, slices = $4, exit_code = $5, reason = $6, last_update_us = $7, \
             milli = $8, cpu_milli = $9, memory_bytes = $10, preemptible = $11 WHERE id = $1",
        )
        .bind(&claim.task)
        .bind(&claim.node)
        .bind(&claim.lease)
        .bind(row::to_json(slices)?)
        .bind(claim.exit_code)
        .bind(&claim.reason)
        .bind(now_us)
        .bind(milli.cast_signed())
        .bind(cpu_milli.cast_signed())
        .bind(memory_bytes.cast_signed())
        .bind(i64::from(claim.terms.preemptible))
        .execute(&mut write.tx)
        .await?;
        runs::hold(&mut write.tx, &old, claim, now_us).await?;
        let (kind, message) = match (claim.exit_code, &claim.reason) {
            (None, _) => ("place", format!("placed on {}", claim.node)),
            (Some(code), None) => ("exit", format!("exit code {code}")),
            (Some(code), Some(reason)) => ("exit", format!("exit code {code}: {reason}")),
        };
        let change = Change { now_us, ..Change::default() };
        let event = about(&old, kind, &change, message);
        self.record(&mut write.tx, EventRow { node: Some(claim.node.clone()), ..event }).await?;
        write.commit().await
    }
}

/// The kind of event that a change of state is recorded as.
const fn event_kind(to: TaskStatus) -> &'static str {
    match to {
        InProgress => "start",
        Created => "draft",
        Stopped | Completed | Failed => "end",
        _ => "status",
    }
}

pub(crate) fn refusal(task: &TaskRow, wanted: &str) -> StoreError {
    let (task, from) = (task.index.id.clone(), task.index.status);
    StoreError::Status { task, from, wanted: wanted.to_owned() }
}

pub(crate) fn about(task: &TaskRow, kind: &str, change: &Change, message: String) -> EventRow {
    EventRow {
        id: 0,
        time_us: change.now_us,
        kind: kind.to_owned(),
        task: Some(task.index.id.clone()),
        queue: None,
        node: task.node.clone(),
        message: format!("{}: {message}", task.index.name),
    }
}

/// The run that lasts ends here, and the task's own record is empty for the next one: clients see the newest run there.
pub(crate) async fn give_up(
    tx: &mut Tx,
    task: &str,
    outcome: TaskStatus,
    change: &Change,
) -> Result<(), StoreError> {
    runs::end(&mut *tx, task, outcome, &change.reason, change.now_us).await?;
    query(
        "UPDATE tasks SET taken_us = NULL, started_us = NULL, completed_us = NULL, node = NULL, lease = NULL, \
         slices = '[]', exit_code = NULL, reason = NULL WHERE id = $1",
    )
    .bind(task)
    .execute(tx)
    .await?;
    Ok(())
}

pub(crate) async fn set_status(
    tx: &mut Tx,
    task: &str,
    to: TaskStatus,
    change: &Change,
) -> Result<(), StoreError> {
    query("UPDATE tasks SET status = $2, status_changed_us = $3 WHERE id = $1")
        .bind(task)
        .bind(to.as_str())
        .bind(change.now_us)
        .execute(&mut *tx)
        .await?;
    set_message(tx, task, change).await
}

pub(crate) async fn set_message(tx: &mut Tx, task: &str, change: &Change) -> Result<(), StoreError> {
    query(
        "UPDATE tasks SET status_reason = $2, status_message = $3, last_update_us = $4, stop_asked = $5 WHERE id = $1",
    )
    .bind(task)
    .bind(&change.reason)
    .bind(&change.message)
    .bind(change.now_us)
    .bind(i64::from(change.stop_asked))
    .execute(tx)
    .await?;
    Ok(())
}

/// Name of a queue, which must exist.
pub(crate) async fn queue_name(tx: &mut Tx, id: &str) -> Result<String, StoreError> {
    let name =
        query_scalar("SELECT name FROM queues WHERE id = $1").for_share().bind(id).fetch_optional(tx).await?;
    name.ok_or_else(|| StoreError::NoQueue(id.to_owned()))
}

/// The queue that a task waits in, and its position there.
pub(crate) async fn entry(tx: &mut Tx, task: &str) -> Result<Option<(String, i64)>, StoreError> {
    let found = query_as("SELECT queue, position FROM queue_entries WHERE task = $1").bind(task);
    Ok(found.fetch_optional(tx).await?)
}

/// Takes the first entry out of a queue, or the one of `only`.
async fn take_entry(
    tx: &mut Tx,
    queue: &str,
    only: Option<&str>,
) -> Result<Option<(String, i64)>, StoreError> {
    loop {
        let found = match first_entry(tx, queue, only, false).await? {
            // On PostgreSQL others may keep what there is, and leave it after all.
            None => first_entry(tx, queue, only, true).await?,
            found => found,
        };
        let Some((task, added_us)) = found else { return Ok(None) };
        // Gone: somebody took it between what was read and the row that was kept.
        if leave_queue(tx, &task).await? {
            return Ok(Some((task, added_us)));
        }
    }
}

/// On PostgreSQL the task's row says who may take it: who takes or changes one keeps it first. `waits`: for them.
async fn first_entry(
    tx: &mut Tx,
    queue: &str,
    only: Option<&str>,
    waits: bool,
) -> Result<Option<(String, i64)>, StoreError> {
    const ENTRY: &str = "SELECT task, added_us FROM queue_entries JOIN tasks ON tasks.id = task \
        WHERE queue_entries.queue = $1 AND ($2 IS NULL OR task = $2) ORDER BY position LIMIT 1 FOR UPDATE OF tasks";
    const FREE: &str = "SELECT task, added_us FROM queue_entries JOIN tasks ON tasks.id = task \
        WHERE queue_entries.queue = $1 AND ($2 IS NULL OR task = $2) ORDER BY position LIMIT 1 \
        FOR UPDATE OF tasks SKIP LOCKED";
    let found = query_as(
        "SELECT task, added_us FROM queue_entries WHERE queue = $1 AND ($2 IS NULL OR task = $2) \
         ORDER BY position LIMIT 1",
    );
    let found = found.on_postgres(if waits { ENTRY } else { FREE });
    Ok(found.bind(queue).bind(only).fetch_optional(tx).await?)
}

pub(crate) async fn leave_queue(tx: &mut Tx, task: &str) -> Result<bool, StoreError> {
    Ok(query("DELETE FROM queue_entries WHERE task = $1").bind(task).execute(tx).await? > 0)
}

pub(crate) async fn append(tx: &mut Tx, task: &str, queue: &str, now_us: i64) -> Result<(), StoreError> {
    query(
        "INSERT INTO queue_entries (task, queue, position, added_us) \
         VALUES ($1, $2, (SELECT COALESCE(MAX(position), 0) + 1 FROM queue_entries WHERE queue = $2), $3)",
    )
    .on_postgres(
        "INSERT INTO queue_entries (task, queue, position, added_us) VALUES ($1, $2, nextval('places'), $3)",
    )
    .bind(task)
    .bind(queue)
    .bind(now_us)
    .execute(tx)
    .await?;
    Ok(())
}

pub(crate) async fn prepend(tx: &mut Tx, task: &str, queue: &str, now_us: i64) -> Result<(), StoreError> {
    query(
        "INSERT INTO queue_entries (task, queue, position, added_us) \
         VALUES ($1, $2, (SELECT COALESCE(MIN(position), 0) - 1 FROM queue_entries WHERE queue = $2), $3)",
    )
    .on_postgres(
        "INSERT INTO queue_entries (task, queue, position, added_us) VALUES ($1, $2, -nextval('places'), $3)",
    )
    .bind(task)
    .bind(queue)
    .bind(now_us)
    .execute(tx)
    .await?;
    Ok(())
}
