//! The requests of a task that enters a queue, apart from its size: how long it may run and be idle, which tasks end before, and
//! whether many are to be made of it.

use std::collections::BTreeMap;

use cantle_model::{After, ArraySpec, IdleTime, TaskStatus, TimeLimit};

use super::arrays::{is_array, set_array};
use super::flow::{about, entry, queue_name, refusal};
use super::record::{any_of, load};
use crate::data::{Change, EventRow};
use crate::db::{Sql, Tx, query, query_as};
use crate::{Store, StoreError, row};

/// The wishes of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// How long it may run.
    pub time: Option<TimeLimit>,
    /// For how long it may be idle.
    pub idle: Option<IdleTime>,
    /// The tasks that end before it starts, by id.
    pub after: Vec<After>,
    /// The tasks that are made of it instead of running it.
    pub array: Option<ArraySpec>,
    /// The secrets of its owner that a new task gets, by name. A task that exists gets them with [`Store::give_secrets`].
    pub secrets: Vec<String>,
}

/// How long the tasks of a queue may run, and be idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTimes {
    /// At most; also for a task that asks for nothing, where no default is given.
    pub max: Option<TimeLimit>,
    /// For a task that asks for nothing.
    pub default: Option<TimeLimit>,
    /// For how long a task may be idle at most; also one that asks for nothing, where no default is given.
    pub max_idle: Option<IdleTime>,
    /// For how long a task may be idle that asks for nothing.
    pub default_idle: Option<IdleTime>,
}

/// A column of seconds. A value that an administrator wrote into the database by hand and that is no limit, is ignored.
pub(crate) fn limit(seconds: Option<i64>) -> Option<TimeLimit> {
    TimeLimit::of_seconds(u64::try_from(seconds?).ok()?)
}

/// A limit as such a column has it.
pub(crate) fn seconds(limit: Option<TimeLimit>) -> Option<i64> {
    limit.map(|limit| limit.seconds().cast_signed())
}

/// As [`limit`].
pub(crate) fn idle(seconds: Option<i64>) -> Option<IdleTime> {
    IdleTime::of_seconds(u64::try_from(seconds?).ok()?)
}

/// As [`seconds`].
pub(crate) fn idle_seconds(idle: Option<IdleTime>) -> Option<i64> {
    idle.map(|idle| idle.seconds().cast_signed())
}

/// Which of the limits of a task is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedLimit {
    /// How long it may run.
    Run,
    /// For how long it may be idle.
    Idle,
}

impl Store {
    /// Sets how long the tasks of a queue may run.
    ///
    /// # Errors
    /// [`StoreError::NoQueue`].
    pub async fn set_queue_times(&self, queue: &str, times: QueueTimes) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        queue_name(&mut write.tx, queue).await?;
        query("DELETE FROM queue_times WHERE queue = $1 OR queue NOT IN (SELECT id FROM queues)")
            .bind(queue)
            .execute(&mut write.tx)
            .await?;
        if times != QueueTimes::default() {
            query(
                "INSERT INTO queue_times (queue, max_s, default_s, max_idle_s, default_idle_s) \
                 VALUES ($1, $2, $3, $4, $5)",
            )
            .bind(queue)
            .bind(seconds(times.max))
            .bind(seconds(times.default))
            .bind(idle_seconds(times.max_idle))
            .bind(idle_seconds(times.default_idle))
            .execute(&mut write.tx)
            .await?;
        }
        write.commit().await
    }

    /// The queues that limit the time of their tasks, by id.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn queue_times(&self) -> Result<BTreeMap<String, QueueTimes>, StoreError> {
        type Seconds = Option<i64>;
        let rows: Vec<(String, Seconds, Seconds, Seconds, Seconds)> =
            query_as("SELECT queue, max_s, default_s, max_idle_s, default_idle_s FROM queue_times")
                .fetch_all(&self.readers)
                .await?;
        let times = |(queue, max, default, max_idle, default_idle)| {
            let (max, default) = (limit(max), limit(default));
            let (max_idle, default_idle) = (idle(max_idle), idle(default_idle));
            (queue, QueueTimes { max, default, max_idle, default_idle })
        };
        Ok(rows.into_iter().map(times).collect())
    }

    /// The projects that limit the time of their tasks, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn project_times(&self) -> Result<BTreeMap<String, TimeLimit>, StoreError> {
        // A quota without a limit does not have the word.
        let rows = query("SELECT name, quota FROM projects WHERE quota LIKE '%max_time_s%'");
        let mut times = BTreeMap::new();
        for found in rows.fetch_all(&self.readers).await? {
            if let Some(time) = row::quota(&found)?.and_then(|quota| quota.max_time_s) {
                times.insert(found.try_get("name")?, time);
            }
        }
        Ok(times)
    }

    /// Sets the wishes of tasks that are about to enter a queue. Tasks that wait, or run, keep theirs.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_wishes(&self, wishes: &[(String, Wishes)]) -> Result<(), StoreError> {
        let ids: Vec<String> = wishes.iter().map(|(task, _)| task.clone()).collect();
        if self.have(wishes, &ids).await? {
            return Ok(());
        }
        let mut write = self.write().await?;
        for (task, wishes) in wishes {
            let old = load(&mut write.tx, task).await?;
            let waits = old.index.status == TaskStatus::Queued && is_array(&mut write.tx, task).await?;
            if old.has_run() || waits || entry(&mut write.tx, task).await?.is_some() {
                continue;
            }
            query("UPDATE tasks SET time_limit_s = $2, idle_limit_s = $3 WHERE id = $1")
                .bind(task)
                .bind(seconds(wishes.time))
                .bind(idle_seconds(wishes.idle))
                .execute(&mut write.tx)
                .await?;
            query("DELETE FROM task_after WHERE task = $1").bind(task).execute(&mut write.tx).await?;
            insert_after(&mut write.tx, task, &wishes.after).await?;
            set_array(&mut write.tx, task, wishes.array.as_ref()).await?;
        }
        write.commit().await
    }

    /// Whether tasks have these wishes already, as most do, which have none: no transaction has to wait for that.
    async fn have(&self, wishes: &[(String, Wishes)], ids: &[String]) -> Result<bool, StoreError> {
        let has_more = |wishes: &Wishes| !wishes.after.is_empty() || wishes.array.is_some();
        if ids.is_empty() || wishes.iter().any(|(_, wishes)| has_more(wishes)) {
            return Ok(ids.is_empty());
        }
        let mut sql = Sql::new(
            "SELECT id, time_limit_s, idle_limit_s, (SELECT COUNT(*) FROM task_after WHERE task = tasks.id) \
             + (SELECT COUNT(*) FROM arrays WHERE task = tasks.id) FROM tasks WHERE 1 = 1",
        );
        any_of(&mut sql, "id", ids);
        let rows: Vec<(String, Option<i64>, Option<i64>, i64)> =
            sql.build_as().fetch_all(&self.readers).await?;
        let mut times = BTreeMap::new();
        for (task, time, idle, more) in rows {
            if more > 0 {
                return Ok(false);
            }
            times.insert(task, (time, idle));
        }
        let same = |(task, wishes): &(String, Wishes)| {
            times.get(task) == Some(&(seconds(wishes.time), idle_seconds(wishes.idle)))
        };
        Ok(wishes.iter().all(same))
    }

    /// Changes how long a task may run, or be idle, with a function that gets the old limit.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::Status`] for a task that neither waits nor runs; [`StoreError::NoTime`] if it has
    /// no limit, or the function gives none.
    pub async fn change_time(
        &self,
        task: &str,
        which: ChangedLimit,
        change: &Change,
        to: impl FnOnce(TimeLimit) -> Option<TimeLimit> + Send,
    ) -> Result<TimeLimit, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        if !matches!(old.index.status, TaskStatus::Queued | TaskStatus::InProgress) {
            return Err(refusal(&old, "another time limit"));
        }
        let none = |limit| StoreError::NoTime { task: task.to_owned(), which, limit };
        let (was, is_possible, sql, may): (_, fn(&TimeLimit) -> bool, _, _) = match which {
            ChangedLimit::Run => (
                old.time,
                |_| true,
                "UPDATE tasks SET time_limit_s = $2, last_update_us = $3 WHERE id = $1",
                "may run",
            ),
            ChangedLimit::Idle => (
                limit(idle_seconds(old.idle)),
                |new| IdleTime::of_seconds(new.seconds()).is_some(),
                "UPDATE tasks SET idle_limit_s = $2, last_update_us = $3 WHERE id = $1",
                "may be idle for",
            ),
        };
        let was = was.ok_or_else(|| none(None))?;
        let new = to(was).filter(is_possible).ok_or_else(|| none(Some(was)))?;
        query(sql).bind(task).bind(seconds(Some(new))).bind(change.now_us).execute(&mut write.tx).await?;
        let event =
            EventRow { queue: None, ..about(&old, "time", change, format!("{may} {new}, before {was}")) };
        self.record(&mut write.tx, event).await?;
        write.commit().await?;
        Ok(new)
    }

    /// Ends the tasks whose time is over at `now_us`, of agents that do not know limits: those stop a task that is in another state.
    /// They hold no lease, as ClearML's; or their nodes are among `alive`, and they did not end it within `slack_us`. Returns their
    /// ids.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn end_overdue(
        &self,
        alive: &[String],
        slack_us: i64,
        now_us: i64,
    ) -> Result<Vec<String>, StoreError> {
        let overdue = || {
            let mut sql = Sql::new(
                "SELECT id FROM tasks WHERE status = 'in_progress' AND time_limit_s IS NOT NULL \
                 AND started_us + time_limit_s * 1000000 < ",
            );
            sql.push_bind(now_us).push(" AND (lease IS NULL");
            if !alive.is_empty() {
                sql.push(" OR started_us + time_limit_s * 1000000 < ").push_bind(now_us - slack_us);
                any_of(&mut sql, "node", alive);
            }
            sql.push(")");
            sql
        };
        // There is nearly always none, and no transaction has to wait for that.
        if overdue().build().fetch_optional(&self.readers).await?.is_none() {
            return Ok(Vec::new());
        }
        let mut write = self.write().await?;
        let overdue: Vec<String> =
            overdue().build_scalar().for_update_of_free().fetch_all(&mut write.tx).await?;
        for task in &overdue {
            let old = load(&mut write.tx, task).await?;
            let why = old.time.map(TimeLimit::is_over).unwrap_or_default();
            let change = Change { now_us, reason: why.clone(), message: why, ..Change::default() };
            self.move_to(&mut write, &old, TaskStatus::Failed, &change, "end").await?;
        }
        write.commit().await?;
        Ok(overdue)
    }
}

/// The wishes of a new task.
pub(crate) async fn insert_after(tx: &mut Tx, task: &str, after: &[After]) -> Result<(), StoreError> {
    for After { ending, task: other } in after {
        // Named twice, the first one counts: the server refuses contradictions.
        query("INSERT INTO task_after (task, other, ending) VALUES ($1, $2, $3) ON CONFLICT (task, other) DO NOTHING")
            .bind(task)
            .bind(other)
            .bind(ending.word())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}
