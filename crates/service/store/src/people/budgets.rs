//! Budgets of projects: stores them, counts what they used in a month, and refuses claims when they are used up.

use std::collections::BTreeMap;

use cantle_model::{AtFull, Budget, gpu_hours, projects_above};

use super::quotas::holds;
use crate::data::{EventRow, ProjectRow, TaskClaim, TaskRow};
use crate::db::{Row, Tx, query, query_as};
use crate::{Store, StoreError, row};

/// A budget with what was used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRow {
    /// Id of the project.
    pub project: String,
    /// The budget.
    pub budget: Budget,
    /// The month in UTC that was counted last, like `2026-11`; empty: none yet.
    pub month: String,
    /// The time that was used in it, in seconds of a whole GPU.
    pub used_seconds: u64,
    /// The highest part that an event of this month has reported, in percent.
    reported_percent: u64,
}

impl BudgetRow {
    /// Whether it is used up.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.used_seconds >= self.budget.gpu_seconds
    }

    /// `has used 120.5 of its 120 GPU-hours in 2026-11`.
    #[must_use]
    pub fn line(&self) -> String {
        let [used, all] = [self.used_seconds, self.budget.gpu_seconds].map(gpu_hours);
        format!("has used {used} of its {all} GPU-hours in {}", self.month)
    }
}

/// A month in UTC, and the part of it that has passed. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetMonth {
    /// Like `2026-11`.
    pub name: String,
    /// Its first moment.
    pub from_us: i64,
    /// Now.
    pub now_us: i64,
}

impl Store {
    /// All budgets, by project.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn budgets(&self) -> Result<Vec<BudgetRow>, StoreError> {
        query(select!(budgets, "ORDER BY project")).fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// Sets the budget of a project (by its name), or removes it. Use in this month counts.
    ///
    /// # Errors
    /// [`StoreError::NoProject`].
    pub async fn set_budget(
        &self,
        project: &str,
        budget: Option<&Budget>,
        who: &str,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query(select!(projects, "WHERE name = $1")).for_change().bind(project);
        let found = found.fetch_optional(&mut write.tx).await?;
        let Some(row) = found.as_ref().map(row::project).transpose()? else {
            return Err(StoreError::NoProject(project.to_owned()));
        };
        let message = match budget {
            Some(budget) => {
                let set = "INSERT INTO budgets (project, gpu_seconds, warn_percent, at_full) VALUES ($1, $2, $3, $4) \
                     ON CONFLICT (project) DO UPDATE SET gpu_seconds = $2, warn_percent = $3, at_full = $4, reported_percent = 0";
                query(set)
                    .bind(&row.id)
                    .bind(budget.gpu_seconds.cast_signed())
                    .bind(i64::from(budget.warn_percent))
                    .bind(budget.at_full.word())
                    .execute(&mut write.tx)
                    .await?;
                format!("project {project}: a budget of {budget}")
            }
            None => {
                query("DELETE FROM budgets WHERE project = $1").bind(&row.id).execute(&mut write.tx).await?;
                format!("project {project}: its budget was removed")
            }
        };
        let (kind, who) = ("budget".to_owned(), who.to_owned());
        let event = EventRow { time_us: now_us, kind, message, who, ..EventRow::default() };
        self.record(&mut write.tx, event).await?;
        write.commit().await
    }

    /// Counts what each project with a budget, with those below it, has used in this month, and records an event when a
    /// part is reached that is to be reported. Costs nothing without budgets.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn count_budgets(&self, month: &BudgetMonth) -> Result<(), StoreError> {
        let budgets = self.budgets().await?;
        if budgets.is_empty() {
            return Ok(());
        }
        let names: BTreeMap<String, String> =
            self.projects().await?.into_iter().map(|row| (row.id, row.name)).collect();
        let used = self.used_by_project(month).await?;
        // `None`: the project was deleted.
        let count = |old: &BudgetRow| {
            let name = names.get(&old.project)?;
            let is_in = |project: &String| names.get(project).is_some_and(|other| within(other, name));
            let used_ms: u64 = used.iter().filter(|(project, _)| is_in(project)).map(|(_, ms)| ms).sum();
            let new = BudgetRow { month: month.name.clone(), used_seconds: used_ms / 1000, ..old.clone() };
            let reported = if old.month == month.name { old.reported_percent } else { 0 };
            let (reported_percent, event) = report_of(name, &new, reported, month.now_us);
            Some((BudgetRow { reported_percent, ..new }, event))
        };
        let counted = budgets.into_iter().map(|old| (count(&old), old));
        let differs = |(new, old): &(Option<(BudgetRow, Option<EventRow>)>, BudgetRow)| {
            new.as_ref().is_none_or(|(new, _)| new != old)
        };
        let changed: Vec<_> = counted.filter(differs).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let mut write = self.write().await?;
        for (new, old) in changed {
            let Some((new, event)) = new else {
                query("DELETE FROM budgets WHERE project = $1")
                    .bind(&old.project)
                    .execute(&mut write.tx)
                    .await?;
                continue;
            };
            if let Some(event) = event {
                self.record(&mut write.tx, event).await?;
            }
            let set =
                "UPDATE budgets SET month = $2, used_seconds = $3, reported_percent = $4 WHERE project = $1";
            query(set)
                .bind(&new.project)
                .bind(&new.month)
                .bind(new.used_seconds.cast_signed())
                .bind(new.reported_percent.cast_signed())
                .execute(&mut write.tx)
                .await?;
        }
        write.commit().await
    }

    /// The tasks that wait in these queues, each with its project.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn waiting_projects(
        &self,
        queues: &[String],
    ) -> Result<Vec<(String, Option<String>)>, StoreError> {
        let mut all = Vec::new();
        for queue in queues {
            let rows = "SELECT id, project FROM queue_entries JOIN tasks ON tasks.id = queue_entries.task \
                 WHERE queue_entries.queue = $1";
            all.extend(query_as(rows).bind(queue).fetch_all(&self.readers).await?);
        }
        Ok(all)
    }

    /// By id of a project, the share of GPUs that its own runs had in this month, times milliseconds.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn used_by_project(&self, month: &BudgetMonth) -> Result<BTreeMap<String, u64>, StoreError> {
        // A whole GPU for a millisecond is 1000 here: so a month of a million GPUs fits.
        let sql = "WITH held AS (\
             SELECT project, milli, COALESCE(taken_us, started_us) AS from_us, ended_us AS to_us FROM runs \
             WHERE (ended_us > $1 OR ended_us IS NULL) AND milli > 0 \
             UNION ALL SELECT project, run_slices.milli, from_us, COALESCE(\
             LEAD(from_us) OVER (PARTITION BY run_slices.task, run_slices.run ORDER BY from_us), ended_us) \
             FROM run_slices JOIN runs ON runs.task = run_slices.task AND runs.run = run_slices.run \
             WHERE ended_us > $1 OR ended_us IS NULL) \
             SELECT project, CAST(SUM(milli * ((CASE WHEN to_us < $2 THEN to_us ELSE $2 END \
             - CASE WHEN from_us > $1 THEN from_us ELSE $1 END) / 1000)) / 1000 AS BIGINT) AS used FROM held \
             WHERE (to_us > $1 OR to_us IS NULL) AND from_us < $2 AND milli > 0 AND project IS NOT NULL GROUP BY project";
        // Only a clock that was set back makes it negative.
        let read = |row: &Row| {
            Ok((row.try_get("project")?, u64::try_from(row.try_get::<i64, _>("used")?).unwrap_or(0)))
        };
        let rows = query(sql).bind(month.from_us).bind(month.now_us).fetch_all(&self.readers).await?;
        rows.iter().map(read).collect()
    }
}

fn within(project: &str, tree: &str) -> bool {
    project.strip_prefix(tree).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The highest part in percent that is reported now, and the event that reports it, if there is a new one.
fn report_of(project: &str, row: &BudgetRow, reported: u64, now_us: i64) -> (u64, Option<EventRow>) {
    let percent = row.budget.percent(row.used_seconds);
    let (reached, kind) = match percent {
        100.. => (100, "budget-reached"),
        _ if percent >= u64::from(row.budget.warn_percent) => {
            (u64::from(row.budget.warn_percent), "budget-near")
        }
        _ => return (reported, None),
    };
    if reached <= reported {
        return (reported, None);
    }
    let what = match (kind, row.budget.at_full) {
        ("budget-near", _) | (_, AtFull::Warn) => String::new(),
        (_, AtFull::NoBorrowing) => "; it gets no more than its quota until the month ends".to_owned(),
        (_, AtFull::Queue) => "; its tasks wait until the month ends".to_owned(),
    };
    let message = format!("project {project} {} ({percent} %){what}", row.line());
    (reached, Some(EventRow { time_us: now_us, kind: kind.to_owned(), message, ..EventRow::default() }))
}

fn read(row: &Row) -> Result<BudgetRow, StoreError> {
    let number = |column| row.try_get(column).map(i64::unsigned_abs);
    let at_full: &str = row.try_get("at_full")?;
    Ok(BudgetRow {
        project: row.try_get("project")?,
        budget: Budget {
            gpu_seconds: number("gpu_seconds")?,
            warn_percent: u32::try_from(number("warn_percent")?).unwrap_or(100),
            // The actions of a newer version are not known here: nothing is kept back.
            at_full: at_full.parse().unwrap_or_default(),
        },
        month: row.try_get("month")?,
        used_seconds: number("used_seconds")?,
        reported_percent: number("reported_percent")?,
    })
}

/// Refuses a claim of a GPU for a project whose budget, or that of one above it, is used up, if it says so.
pub(crate) async fn check(tx: &mut Tx, task: &TaskRow, claim: &TaskClaim) -> Result<(), StoreError> {
    let asked = claim.terms.amounts(&claim.slices).0[0];
    let Some(id) = task.index.project.as_ref().filter(|_| asked > 0) else { return Ok(()) };
    let budgets = query(select!(budgets, "WHERE at_full <> 'warn' AND used_seconds >= gpu_seconds"));
    let full = budgets.fetch_all(&mut *tx).await?.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if full.is_empty() {
        return Ok(());
    }
    let found = query(select!(projects, "WHERE id = $1")).bind(id).fetch_optional(&mut *tx).await?;
    let Some(own) = found.as_ref().map(row::project).transpose()? else { return Ok(()) };
    for name in std::iter::once(own.name.as_str()).chain(projects_above(&own.name)) {
        let found = query(select!(projects, "WHERE name = $1")).bind(name).fetch_optional(&mut *tx).await?;
        let Some(project) = found.as_ref().map(row::project).transpose()? else { continue };
        let Some(budget) = full.iter().find(|budget| budget.project == project.id) else { continue };
        let is_over = match budget.budget.at_full {
            AtFull::Warn => false,
            AtFull::Queue => true,
            AtFull::NoBorrowing => {
                held_by(tx, name, &claim.task).await?.saturating_add(asked) > deserved(&project)
            }
        };
        if is_over {
            let (task, project, used) = (claim.task.clone(), name.to_owned(), budget.line());
            return Err(StoreError::OverBudget { task, project, used });
        }
    }
    Ok(())
}

fn deserved(project: &ProjectRow) -> u64 {
    project.quota.as_ref().map_or(0, |quota| quota.quotas()[0].deserved.unwrap_or(u64::MAX))
}

/// The GPUs that the tasks of a project and those below it hold, without `but`.
async fn held_by(tx: &mut Tx, project: &str, but: &str) -> Result<u64, StoreError> {
    let sql = concat!(
        "SELECT CAST(COALESCE(SUM(milli), 0) AS BIGINT) AS milli FROM tasks JOIN projects ON projects.id = tasks.project WHERE ",
        holds!(),
        " AND tasks.id <> $2 AND (projects.name = $1 OR SUBSTR(projects.name, 1, LENGTH($1) + 1) = $1 || '/')"
    );
    let sum = query(sql).bind(project).bind(but).fetch_one(tx).await?;
    Ok(sum.try_get("milli").map(i64::unsigned_abs)?)
}
