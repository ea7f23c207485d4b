//! The steps of `flow` for many tasks at a time, with one statement for all tasks in place of one for each. A batch succeeds
//! or fails as a whole.

use std::collections::BTreeMap;

use cantle_model::TaskStatus::{self, Queued};

use super::flow::{about, event_kind, may_enter, may_follow, moved, queue_name, refusal};
use super::record::any_of;
use super::state::{UNFILLED, stamp, status};
use crate::data::{Change, EventRow, Taken, TaskRow};
use crate::db::{Kind, Sql, Tx, query_as, query_scalar};
use crate::people::limits;
use crate::runs::begin_runs;
use crate::{Store, StoreError, row, runs};

/// A run, as its agent names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRun {
    /// The task.
    pub task: String,
    /// The number of the run.
    pub run: i64,
}

impl Store {
    /// Most tasks of one batch: others wait no longer than for that.
    pub const BATCH: usize = 500;

    /// As [`Store::enqueue`], for many tasks in this order.
    ///
    /// # Errors
    /// As [`Store::enqueue`], about the first task that is refused.
    pub async fn enqueue_many(
        &self,
        tasks: &[String],
        queue: &str,
        change: &Change,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let rows = load(&mut write.tx, tasks).await?;
        let name = queue_name(&mut write.tx, queue).await?;
        let mut owners: BTreeMap<&str, u64> = BTreeMap::new();
        for task in tasks {
            let old = rows.get(task).ok_or_else(|| StoreError::NoTask(task.clone()))?;
            if !may_enter(old, change) {
                return Err(refusal(old, "enqueue"));
            }
            *owners.entry(&old.owner).or_default() += 1;
        }
        for (owner, count) in owners.iter().filter(|_| change.is_wish) {
            limits::check_queued(&mut write.tx, owner, *count).await?;
        }
        let waiting = in_no_queue(&mut write.tx, tasks).await?;
        let entering: Vec<String> = tasks.iter().filter(|task| !waiting.contains(task)).cloned().collect();
        if !entering.is_empty() {
            self.append(&mut write.tx, &entering, queue, change.now_us).await?;
        }
        end_runs(&mut write.tx, tasks, Queued, change).await?;
        let mut sql = status(Queued, change);
        sql.push(UNFILLED).push(", evicted_for = NULL, queue = ").push_bind(queue).push(" WHERE 1 = 1");
        any_of(&mut sql, "id", tasks);
        sql.build().execute(&mut write.tx).await?;
        let event = |task: &String| {
            let event = about(rows.get(task)?, "enqueue", change, format!("queued in {name}"));
            Some(EventRow { queue: Some(name.clone()), ..event })
        };
        self.record_all(&mut write.tx, tasks.iter().filter_map(event).collect()).await?;
        write.commit().await?;
        self.wake(queue, tasks.len());
        Ok(())
    }

    /// As [`Store::take_next`], for the first `count` tasks. On PostgreSQL without those that others keep at this moment.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn take_many(&self, queue: &str, count: usize, now_us: i64) -> Result<Vec<Taken>, StoreError> {
        let mut write = self.write().await?;
        let first = query_as(
            "DELETE FROM queue_entries WHERE task IN (SELECT task FROM queue_entries WHERE queue = $1 \
             ORDER BY position LIMIT $2) RETURNING position, task, added_us",
        );
        let first = first.on_postgres(
            "WITH first AS MATERIALIZED (SELECT task FROM queue_entries JOIN tasks ON tasks.id = task \
             WHERE queue_entries.queue = $1 ORDER BY position LIMIT $2 FOR UPDATE OF tasks SKIP LOCKED) \
             DELETE FROM queue_entries USING first WHERE queue_entries.task = first.task \
             RETURNING position, queue_entries.task, added_us",
        );
        let count = i64::try_from(count.min(Self::BATCH)).unwrap_or(i64::MAX);
        let mut entries: Vec<(i64, String, i64)> =
            first.bind(queue).bind(count).fetch_all(&mut write.tx).await?;
        if entries.is_empty() {
            queue_name(&mut write.tx, queue).await?;
            return Ok(Vec::new());
        }
        entries.sort_unstable();
        let tasks: Vec<String> = entries.iter().map(|(_, task, _)| task.clone()).collect();
        let mut sql = Sql::new("UPDATE tasks SET run = run + 1, taken_us = ");
        sql.push_bind(now_us).push(" WHERE 1 = 1");
        any_of(&mut sql, "id", &tasks);
        sql.push(" RETURNING id, run");
        let runs: Vec<(String, i64)> = sql.build_as().fetch_all(&mut write.tx).await?;
        let runs: BTreeMap<String, i64> = runs.into_iter().collect();
        let mut sql = Sql::new(concat!(begin_runs!(), " WHERE 1 = 1"));
        any_of(&mut sql, "id", &tasks);
        sql.build().execute(&mut write.tx).await?;
        write.commit().await?;
        let taken = |(_, task, added_us): (i64, String, i64)| {
            let run = *runs.get(&task)?;
            Some(Taken { task, added_us, run })
        };
        Ok(entries.into_iter().filter_map(taken).collect())
    }

    /// As [`Store::set_status`] with `to` that ends a run, for many runs.
    ///
    /// # Errors
    /// As [`Store::set_status`], about the first task that is refused.
    pub async fn end_many(
        &self,
        runs: &[NamedRun],
        to: TaskStatus,
        change: &Change,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let ids: Vec<String> = runs.iter().map(|run| run.task.clone()).collect();
        let rows = load(&mut write.tx, &ids).await?;
        let given_up = given_up(&mut write.tx, &ids).await?;
        // A repeated call changes nothing.
        let mut ending = Vec::with_capacity(runs.len());
        for NamedRun { task, run } in runs {
            let old = rows.get(task).ok_or_else(|| StoreError::NoTask(task.clone()))?;
            if *run != old.run || given_up.contains(task) {
                return Err(StoreError::StaleRun { task: task.clone(), run: *run, newest: old.run });
            }
            if !(change.force || may_follow(old.index.status, to)) {
                return Err(refusal(old, to.as_str()));
            }
            if old.index.status != to {
                ending.push(task.clone());
            }
        }
        if ending.is_empty() {
            return Ok(());
        }
        let mut left = Sql::new("DELETE FROM queue_entries WHERE 1 = 1");
        any_of(&mut left, "task", &ending);
        left.build().execute(&mut write.tx).await?;
        let mut sql = status(to, change);
        stamp(&mut sql, to, change.now_us);
        sql.push(" WHERE 1 = 1");
        any_of(&mut sql, "id", &ending);
        sql.build().execute(&mut write.tx).await?;
        end_runs(&mut write.tx, &ending, to, change).await?;
        let event = |task: &String| {
            let old = rows.get(task)?;
            Some(about(old, event_kind(to), change, moved(old.index.status, to, change)))
        };
        self.record_all(&mut write.tx, ending.iter().filter_map(event).collect()).await?;
        write.commit().await
    }

    /// At the end of a queue, in this order.
    async fn append(
        &self,
        tx: &mut Tx,
        tasks: &[String],
        queue: &str,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let last: i64 = match self.kind {
            Kind::Postgres => 0,
            Kind::Sqlite => {
                let last = "SELECT COALESCE(MAX(position), 0) FROM queue_entries WHERE queue = $1";
                query_scalar(last).bind(queue).fetch_one(&mut *tx).await?
            }
        };
        let mut sql = Sql::new("INSERT INTO queue_entries (task, queue, added_us, position) ");
        sql.push_values((last + 1..).zip(tasks), |row, (position, task)| {
            row.push_bind(task).push_bind(queue).push_bind(now_us);
            match self.kind {
                Kind::Postgres => row.push("nextval('places')"),
                Kind::Sqlite => row.push_bind(position),
            };
        });
        sql.push(" ON CONFLICT (task) DO NOTHING");
        if sql.build().execute(&mut *tx).await? == tasks.len() as u64 {
            return Ok(());
        }
        // The call about that task alone reports where it waits.
        let mut sql = Sql::new("SELECT task, queue FROM queue_entries WHERE added_us <> ");
        sql.push_bind(now_us);
        any_of(&mut sql, "task", tasks);
        let waits: Option<(String, String)> = sql.build_as().fetch_optional(tx).await?;
        let (task, queue) = waits.unwrap_or_else(|| (tasks.join(", "), queue.to_owned()));
        Err(StoreError::AlreadyQueued { task, queue })
    }
}

/// Reads tasks inside a write, without what clients keep in them. Kept in the order of their ids, so that two batches never wait for
/// each other.
async fn load(tx: &mut Tx, tasks: &[String]) -> Result<BTreeMap<String, TaskRow>, StoreError> {
    let mut sql = Sql::new(concat!("SELECT ", columns!(tasks_without_doc), " FROM tasks WHERE 1 = 1"));
    any_of(&mut sql, "id", tasks);
    sql.push(" ORDER BY id");
    let rows = sql.build().for_update().fetch_all(tx).await?;
    rows.iter().map(|found| row::task(found).map(|task| (task.index.id.clone(), task))).collect()
}

/// The ones of these tasks that wait for other tasks, or are arrays: they are queued, and in no queue.
async fn in_no_queue(tx: &mut Tx, tasks: &[String]) -> Result<Vec<String>, StoreError> {
    let mut sql = Sql::new("SELECT task FROM task_after WHERE 1 = 1");
    any_of(&mut sql, "task", tasks);
    sql.push(" UNION SELECT task FROM arrays WHERE 1 = 1");
    any_of(&mut sql, "task", tasks);
    Ok(sql.build_scalar().fetch_all(tx).await?)
}

/// The ones of these tasks whose newest run was abandoned.
async fn given_up(tx: &mut Tx, tasks: &[String]) -> Result<Vec<String>, StoreError> {
    let mut sql = Sql::new(
        "SELECT runs.task FROM runs JOIN tasks ON tasks.id = runs.task AND tasks.run = runs.run \
         WHERE runs.outcome IN ('queued', 'created')",
    );
    any_of(&mut sql, "runs.task", tasks);
    Ok(sql.build_scalar().fetch_all(tx).await?)
}

async fn end_runs(tx: &mut Tx, tasks: &[String], to: TaskStatus, change: &Change) -> Result<(), StoreError> {
    let mut sql = runs::ended(to, &change.reason, change.now_us);
    any_of(&mut sql, "task", tasks);
    sql.build().execute(tx).await?;
    Ok(())
}
