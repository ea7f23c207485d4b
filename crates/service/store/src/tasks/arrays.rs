//! Arrays: one task from which many are made, one for each index. The array is queued, but is in no queue, so that no
//! agent takes it. A few of its tasks wait at a time; they are tasks like any other. When all have ended, the array
//! ends.

use std::collections::BTreeMap;

use cantle_model::TaskStatus::{
    Closed, Completed, Failed, InProgress, Published, Publishing, Queued, Stopped,
};
use cantle_model::{ArraySpec, TaskStatus};
use serde_json::{Map, Value};

use super::record::{NewTask, any_of, load_whole};
use super::wishes::Wishes;
use crate::data::{Change, TaskRow};
use crate::db::{Row, Sql, Tx, query, query_as, query_scalar};
use crate::{Store, StoreError, Write, row};

/// The number of tasks of one array that are in a queue at a time. It bounds the queue, whatever the size of the array,
/// and is more than a fleet starts between two steps.
const WAITING: usize = 64;

/// How far an array is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayProgress {
    /// Its indices.
    pub spec: ArraySpec,
    /// Tasks that have not started, made or not.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u32,
    /// Tasks that completed.
    pub completed: u32,
    /// Tasks that failed.
    pub failed: u32,
    /// Tasks that were stopped or deleted.
    pub stopped: u32,
}

impl ArrayProgress {
    /// As its row has it, and its tasks that are not counted there yet.
    fn of(row: &Row, live: &Live) -> Result<Self, StoreError> {
        let (_, spec, _) = array(row)?;
        let counted = |column: &str| {
            let count: i64 = row.try_get(column)?;
            let more = live.over.iter().filter(|(_, state)| counter(*state) == column).count();
            Ok::<u32, StoreError>(u32::try_from(count).unwrap_or(u32::MAX).saturating_add(few(more)))
        };
        let (completed, failed, stopped) = (counted("completed")?, counted("failed")?, counted("stopped")?);
        let running = few(live.running);
        let waiting = spec.count().saturating_sub(completed + failed + stopped + running);
        Ok(Self { spec, waiting, running, completed, failed, stopped })
    }

    /// The state of an array whose tasks have all ended.
    const fn outcome(&self) -> TaskStatus {
        match (self.failed, self.stopped) {
            (0, 0) => Completed,
            (0, _) => Stopped,
            _ => Failed,
        }
    }

    /// `3 of 100 completed, 1 failed, 8 running, 88 waiting`.
    #[must_use]
    pub fn line(&self) -> String {
        let parts = [
            (self.failed, "failed"),
            (self.stopped, "stopped"),
            (self.running, "running"),
            (self.waiting, "waiting"),
        ];
        let parts = parts.into_iter().filter(|(count, _)| *count > 0);
        let rest: String = parts.map(|(count, what)| format!(", {count} {what}")).collect();
        format!("{} of {} completed{rest}", self.completed, self.spec.count())
    }
}

/// The column of `arrays` that counts the tasks that ended in this state.
const fn counter(state: TaskStatus) -> &'static str {
    match state {
        Completed | Closed | Published | Publishing => "completed",
        Failed => "failed",
        _ => "stopped",
    }
}

fn few(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The state of an array after one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStep {
    /// The array.
    pub array: String,
    /// How many tasks were made.
    pub made: u32,
    /// Its state, if all of its tasks have ended or none can be made.
    pub ended: Option<(TaskStatus, String)>,
}

/// The tasks of an array that have not been counted as ended.
#[derive(Default)]
struct Live {
    waiting: usize,
    running: usize,
    /// Those that have ended since.
    over: Vec<(String, TaskStatus)>,
}

/// The rows of arrays; a condition follows.
macro_rules! arrays {
    () => {
        "SELECT task, spec, made, completed, failed, stopped FROM arrays "
    };
}

const LIVE: &str = "SELECT array_elements.task AS task, tasks.status AS status FROM array_elements \
     LEFT JOIN tasks ON tasks.id = array_elements.task WHERE array_elements.ended IS NULL AND array_elements.of_array = $1";

fn live(rows: &[Row]) -> Result<Live, StoreError> {
    let mut live = Live::default();
    for row in rows {
        let status: Option<String> = row.try_get("status")?;
        match status.map(|_| row::status(row)).transpose()? {
            Some(InProgress) => live.running += 1,
            Some(status) if !status.is_final() => live.waiting += 1,
            ended => live.over.push((row.try_get("task")?, ended.unwrap_or(Stopped))),
        }
    }
    Ok(live)
}

/// How many tasks of an array are to be made now.
fn to_make(spec: &ArraySpec, made: u32, live: &Live) -> u32 {
    let all = live.waiting + live.running;
    let room = spec.most().map_or(usize::MAX, |most| (most as usize).saturating_sub(all));
    let room = room.min(WAITING.saturating_sub(live.waiting));
    u32::try_from(room).unwrap_or(u32::MAX).min(spec.count().saturating_sub(made))
}

impl Store {
    /// Makes the tasks of arrays that have room for more in their queues, and ends the arrays whose tasks have all ended. `params`
    /// changes the document of the array into that of its task with this index.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn step_arrays(
        &self,
        now_us: i64,
        id: impl Fn() -> String + Send + Sync,
        params: impl Fn(&mut Map<String, Value>, &str, u64) + Send + Sync,
    ) -> Result<Vec<ArrayStep>, StoreError> {
        let mut steps = Vec::new();
        let open = "SELECT arrays.task AS task, arrays.spec AS spec, arrays.made AS made FROM arrays \
             JOIN tasks ON tasks.id = arrays.task AND tasks.status = 'queued' \
             WHERE NOT EXISTS (SELECT 1 FROM task_after WHERE task_after.task = arrays.task) ORDER BY arrays.task";
        for row in query(open).fetch_all(&self.readers).await? {
            let (array, spec, made) = array(&row)?;
            let live = live(&query(LIVE).bind(&array).fetch_all(&self.readers).await?)?;
            let is_over = made == spec.count() && live.waiting + live.running == 0;
            // There is nearly always nothing to do, and no transaction has to wait for that.
            if !is_over && live.over.is_empty() && to_make(&spec, made, &live) == 0 {
                continue;
            }
            match self.step(&array, now_us, &id, &params).await {
                Ok(Some(step)) => steps.push(step),
                Ok(None) | Err(StoreError::NoTask(_)) => {}
                Err(
                    error @ (StoreError::NoProject(_)
                    | StoreError::NoQueue(_)
                    | StoreError::LongDocument { .. }
                    | StoreError::ManyDocuments { .. }),
                ) => steps.push(self.fail(&array, &error, now_us).await?),
                Err(error) => return Err(error),
            }
        }
        Ok(steps)
    }

    /// One step of one array; `None`: it is not open any more.
    async fn step(
        &self,
        array: &str,
        now_us: i64,
        id: &(impl Fn() -> String + Sync),
        params: &(impl Fn(&mut Map<String, Value>, &str, u64) + Sync),
    ) -> Result<Option<ArrayStep>, StoreError> {
        let mut write = self.write_shared().await?;
        let done = self.step_in(&mut write, array, now_us, id, params).await;
        let step = write.end(done).await?;
        if let Some((step, queue)) = &step {
            self.wake(queue, step.made as usize);
        }
        Ok(step.map(|(step, _)| step))
    }

    async fn step_in(
        &self,
        write: &mut Write,
        array: &str,
        now_us: i64,
        id: &(impl Fn() -> String + Sync),
        params: &(impl Fn(&mut Map<String, Value>, &str, u64) + Sync),
    ) -> Result<Option<(ArrayStep, String)>, StoreError> {
        let old = load_whole(&mut write.tx, array).await?;
        let found = query(concat!(arrays!(), "WHERE task = $1")).bind(array);
        let found = found.fetch_optional(&mut write.tx).await?;
        let (Some(found), Queued, Some(queue)) = (found, old.index.status, old.index.queue.clone()) else {
            return Ok(None);
        };
        let (_, spec, made) = self::array(&found)?;
        let live = live(&query(LIVE).bind(array).fetch_all(&mut write.tx).await?)?;
        for (task, state) in &live.over {
            count(&mut write.tx, task, array, counter(*state)).await?;
        }
        let more = to_make(&spec, made, &live);
        for position in made..made + more {
            let Some(index) = spec.index(position) else { break };
            let task = element(&old, id(), index, params);
            let change = Change { now_us, ..Change::default() };
            self.insert(&mut write.tx, &task, now_us).await?;
            query("INSERT INTO array_elements (task, of_array) VALUES ($1, $2)")
                .bind(&task.id)
                .bind(array)
                .execute(&mut write.tx)
                .await?;
            self.enqueue_in(write, &task.id, &queue, &change).await?;
        }
        query("UPDATE arrays SET made = $2 WHERE task = $1")
            .bind(array)
            .bind(i64::from(made + more))
            .execute(&mut write.tx)
            .await?;
        let mut step = ArrayStep { array: array.to_owned(), made: more, ended: None };
        if made + more == spec.count() && more == 0 && live.waiting + live.running == 0 {
            let progress = ArrayProgress::of(&found, &live)?;
            let (state, line) = (progress.outcome(), progress.line());
            let change = Change { now_us, message: line.clone(), ..Change::default() };
            self.move_to(write, &old, state, &change, "end").await?;
            step.ended = Some((state, line));
        }
        Ok(Some((step, queue)))
    }

    /// Ends an array whose tasks cannot be made.
    async fn fail(&self, array: &str, error: &StoreError, now_us: i64) -> Result<ArrayStep, StoreError> {
        let why = format!("its next task cannot be made: {error}");
        let change = Change { now_us, reason: why.clone(), message: why.clone(), ..Change::default() };
        self.set_status(array, Failed, &change).await?;
        Ok(ArrayStep { array: array.to_owned(), made: 0, ended: Some((Failed, why)) })
    }

    /// How far these tasks are that are arrays.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn arrays(&self, tasks: &[String]) -> Result<BTreeMap<String, ArrayProgress>, StoreError> {
        let mut found = BTreeMap::new();
        for ids in tasks.chunks(Self::BATCH) {
            let mut sql = Sql::new(concat!(arrays!(), "WHERE 1 = 1"));
            any_of(&mut sql, "task", ids);
            for row in sql.build().fetch_all(&self.readers).await? {
                let (task, ..) = array(&row)?;
                let live = live(&query(LIVE).bind(&task).fetch_all(&self.readers).await?)?;
                found.insert(task, ArrayProgress::of(&row, &live)?);
            }
        }
        Ok(found)
    }

    /// How far the arrays are whose tasks have not all ended.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn open_arrays(&self) -> Result<BTreeMap<String, ArrayProgress>, StoreError> {
        let open =
            "SELECT arrays.task FROM arrays JOIN tasks ON tasks.id = arrays.task AND tasks.status = 'queued'";
        let open: Vec<String> = query_scalar(open).fetch_all(&self.readers).await?;
        self.arrays(&open).await
    }

    /// The tasks of an array that have not ended.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn live_elements(&self, array: &str) -> Result<Vec<String>, StoreError> {
        let live = "SELECT array_elements.task FROM array_elements JOIN tasks ON tasks.id = array_elements.task \
             WHERE array_elements.of_array = $1 AND array_elements.ended IS NULL ORDER BY array_elements.task";
        Ok(query_scalar(live).bind(array).fetch_all(&self.readers).await?)
    }
}

/// A row of `arrays`: the task, its indices, and how many tasks were made. A row that an administrator wrote by hand
/// and that is no array has one index.
fn array(row: &Row) -> Result<(String, ArraySpec, u32), StoreError> {
    let spec: &str = row.try_get("spec")?;
    let spec = spec.parse().or_else(|_| "0".parse()).map_err(|_| StoreError::NoTask(spec.to_owned()))?;
    let made: i64 = row.try_get("made")?;
    Ok((row.try_get("task")?, spec, u32::try_from(made).unwrap_or(u32::MAX)))
}

/// The task with this index.
fn element(
    array: &TaskRow,
    id: String,
    index: u64,
    params: &(impl Fn(&mut Map<String, Value>, &str, u64) + Sync),
) -> NewTask {
    let mut doc = array.doc.clone();
    params(&mut doc, &array.index.id, index);
    NewTask {
        id,
        name: format!("{}[{index}]", array.index.name),
        kind: array.index.kind.clone(),
        owner: array.owner.clone(),
        project: array.index.project.clone(),
        parent: Some(array.index.id.clone()),
        made_by: None,
        tags: array.index.tags.clone(),
        system_tags: Vec::new(),
        wishes: Wishes { time: array.time, idle: array.idle, ..Wishes::default() },
        doc,
    }
}

/// Counts a task that has ended in this column.
async fn count(tx: &mut Tx, task: &str, array: &str, column: &str) -> Result<(), StoreError> {
    let sql = "UPDATE array_elements SET ended = $2 WHERE task = $1";
    query(sql).bind(task).bind(column).execute(&mut *tx).await?;
    let sql = format!("UPDATE arrays SET {column} = {column} + 1 WHERE task = $1");
    query(sql).bind(array).execute(tx).await?;
    Ok(())
}

/// The array that a new task is, if it is one; what was made of it before belongs to it no more.
pub(crate) async fn set_array(tx: &mut Tx, task: &str, spec: Option<&ArraySpec>) -> Result<(), StoreError> {
    for sql in ["DELETE FROM array_elements WHERE of_array = $1", "DELETE FROM arrays WHERE task = $1"] {
        query(sql).bind(task).execute(&mut *tx).await?;
    }
    if let Some(spec) = spec {
        query("INSERT INTO arrays (task, spec) VALUES ($1, $2)")
            .bind(task)
            .bind(spec.to_string())
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

/// Whether a task is an array.
pub(crate) async fn is_array(tx: &mut Tx, task: &str) -> Result<bool, StoreError> {
    let found = query("SELECT task FROM arrays WHERE task = $1").bind(task);
    Ok(found.fetch_optional(tx).await?.is_some())
}

/// The task of an array runs once more: it has not ended.
pub(crate) async fn count_again(tx: &mut Tx, task: &str) -> Result<(), StoreError> {
    let counted = "SELECT of_array, ended FROM array_elements WHERE task = $1 AND ended IS NOT NULL";
    let counted: Option<(String, String)> = query_as(counted).bind(task).fetch_optional(&mut *tx).await?;
    let Some((array, ended)) = counted else { return Ok(()) };
    query("UPDATE array_elements SET ended = NULL WHERE task = $1").bind(task).execute(&mut *tx).await?;
    let column = counter(ended.parse().unwrap_or(Stopped));
    let sql = format!("UPDATE arrays SET {column} = {column} - 1 WHERE task = $1");
    query(sql).bind(array).execute(tx).await?;
    Ok(())
}
