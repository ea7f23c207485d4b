//! Runs: each execution of a task, with its node, its duration and the reason of its end. Each run of a task has a new
//! number, and a report that names another number than the newest is refused.

pub(crate) mod direct;
pub(crate) mod evictions;
pub(crate) mod gpu_times;
pub(crate) mod lost;
pub(crate) mod take;
pub(crate) mod usage;
pub(crate) mod usage_days;

use std::collections::BTreeMap;

use cantle_model::{Measured, Slice, TaskStatus};

use crate::data::{TaskClaim, TaskRow};
use crate::db::{Row, Sql, Tx, query, query_scalar};
use crate::output::former::put_aside;
use crate::tasks::record::load;
use crate::{Store, StoreError, row};

/// `INSERT` of new runs from `tasks`, to which their numbers and times were written; a condition follows.
macro_rules! begin_runs {
    () => {
        "INSERT INTO runs (task, run, project, queue, owner, name, tags, queued_us, taken_us, slices) \
         SELECT id, run, project, queue, owner, name, tags, CASE WHEN status = 'queued' THEN status_changed_us END, \
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
    /// Its slices; if they changed, the last ones.
    pub slices: Vec<Slice>,
    /// The amounts that it held, each with the time of the change, in order, if they changed while it lasted; empty if
    /// not. The first one is from its beginning.
    pub changes: Vec<HeldFrom>,
    /// How the process ended.
    pub exit_code: Option<i64>,
    /// The state that it left its task in; `Queued` or `Created`: it was given up. `None` while it lasts.
    pub outcome: Option<TaskStatus>,
    /// Why it ended so, for people.
    pub why: Option<String>,
    /// Tags of its task when it began.
    pub tags: Vec<String>,
    /// Whether it could be stopped for other tasks; `None` before an agent has claimed it.
    pub preemptible: Option<bool>,
    /// Its measurements, if its agent reported them.
    pub measured: Measured,
}

/// The amount that a run held from a time on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFrom {
    /// In microseconds since 1970.
    pub from_us: i64,
    /// Its slices; none while it was suspended.
    pub slices: Vec<Slice>,
}

impl RunRow {
    /// The amounts that the run held between these times, in order: from, to, and the slices of that time.
    pub fn parts(&self, from_us: i64, to_us: i64) -> impl Iterator<Item = (i64, i64, &[Slice])> {
        let whole = self.changes.is_empty().then_some((from_us, to_us, self.slices.as_slice()));
        let changed = self.changes.iter().enumerate().map(move |(index, held)| {
            let until_us = self.changes.get(index + 1).map_or(to_us, |next| next.from_us.min(to_us));
            (held.from_us.max(from_us), until_us, held.slices.as_slice())
        });
        whole.into_iter().chain(changed)
    }

    /// All slices that it ever held.
    pub fn all_slices(&self) -> impl Iterator<Item = &Slice> {
        self.parts(i64::MIN, i64::MAX).flat_map(|(.., slices)| slices)
    }
}

impl Store {
    /// All runs of a task, the first one first; those of a deleted task, too.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn runs(&self, task: &str) -> Result<Vec<RunRow>, StoreError> {
        let rows = query(select!(runs, "WHERE task = $1 ORDER BY run")).bind(task);
        let changes = query(select!(run_slices, "WHERE task = $1 ORDER BY run, from_us")).bind(task);
        with_changes(&rows.fetch_all(&self.readers).await?, &changes.fetch_all(&self.readers).await?)
    }

    /// How long the newest completed runs of a queue since a time took, in milliseconds, the shortest first.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn run_times_ms(
        &self,
        queue: &str,
        since_us: i64,
        newest: i64,
    ) -> Result<Vec<i64>, StoreError> {
        let sql = "SELECT ended_us - started_us FROM runs WHERE queue = $1 AND outcome = 'completed' \
                   AND started_us IS NOT NULL AND ended_us > $2 ORDER BY ended_us DESC LIMIT $3";
        let mut times: Vec<i64> =
            query_scalar(sql).bind(queue).bind(since_us).bind(newest).fetch_all(&self.readers).await?;
        times.sort_unstable();
        Ok(times.into_iter().map(|us| us / 1000).collect())
    }

    /// The runs of all tasks, deleted ones too, of which a part lies in this time, in the order in which they began.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn runs_between(&self, from_us: i64, to_us: i64) -> Result<Vec<RunRow>, StoreError> {
        // Each half is a part of one index.
        let rows = query(concat!(
            select!(runs, "WHERE ended_us > $1 AND COALESCE(taken_us, started_us) < $2 UNION ALL "),
            select!(runs, "WHERE ended_us IS NULL AND COALESCE(taken_us, started_us) < $2")
        ));
        let rows = rows.bind(from_us).bind(to_us).fetch_all(&self.readers).await?;
        let changes = query(select!(
            run_slices,
            "WHERE EXISTS (SELECT 1 FROM runs WHERE runs.task = run_slices.task AND runs.run = run_slices.run \
             AND COALESCE(taken_us, started_us) < $2 AND (ended_us IS NULL OR ended_us > $1)) ORDER BY task, run, from_us"
        ));
        let mut runs =
            with_changes(&rows, &changes.bind(from_us).bind(to_us).fetch_all(&self.readers).await?)?;
        runs.sort_by(|a, b| {
            let order = |run: &RunRow| run.taken_us.or(run.started_us);
            (order(a), &a.task, a.run).cmp(&(order(b), &b.task, b.run))
        });
        Ok(runs)
    }

    /// The slices that a running task holds now, as its agent has found: it was moved, suspended, or given another size. No quota is asked;
    /// the task has them already.
    ///
    /// # Errors
    /// [`StoreError::NoTask`]; [`StoreError::NotHeld`] if this lease does not hold the task, or no run of it lasts.
    pub async fn change_slices(
        &self,
        task: &str,
        lease: &str,
        slices: &[Slice],
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let old = load(&mut write.tx, task).await?;
        let held = old.lease.as_deref() == Some(lease) && old.exit_code.is_none();
        if !held || old.index.status != TaskStatus::InProgress {
            return Err(StoreError::NotHeld { task: task.to_owned(), lease: lease.to_owned() });
        }
        if old.slices == slices {
            return Ok(());
        }
        let set = query("UPDATE tasks SET slices = $2, milli = $3, last_update_us = $4 WHERE id = $1");
        set.bind(task)
            .bind(row::to_json(slices)?)
            .bind(milli(slices))
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        note_slices(&mut write.tx, &old, slices, now_us).await?;
        if old.is_out() {
            // It is back, and does not make room for another task any more.
            let done = query("UPDATE tasks SET evicted_for = NULL WHERE id = $1").bind(task);
            done.execute(&mut write.tx).await?;
        }
        write.commit().await
    }
}

fn milli(slices: &[Slice]) -> i64 {
    slices.iter().map(|slice| i64::from(slice.milli.0)).sum()
}

/// Runs with the changes of their slices, which are in the order of their times.
fn with_changes(runs: &[Row], changes: &[Row]) -> Result<Vec<RunRow>, StoreError> {
    let mut of_run: BTreeMap<(String, i64), Vec<HeldFrom>> = BTreeMap::new();
    for change in changes {
        let held = HeldFrom { from_us: change.try_get("from_us")?, slices: row::json(change, "slices")? };
        of_run.entry((change.try_get("task")?, change.try_get("run")?)).or_default().push(held);
    }
    let mut runs = runs.iter().map(row::run).collect::<Result<Vec<_>, _>>()?;
    for run in &mut runs {
        run.changes = of_run.remove(&(run.task.clone(), run.run)).unwrap_or_default();
    }
    Ok(runs)
}

/// From now on the lasting run of a task holds these slices.
async fn note_slices(tx: &mut Tx, old: &TaskRow, slices: &[Slice], now_us: i64) -> Result<(), StoreError> {
    let (task, run) = (&old.index.id, old.run);
    let first = "INSERT INTO run_slices (task, run, from_us, slices, milli) \
         SELECT task, run, COALESCE(taken_us, started_us), slices, COALESCE(milli, 0) FROM runs \
         WHERE task = $1 AND run = $2 AND COALESCE(taken_us, started_us) < $3 \
         AND NOT EXISTS (SELECT 1 FROM run_slices WHERE task = $1 AND run = $2)";
    query(first).bind(task).bind(run).bind(now_us).execute(&mut *tx).await?;
    let next = "INSERT INTO run_slices (task, run, from_us, slices, milli) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (task, run, from_us) DO UPDATE SET slices = $4, milli = $5";
    let text = row::to_json(slices)?;
    query(next).bind(task).bind(run).bind(now_us).bind(&text).bind(milli(slices)).execute(&mut *tx).await?;
    // A suspended run shows what it held last.
    let shown = (!slices.is_empty()).then_some(text);
    let set = "UPDATE runs SET slices = COALESCE($3, slices), milli = NULL WHERE task = $1 AND run = $2";
    query(set).bind(task).bind(run).bind(shown).execute(tx).await?;
    Ok(())
}

impl Store {
    /// Runs of this user that have ended have no owner from now on. Returns their number, and that of those that last.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn forget_owner(&self, user: &str) -> Result<(u64, u64), StoreError> {
        let mut write = self.write().await?;
        let forget = query("UPDATE runs SET owner = NULL WHERE owner = $1 AND outcome IS NOT NULL");
        let forgotten = forget.bind(user).execute(&mut write.tx).await?;
        let left = query_scalar("SELECT COUNT(*) FROM runs WHERE owner = $1").bind(user);
        let lasting: i64 = left.fetch_one(&mut write.tx).await?;
        write.commit().await?;
        Ok((forgotten, lasting.unsigned_abs()))
    }

    /// The runs of a task have neither its name nor its tags any more.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn forget_name(&self, task: &str) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query("UPDATE runs SET name = NULL, tags = NULL WHERE task = $1")
            .bind(task)
            .execute(&mut write.tx)
            .await?;
        write.commit().await
    }
}

/// Refuses a report about a run that was given up, or another than the newest one of the task.
pub(crate) async fn fence(tx: &mut Tx, task: &TaskRow, run: Option<i64>) -> Result<(), StoreError> {
    let over = "SELECT run FROM runs WHERE task = $1 AND run = $2 AND outcome IN ('queued', 'created')";
    refuse(tx, task, run, over).await
}

/// As [`fence`], for a report that the run begins: one that has ended cannot. A user stopped the task after its agent
/// had taken it.
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
    // A suspended run shows what it held last.
    let slices = [&claim.slices, &old.slices].into_iter().find(|slices| !slices.is_empty());
    query(
        "UPDATE runs SET node = $3, lease = $4, slices = COALESCE($5, slices), exit_code = $6, why = COALESCE($7, why), \
         ended_us = COALESCE(ended_us, $8), peak_bytes = COALESCE($9, peak_bytes), \
         gpu_time_us = COALESCE($10, gpu_time_us), preemptible = $11, \
         milli = CASE WHEN EXISTS (SELECT 1 FROM run_slices WHERE task = $1 AND run = $2) THEN NULL ELSE $12 END \
         WHERE task = $1 AND run = $2",
    )
    .bind(&claim.task)
    .bind(run)
    .bind(&claim.node)
    .bind(&claim.lease)
    .bind(slices.map(row::to_json).transpose()?)
    .bind(claim.exit_code)
    .bind(&claim.reason)
    .bind(ends.then_some(now_us))
    .bind(claim.measured.peak_bytes.map(u64::cast_signed))
    .bind(claim.measured.gpu_time_us.map(u64::cast_signed))
    .bind(i64::from(claim.terms.preemptible))
    .bind(slices.map_or(0, |slices| milli(slices)))
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
