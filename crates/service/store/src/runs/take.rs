//! Takes tasks out of queues for agents, each for a new run.
//!
//! On PostgreSQL one statement takes them, and is the transaction too. While one of this server is under way at a queue, the
//! callers that come wait for the next one, which takes a task for each of them: many callers cost the database hardly more
//! than one. A caller alone never waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::data::Taken;
use crate::db::{Pool, Shared, Tx, query, query_as};
use crate::tasks::flow::queue_name;
use crate::{Store, StoreError, runs};

/// Pauses before a queue is asked again of which others keep all tasks: mostly they take them, which is over in a moment. After the
/// last one, a transaction waits for the others and keeps a connection meanwhile.
const KEPT: [Duration; 3] = [Duration::from_millis(1), Duration::from_millis(4), Duration::from_millis(15)];
/// The most callers that one statement takes tasks for.
const MOST: usize = 64;

impl Store {
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
        if let (None, Some(pool)) = (only, self.writers.at_once()) {
            for pause in KEPT {
                match self.takers.take(&pool, queue, now_us).await? {
                    Ok(taken) => return Ok(Some(taken)),
                    Err(Nothing::Empty) => return Ok(None),
                    Err(Nothing::NoQueue) => return Err(StoreError::NoQueue(queue.to_owned())),
                    Err(Nothing::Kept) => tokio::time::sleep(pause).await,
                }
            }
        }
        let mut write = self.write_shared().await?;
        let done = take_in(&mut write.tx, queue, only, now_us).await;
        write.end(done).await
    }
}

/// Why nothing was taken.
#[derive(Clone, Copy, Debug)]
enum Nothing {
    Empty,
    /// Others keep all that is there.
    Kept,
    NoQueue,
}

/// The answer to a caller.
type Answer = Result<Result<Taken, Nothing>, StoreError>;

/// A caller that waits for the first task of a queue.
#[derive(Debug)]
struct Caller {
    now_us: i64,
    answer: oneshot::Sender<Answer>,
}

/// The queues at which a statement of this server is under way, each with the callers that wait for the next one.
#[derive(Debug, Default)]
pub(crate) struct Takers(Mutex<BTreeMap<String, VecDeque<Caller>>>);

impl Takers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, VecDeque<Caller>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first task of a queue that no other transaction has locked.
    async fn take(self: &Arc<Self>, pool: &Pool, queue: &str, now_us: i64) -> Answer {
        let (answer, result) = oneshot::channel();
        if self.wait(queue, Caller { now_us, answer }) {
            let (takers, pool, queue) = (Arc::clone(self), pool.clone(), queue.to_owned());
            // Apart from this caller: the others wait for it, also if this one goes away.
            tokio::spawn(Serving { takers, pool, queue, is_over: false }.run());
        }
        result.await.unwrap_or_else(|_| Err(sqlx::Error::WorkerCrashed.into()))
    }

    /// Lets a caller wait; returns whether it is the first one, so that no task serves the queue yet.
    fn wait(&self, queue: &str, caller: Caller) -> bool {
        let mut queues = self.lock();
        let is_first = !queues.contains_key(queue);
        queues.entry(queue.to_owned()).or_default().push_back(caller);
        is_first
    }
}

/// Serves the callers at a queue until none waits.
struct Serving {
    takers: Arc<Takers>,
    pool: Pool,
    queue: String,
    is_over: bool,
}

impl Serving {
    async fn run(mut self) {
        while let Some(callers) = self.next() {
            self.serve(callers).await;
        }
    }

    /// The callers of the next statement, those that came first. Their number is a power of two: the database makes a plan for
    /// each number.
    fn next(&mut self) -> Option<VecDeque<Caller>> {
        let mut queues = self.takers.lock();
        let waiting = queues.get_mut(&self.queue)?;
        waiting.retain(|caller| !caller.answer.is_closed());
        let Some(power) = waiting.len().min(MOST).checked_ilog2() else {
            queues.remove(&self.queue);
            self.is_over = true;
            return None;
        };
        Some(waiting.drain(..1 << power).collect())
    }

    async fn serve(&self, mut callers: VecDeque<Caller>) {
        let now_us = callers.iter().map(|caller| caller.now_us).max().unwrap_or_default();
        let result = match take_first(&self.pool, &self.queue, callers.len(), now_us).await {
            Ok(Ok(all)) => {
                all.into_iter().for_each(|taken| hand_out(&mut callers, taken));
                return self.wait_on(callers);
            }
            Ok(Err(nothing)) => Ok(nothing),
            Err(error) => Err(Arc::new(error)),
        };
        for caller in callers {
            let answer = match &result {
                Ok(nothing) => Ok(Err(*nothing)),
                Err(error) => Err(Shared::of(error).into()),
            };
            // It may have gone away.
            let _ = caller.answer.send(answer);
        }
    }

    /// There were fewer tasks than callers. The next statement finds out why, and has these callers first.
    fn wait_on(&self, callers: VecDeque<Caller>) {
        let mut queues = self.takers.lock();
        let waiting = queues.entry(self.queue.clone()).or_default();
        callers.into_iter().rev().for_each(|caller| waiting.push_front(caller));
    }
}

impl Drop for Serving {
    /// After a panic, those that wait get an error, and the next caller is the first one again.
    fn drop(&mut self) {
        if !self.is_over {
            self.takers.lock().remove(&self.queue);
        }
    }
}

/// Gives a task to the first caller that is still there. If none is, [`Store::reclaim`] puts the task back.
fn hand_out(callers: &mut VecDeque<Caller>, taken: Taken) {
    let mut answer = Ok(Ok(taken));
    while let Some(caller) = callers.pop_front() {
        match caller.answer.send(answer) {
            Ok(()) => return,
            Err(back) => answer = back,
        }
    }
}

/// Takes the first tasks that no other transaction has locked out of a queue, at most `count`, and begins their runs,
/// with one statement: it is the transaction, too.
async fn take_first(
    pool: &Pool,
    queue: &str,
    count: usize,
    now_us: i64,
) -> Result<Result<Vec<Taken>, Nothing>, sqlx::Error> {
    // The count is part of the text: PostgreSQL would make a plan for each call, to see what a value is worth.
    let text = format!(
        "WITH first AS MATERIALIZED (SELECT task FROM queue_entries JOIN tasks ON tasks.id = task \
         WHERE queue_entries.queue = $1 ORDER BY position LIMIT {count} FOR UPDATE OF tasks SKIP LOCKED), \
         entry AS (DELETE FROM queue_entries USING first WHERE queue_entries.task = first.task \
         RETURNING queue_entries.task, position, added_us), \
         begun AS (UPDATE tasks SET run = run + 1, taken_us = $2 FROM entry WHERE id = entry.task \
         RETURNING id, run, project, tasks.queue, owner, name, tags, \
         CASE WHEN status = 'queued' THEN status_changed_us END AS queued_us), \
         runs AS (INSERT INTO runs (task, run, project, queue, owner, name, tags, queued_us, taken_us, slices) \
         SELECT id, run, project, queue, owner, name, tags, queued_us, $2, '[]' FROM begun) \
         SELECT entry.task, added_us, run, CASE WHEN entry.task IS NULL \
         THEN (SELECT (SELECT COUNT(*) FROM (SELECT task FROM queue_entries WHERE queue = $1 LIMIT 1) AS first) \
         FROM queues WHERE id = $1) END AS waits \
         FROM (SELECT 1) AS one LEFT JOIN entry ON TRUE LEFT JOIN begun ON begun.id = entry.task ORDER BY position"
    );
    let rows = query(text).bind(queue).bind(now_us).fetch_all(pool).await?;
    let mut all = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(task) = row.try_get("task")? else {
            return Ok(Err(match row.try_get::<Option<i64>, _>("waits")? {
                None => Nothing::NoQueue,
                Some(0) => Nothing::Empty,
                Some(_) => Nothing::Kept,
            }));
        };
        all.push(Taken { task, added_us: row.try_get("added_us")?, run: row.try_get("run")? });
    }
    Ok(Ok(all))
}

async fn take_in(
    tx: &mut Tx,
    queue: &str,
    only: Option<&str>,
    now_us: i64,
) -> Result<Option<Taken>, StoreError> {
    let Some((task, added_us)) = take_entry(tx, queue, only).await? else {
        queue_name(tx, queue).await?;
        return Ok(None);
    };
    let run = runs::begin(tx, &task, Some(now_us)).await?;
    Ok(Some(Taken { task, added_us, run }))
}

/// Takes the first entry out of a queue, or the one of `only`: its task, and since when it waited. On PostgreSQL the task's
/// row decides who may take it: a transaction that takes or changes a task locks the row first.
async fn take_entry(
    tx: &mut Tx,
    queue: &str,
    only: Option<&str>,
) -> Result<Option<(String, i64)>, StoreError> {
    if let Some(task) = only {
        let one =
            query_as("DELETE FROM queue_entries WHERE queue = $1 AND task = $2 RETURNING task, added_us");
        let one = one.on_postgres(
            "DELETE FROM queue_entries WHERE task = (SELECT task FROM queue_entries JOIN tasks ON tasks.id = task \
             WHERE queue_entries.queue = $1 AND task = $2 FOR UPDATE OF tasks) RETURNING task, added_us",
        );
        return Ok(one.bind(queue).bind(task).fetch_optional(tx).await?);
    }
    loop {
        let first = query_as(
            "DELETE FROM queue_entries WHERE task = (SELECT task FROM queue_entries WHERE queue = $1 \
             ORDER BY position LIMIT 1) RETURNING task, added_us",
        );
        let first = first.on_postgres(
            "DELETE FROM queue_entries WHERE task = (SELECT task FROM queue_entries JOIN tasks ON tasks.id = task \
             WHERE queue_entries.queue = $1 ORDER BY position LIMIT 1 FOR UPDATE OF tasks SKIP LOCKED) \
             RETURNING task, added_us",
        );
        if let Some(taken) = first.bind(queue).fetch_optional(&mut *tx).await? {
            return Ok(Some(taken));
        }
        // Others may keep what there is, and leave it after all: wait for them.
        let kept = query("SELECT task FROM queue_entries WHERE queue = $1 LIMIT 1").on_postgres(
            "SELECT task FROM queue_entries JOIN tasks ON tasks.id = task WHERE queue_entries.queue = $1 \
             ORDER BY position LIMIT 1 FOR UPDATE OF tasks",
        );
        if kept.bind(queue).fetch_optional(&mut *tx).await?.is_none() {
            return Ok(None);
        }
    }
}
