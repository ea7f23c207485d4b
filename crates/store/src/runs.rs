//! Runs: each execution of a task, with its node, its duration and the reason of its end. Each run of a task has a new
//! number, and a report that names another number than the newest is refused.

use cantle_model::{Slice, TaskStatus};

use crate::data::{TaskClaim, TaskRow};
use crate::db::{Sql, Tx, query, query_scalar};
use crate::former::put_aside;
use crate::{Store, StoreError, row};

/// `INSERT` of new runs from `tasks`, to which their numbers and times were written; a condition follows.
macro_rules! begin_runs {
    () => {
        "INSERT INTO runs (task, run, project, queue, owner, name, queued_us, taken_us, slices) \
         SELECT id, run, project, queue, owner, name, CASE WHEN status = 'queued' THEN status_changed_us END, \
         taken_us, '[]' FROM tasks"
    };
}
pub(crate) use begin_runs;

/// A run of a task. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunRow {
    /// The task.
    pub task: String,
    /// Its number: 1 for the first run of the task.
    pub run: i64,
    /// Id of the task's project when the run began.
    pub project: Option<String>,
    /// Id of the queue that the task came from.
    pub queue: Option<String>,
    /// Id of the user whose task it was.
    pub owner: Option<String>,
    /// Name of the task when the run began.
    pub name: Option<String>,
    /// Since when the task had waited.
    pub queued_us: Option<i64>,
    /// When an agent took the task out of its queue.
    pub taken_us: Option<i64>,
    /// When the task began to run.
    pub started_us: Option<i64>,
    /// When it ended.
    pub ended_us: Option<i64>,
    /// Where.
    pub node: Option<String>,
    /// The lease that held the task.
    pub lease: Option<String>,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// How the process ended.
    pub exit_code: Option<i64>,
    /// The state that it left its task in; `Queued` or `Created`: it was given up. `None` while it lasts.
    pub outcome: Option<TaskStatus>,
    /// Why it ended so, for people.
    pub why: Option<String>,
}

impl Store {
    /// All runs of a task, the first one first; those of a deleted task, too.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn runs(&self, task: &str) -> Result<Vec<RunRow>, StoreError> {
        let rows = query(select!(runs, "WHERE task = $1 ORDER BY run")).bind(task);
        rows.fetch_all(&self.readers).await?.iter().map(row::run).collect()
    }

    /// The runs of all tasks, deleted ones too, of which a part lies in this time, in the order in which they began.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn runs_between(&self, from_us: i64, to_us: i64) -> Result<Vec<RunRow>, StoreError> {
        let rows = query(select!(
            runs,
            "WHERE COALESCE(taken_us, started_us) < $2 AND (ended_us IS NULL OR ended_us > $1) \
             ORDER BY COALESCE(taken_us, started_us), task, run"
        ));
        let rows = rows.bind(from_us).bind(to_us).fetch_all(&self.readers).await?;
        rows.iter().map(row::run).collect()
    }
}

/// Refuses a report about a run that was given up, or another than the newest one of the task.
pub(crate) async fn fence(tx: &mut Tx, task: &TaskRow, run: Option<i64>) -> Result<(), StoreError> {
    let over = "SELECT run FROM runs WHERE task = $1 AND run = $2 AND outcome IN ('queued', 'created')";
    refuse(tx, task, run, over).await
}

/// As [`fence`], for a report that the run begins: one that has ended can't. Somebody stopped the task after its agent had
/// taken it.
pub(crate) async fn fence_beginning(tx: &mut Tx, task: &TaskRow, run: Option<i64>) -> Result<(), StoreError> {
    let over = "SELECT run FROM runs WHERE task = $1 AND run = $2 AND outcome IS NOT NULL";
    refuse(tx, task, run, over).await
}

/// Refuses a report about another run than the newest one, or one that is `over` by that query.
async fn refuse(tx: &mut Tx, task: &TaskRow, run: Option<i64>, over: &'static str) -> Result<(), StoreError> {
    let Some(run) = run else { return Ok(()) };
    let id = &task.index.id;
    let is_newest = run == task.run;
    let holds =
        is_newest && (task.has_run() || query(over).bind(id).bind(run).fetch_optional(tx).await?.is_none());
    if holds { Ok(()) } else { Err(StoreError::StaleRun { task: id.clone(), run, newest: task.run }) }
}

/// Begins a run of a task, which was taken out of its queue now if a time is given, and returns its number.
pub(crate) async fn begin(tx: &mut Tx, task: &str, taken_us: Option<i64>) -> Result<i64, StoreError> {
    let next =
        "UPDATE tasks SET run = run + 1, taken_us = COALESCE($2, taken_us) WHERE id = $1 RETURNING run";
    let run: i64 = query_scalar(next).bind(task).bind(taken_us).fetch_one(&mut *tx).await?;
    query(concat!(begin_runs!(), " WHERE id = $1")).bind(task).later(tx).await?;
    Ok(run)
}

/// The number of the run that lasts; one begins if none does.
async fn lasting(tx: &mut Tx, task: &str) -> Result<i64, StoreError> {
    let open = query_scalar("SELECT run FROM runs WHERE task = $1 AND outcome IS NULL ORDER BY run DESC");
    match open.bind(task).fetch_optional(&mut *tx).await? {
        Some(run) => Ok(run),
        None => begin(tx, task, None).await,
    }
}

/// The task of the run that lasts has started.
pub(crate) async fn start(tx: &mut Tx, old: &TaskRow, now_us: i64) -> Result<(), StoreError> {
    let task = &old.index.id;
    let run = if old.has_run() {
        if old.run > 1 {
            put_aside(tx, task, old.run).await?;
        }
        old.run
    } else {
        lasting(tx, task).await?
    };
    query("UPDATE runs SET started_us = $3 WHERE task = $1 AND run = $2")
        .bind(task)
        .bind(run)
        .bind(now_us)
        .later(tx)
        .await?;
    Ok(())
}

/// A lease holds the present run, or shows how its newest one ended.
pub(crate) async fn hold(
    tx: &mut Tx,
    old: &TaskRow,
    claim: &TaskClaim,
    now_us: i64,
) -> Result<(), StoreError> {
    let ends = claim.exit_code.is_some();
    let run = if ends { old.run } else { lasting(tx, &claim.task).await? };
    let slices = if claim.slices.is_empty() { &old.slices } else { &claim.slices };
    query(
        "UPDATE runs SET node = $3, lease = $4, slices = $5, exit_code = $6, why = COALESCE($7, why), \
         ended_us = COALESCE(ended_us, $8) WHERE task = $1 AND run = $2",
    )
    .bind(&claim.task)
    .bind(run)
    .bind(&claim.node)
    .bind(&claim.lease)
    .bind(row::to_json(slices)?)
    .bind(claim.exit_code)
    .bind(&claim.reason)
    .bind(ends.then_some(now_us))
    .later(tx)
    .await?;
    Ok(())
}

/// The run that lasts, if one does, has left its task in this state.
pub(crate) async fn end(
    tx: &mut Tx,
    task: &str,
    outcome: TaskStatus,
    why: &str,
    now_us: i64,
) -> Result<(), StoreError> {
    let mut sql = ended(outcome, why, now_us);
    sql.push(" AND task = ").push_bind(task);
    Ok(sql.build().later(tx).await?)
}

/// Ends the runs that last, of the tasks that the rest of the statement names: it ends in a condition.
pub(crate) fn ended(outcome: TaskStatus, why: &str, now_us: i64) -> Sql {
    let mut sql = Sql::new("UPDATE runs SET outcome = ");
    sql.push_bind(outcome.as_str()).push(", ended_us = COALESCE(ended_us, ").push_bind(now_us);
    sql.push("), why = COALESCE(why, ").push_bind((!why.is_empty()).then_some(why));
    sql.push(") WHERE outcome IS NULL");
    sql
}
