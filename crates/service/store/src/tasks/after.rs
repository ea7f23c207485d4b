//! Tasks that wait for the end of others. Such a task is queued, but is in no queue, so that no agent takes it,
//! ClearML's own neither. When what it waits for has happened, it enters its queue; when that can never happen, it is
//! stopped.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::TaskStatus::Stopped;
use cantle_model::{Ending, Met, TaskStatus};

use super::arrays::is_array;
use super::flow::{about, append, entry};
use super::record::{any_of, load};
use crate::data::{Change, EventRow};
use crate::db::{Row, Sql, query, query_scalar};
use crate::{Store, StoreError, row};

/// One task that another waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterRow {
    /// The task that waits.
    pub task: String,
    /// The task that it waits for.
    pub other: String,
    /// How that one must end.
    pub ending: Ending,
    /// Name and state of that one; `None`: it was deleted.
    pub now: Option<(String, TaskStatus)>,
}

impl AfterRow {
    /// Whether it waits no more.
    #[must_use]
    pub fn met(&self) -> Met {
        self.now.as_ref().map_or(Met::Never, |(_, status)| self.ending.is_met_by(*status))
    }

    /// Why it will never be met, for people; `other` is what the other task is called.
    #[must_use]
    pub fn why_never(&self, other: &str) -> String {
        let word = self.ending.word();
        match &self.now {
            None => format!("after {word}:{other}, which was deleted"),
            Some((_, status)) => format!("after {word}:{other}, which is {status}"),
        }
    }

    /// The name of the other task, or its id.
    #[must_use]
    pub fn name(&self) -> &str {
        self.now.as_ref().map_or(&self.other, |(name, _)| name)
    }
}

/// The result for a task that waited for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It entered this queue.
    Queued(String),
    /// It was stopped, for this reason.
    Stopped(String),
}

const ROWS: &str = "SELECT task_after.task AS task, task_after.other AS other, task_after.ending AS ending, \
     others.name AS name, others.status AS status FROM task_after \
     JOIN tasks ON tasks.id = task_after.task AND tasks.status = 'queued' \
     LEFT JOIN tasks AS others ON others.id = task_after.other";

fn after(row: &Row) -> Result<AfterRow, StoreError> {
    let name: Option<String> = row.try_get("name")?;
    let now = name.map(|name| row::status(row).map(|status| (name, status))).transpose()?;
    let ending: &str = row.try_get("ending")?;
    // A newer version may know more: then it waits, with this as its reason.
    let ending = ending.parse().unwrap_or(Ending::Any);
    Ok(AfterRow { task: row.try_get("task")?, other: row.try_get("other")?, ending, now })
}

impl Store {
    /// The tasks that each waiting queued task waits for, by task.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn waiting_after(&self) -> Result<BTreeMap<String, Vec<AfterRow>>, StoreError> {
        let rows = query(format!("{ROWS} ORDER BY task_after.task, task_after.other"));
        let mut all: BTreeMap<String, Vec<AfterRow>> = BTreeMap::new();
        for found in rows.fetch_all(&self.readers).await?.iter().map(after) {
            let found = found?;
            all.entry(found.task.clone()).or_default().push(found);
        }
        Ok(all)
    }

    /// Whether one of these tasks waits for `task`, at once or by way of others.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn waits_for(&self, others: &[String], task: &str) -> Result<bool, StoreError> {
        let (mut next, mut seen) = (others.to_vec(), BTreeSet::new());
        while !next.is_empty() {
            let mut further = Vec::new();
            // A statement takes that many values.
            for ids in next.chunks(Self::BATCH) {
                let mut sql = Sql::new(
                    "SELECT DISTINCT other FROM task_after JOIN tasks ON tasks.id = task_after.task \
                     WHERE tasks.status = 'queued'",
                );
                any_of(&mut sql, "task_after.task", ids);
                let found: Vec<String> = sql.build_scalar().fetch_all(&self.readers).await?;
                further.extend(found.into_iter().filter(|other| seen.insert(other.clone())));
            }
            if seen.contains(task) {
                return Ok(true);
            }
            next = further;
        }
        Ok(false)
    }

    /// Lets the tasks enter their queues for which all that they waited for has happened, and stops those for which it never
    /// can. Returns what became of which task.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn settle_after(&self, now_us: i64) -> Result<Vec<(String, Settled)>, StoreError> {
        // There is nearly always none, and no transaction has to wait for that.
        let all = self.waiting_after().await?;
        let due = all.into_iter().filter(|(_, rows)| all_met(rows) != Met::NotYet).map(|(task, _)| task);
        let mut settled = Vec::new();
        for task in due {
            match self.settle(&task, now_us).await {
                Ok(Some(what)) => settled.push((task, what)),
                // Settled by another server, or deleted.
                Ok(None) | Err(StoreError::NoTask(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(settled)
    }

    async fn settle(&self, task: &str, now_us: i64) -> Result<Option<Settled>, StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let rows = query(format!("{ROWS} WHERE task_after.task = $1 ORDER BY task_after.other"));
        let rows = rows.bind(task).fetch_all(&mut write.tx).await?;
        let rows = rows.iter().map(after).collect::<Result<Vec<_>, _>>()?;
        let met = all_met(&rows);
        if rows.is_empty() || met == Met::NotYet || entry(&mut write.tx, task).await?.is_some() {
            return Ok(None);
        }
        query("DELETE FROM task_after WHERE task = $1").bind(task).execute(&mut write.tx).await?;
        let queue = old.index.queue.clone().unwrap_or_default();
        let name: Option<String> = query_scalar("SELECT name FROM queues WHERE id = $1")
            .for_share()
            .bind(&queue)
            .fetch_optional(&mut write.tx)
            .await?;
        let never = rows.iter().find(|row| row.met() == Met::Never);
        let (name, why) = match (name, never) {
            (Some(name), None) => (name, String::new()),
            (_, Some(row)) => (String::new(), row.why_never(row.name())),
            (None, None) => (String::new(), "its queue does not exist any more".to_owned()),
        };
        let change = Change { now_us, reason: why.clone(), message: why.clone(), ..Change::default() };
        if !why.is_empty() {
            self.move_to(&mut write, &old, Stopped, &change, "end").await?;
            write.commit().await?;
            return Ok(Some(Settled::Stopped(why)));
        }
        if !is_array(&mut write.tx, task).await? {
            append(&mut write.tx, task, &queue, now_us).await?;
        }
        let ended: Vec<String> = rows.iter().map(said).collect();
        let event = about(&old, "enqueue", &change, format!("queued in {name}, after {}", ended.join(", ")));
        self.record(&mut write.tx, EventRow { queue: Some(name), ..event }).await?;
        write.commit().await?;
        self.wake(&queue, 1);
        Ok(Some(Settled::Queued(queue)))
    }
}

/// `train-1 (completed)`.
fn said(row: &AfterRow) -> String {
    let status = row.now.as_ref().map_or_else(|| "deleted".to_owned(), |(_, status)| status.to_string());
    format!("{} ({status})", row.name())
}

/// Of all that a task waits for: one that can never be met decides, then one that is not met yet.
fn all_met(rows: &[AfterRow]) -> Met {
    let has = |met| rows.iter().any(|row| row.met() == met);
    if has(Met::Never) {
        Met::Never
    } else if has(Met::NotYet) {
        Met::NotYet
    } else {
        Met::Yes
    }
}
