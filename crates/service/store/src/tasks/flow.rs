//! Moves tasks: into queues, out of them, and from state to state. Each function is one transaction, and records what
//! happened in it.

use cantle_model::TaskStatus::{
    self, Closed, Completed, Created, Failed, InProgress, Published, Publishing, Queued, Stopped, Unknown,
};
use cantle_model::{Amounts, counted};

use super::arrays;
use super::entering::{Entering, load_for};
use super::record::{NewTask, load};
use super::state::{UNFILLED, stamp, status};
use crate::data::{Change, TaskClaim, TaskRow};
use crate::db::{Sql, Tx, query, query_as, query_scalar};
use crate::people::{budgets, limits, quotas};
use crate::{EventRow, Store, StoreError, Write, row, runs};

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
    /// Puts a task at the end of a queue, for a new run. If `change` names a run, its agent returns that run.
    ///
    /// # Errors
    /// [`StoreError::NoTask`], [`StoreError::NoQueue`], [`StoreError::AlreadyQueued`], [`StoreError::Status`];
    /// [`StoreError::StaleRun`] for a run that was given up already, or another than the newest one.
    pub async fn enqueue(&self, task: &str, queue: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write_seen().await?;
        let done = self.enqueue_in(&mut write, task, queue, change).await;
        let mut done = write.end(done).await;
        if self.is_to_repeat(&done) {
            let mut write = self.write_shared().await?;
            let again = self.enqueue_in(&mut write, task, queue, change).await;
            done = write.end(again).await;
        }
        done?;
        self.wake(queue, 1);
        Ok(())
    }

    /// Makes a task and puts it at the end of a queue, or does nothing of both.
    ///
    /// # Errors
    /// [`StoreError::NoProject`], [`StoreError::NoQueue`].
    pub async fn submit(&self, new: &NewTask, queue: &str, change: &Change) -> Result<(), StoreError> {
        let mut write = self.write_shared().await?;
        let done = match self.insert(&mut write.tx, new, change.now_us).await {
            Ok(()) => self.enqueue_in(&mut write, &new.id, queue, change).await,
            Err(error) => Err(error),
        };
        write.end(done).await?;
        self.wake(queue, 1);
        Ok(())
    }

    pub(crate) async fn enqueue_in(
        &self,
        write: &mut Write,
        task: &str,
        queue: &str,
        change: &Change,
    ) -> Result<(), StoreError> {
        let Entering { old, queue_name, is_limited, waits_for, is_array } =
            load_for(&mut write.tx, task, queue).await?;
        runs::fence(&mut write.tx, &old, change.run).await?;
        // No other task has an entry.
        if old.index.status == Queued
            && let Some((queue, _)) = entry(&mut write.tx, task).await?
        {
            return Err(StoreError::AlreadyQueued { task: task.to_owned(), queue });
        }
        if old.index.status == Queued && is_array {
            return Err(StoreError::AlreadyQueued { task: task.to_owned(), queue: queue.to_owned() });
        }
        if !may_enter(&old, change) {
            return Err(refusal(&old, "enqueue"));
        }
        if change.is_wish && is_limited {
            limits::check_queued(&mut write.tx, &old.owner, 1).await?;
        }
        if waits_for == 0 && !is_array {
            append(&mut write.tx, task, queue, change.now_us).await?;
        }
        if old.run > 0 {
            runs::end(&mut write.tx, task, Queued, &change.reason, change.now_us).await?;
            arrays::count_again(&mut write.tx, task).await?;
        }
        let mut sql = status(Queued, change);
        sql.push(UNFILLED).push(", evicted_for = NULL, queue = ").push_bind(queue);
        of_task(sql, task, &mut write.tx).await?;
        let message = match waits_for {
            0 if is_array => format!("an array; its tasks are queued in {queue_name}"),
            0 => format!("queued in {queue_name}"),
            _ => format!("queued for {queue_name}, after {}", counted(waits_for, "other task")),
        };
        let event = about(&old, "enqueue", change, message);
        self.record(&mut write.tx, EventRow { queue: Some(queue_name), ..event }).await
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
        // There is nearly always none, and no transaction has to wait for that.
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
    /// newest one, or starts one that has ended.
    pub async fn set_status(
        &self,
        task: &str,
        to: TaskStatus,
        change: &Change,
    ) -> Result<TaskStatus, StoreError> {
        let mut write = self.write_seen().await?;
        let done = self.set_status_in(&mut write, task, to, change).await;
        let done = write.end(done).await;
        if !self.is_to_repeat(&done) {
            return done;
        }
        let mut write = self.write_shared().await?;
        let again = self.set_status_in(&mut write, task, to, change).await;
        write.end(again).await
    }

    async fn set_status_in(
        &self,
        write: &mut Write,
        task: &str,
        to: TaskStatus,
        change: &Change,
    ) -> Result<TaskStatus, StoreError> {
        let old = load(&mut write.tx, task).await?;
        let from = old.index.status;
        match to {
            InProgress => runs::fence_beginning(&mut write.tx, &old, change.run).await?,
            _ => runs::fence(&mut write.tx, &old, change.run).await?,
        }
        if !(change.force || may_follow(from, to)) {
            return Err(refusal(&old, to.as_str()));
        }
        // A client may say again that the task runs. A request to stop it stays until its agent handles it.
        if from == to && old.stop_asked {
            return Ok(from);
        }
        self.move_to(write, &old, to, change, event_kind(to)).await?;
        Ok(from)
    }

    pub(crate) async fn move_to(
        &self,
        write: &mut Write,
        old: &TaskRow,
        to: TaskStatus,
        change: &Change,
        event_kind: &str,
    ) -> Result<(), StoreError> {
        let (task, from) = (&old.index.id, old.index.status);
        // No other task has an entry.
        if from == Queued && old.taken_us.is_none() {
            leave_queue(&mut write.tx, task).await?;
        }
        let mut sql = status(to, change);
        if from == to {
            return of_task(sql, task, &mut write.tx).await;
        }
        stamp(&mut sql, to, change.now_us);
        of_task(sql, task, &mut write.tx).await?;
        match to {
            InProgress => runs::start(&mut write.tx, old, change.now_us).await?,
            _ => runs::end(&mut write.tx, task, to, &change.reason, change.now_us).await?,
        }
        self.record(&mut write.tx, about(old, event_kind, change, moved(from, to, change))).await
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
        query("UPDATE tasks SET evicted_for = NULL WHERE id = $1").bind(task).later(&mut write.tx).await?;
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
        let mut write = self.write_shared().await?;
        let done = self.claim_in(&mut write, claim, now_us).await;
        write.end(done).await
    }

    async fn claim_in(&self, write: &mut Write, claim: &TaskClaim, now_us: i64) -> Result<(), StoreError> {
        let old = load(&mut write.tx, &claim.task).await?;
        match claim.exit_code {
            None => runs::fence_beginning(&mut write.tx, &old, claim.run).await?,
            Some(_) => runs::fence(&mut write.tx, &old, claim.run).await?,
        }
        let (node, lease) = (old.node.clone(), old.lease.clone());
        let held = old.exit_code.is_none() && matches!(old.index.status, Queued | InProgress);
        if let (Some(node), Some(lease)) = (node, &lease)
            && *lease != claim.lease
            // A lease that lost its task must not report over the one that holds it now, nor over the end of its run:
            // enqueuing it again removes its owner.
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
            limits::check_gpus(&mut write.tx, &old, claim).await?;
            budgets::check(&mut write.tx, &old, claim).await?;
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
        .later(&mut write.tx)
        .await?;
        runs::hold(&mut write.tx, &old, claim, now_us).await?;
        let (kind, message) = match (claim.exit_code, &claim.reason) {
            (None, _) => ("place", format!("placed on {}", claim.node)),
            (Some(code), None) => ("exit", format!("exit code {code}")),
            (Some(code), Some(reason)) => ("exit", format!("exit code {code}: {reason}")),
        };
        let change = Change { now_us, ..Change::default() };
        let event = about(&old, kind, &change, message);
        self.record(&mut write.tx, EventRow { node: Some(claim.node.clone()), ..event }).await
    }
}

/// The kind of event that a change of state is recorded as.
pub(crate) const fn event_kind(to: TaskStatus) -> &'static str {
    match to {
        InProgress => "start",
        Created => "draft",
        Stopped | Completed | Failed => "end",
        _ => "status",
    }
}

/// ClearML lets only drafts and stopped tasks into a queue; a task that an agent took may go back, too.
pub(crate) fn may_enter(task: &TaskRow, change: &Change) -> bool {
    let status = task.index.status;
    matches!(status, Created | Queued | Stopped) || change.force && status != Published
}

/// The text of the event, for people.
pub(crate) fn moved(from: TaskStatus, to: TaskStatus, change: &Change) -> String {
    match change.reason.as_str() {
        "" => format!("{from} → {to}"),
        reason => format!("{from} → {to}: {reason}"),
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
        who: change.who.clone(),
    }
}

/// The run that lasts ends here, and the task is in another state, without what the run filled: clients see the newest run there.
pub(crate) async fn give_up(
    tx: &mut Tx,
    task: &str,
    to: TaskStatus,
    change: &Change,
) -> Result<(), StoreError> {
    runs::end(&mut *tx, task, to, &change.reason, change.now_us).await?;
    let mut sql = status(to, change);
    sql.push(UNFILLED);
    of_task(sql, task, tx).await
}

/// Runs a statement that [`status`] began, for this task.
async fn of_task(mut sql: Sql, task: &str, tx: &mut Tx) -> Result<(), StoreError> {
    sql.push(" WHERE id = ").push_bind(task);
    Ok(sql.build().later_of_task(tx).await?)
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
    .later(tx)
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

pub(crate) async fn leave_queue(tx: &mut Tx, task: &str) -> Result<(), StoreError> {
    Ok(query("DELETE FROM queue_entries WHERE task = $1").bind(task).later(tx).await?)
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
    .later(tx)
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
