//! Quotas of projects, and the check that no claim exceeds one.

use cantle_model::{Amounts, ProjectQuota, RESOURCES, projects_above};

use super::quota_times;
use crate::data::{EventRow, FleetRows, HeldSince, ProjectRow, TaskClaim, TaskRow};
use crate::db::{Row, Tx, query, query_as};
use crate::fleet::pools;
use crate::fleet::pools::PoolMap;
use crate::{Store, StoreError, row};

/// A task holds its slices if an agent has claimed it and has not reported its end.
macro_rules! holds {
    () => {
        "tasks.lease IS NOT NULL AND tasks.exit_code IS NULL AND tasks.status IN ('queued', 'in_progress')"
    };
}
pub(crate) use holds;

impl Store {
    /// Sets the quota of a project (by its name), or removes it.
    ///
    /// # Errors
    /// [`StoreError::NoProject`]; [`StoreError::NoPool`] if it names a pool that does not exist.
    pub async fn set_quota(
        &self,
        project: &str,
        quota: Option<&ProjectQuota>,
        who: &str,
        now_us: i64,
    ) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        if let Some(quota) = quota {
            pools::check_named(&mut write.tx, quota).await?;
        }
        let text = quota.map(row::to_json).transpose()?;
        let done = query("UPDATE projects SET quota = $2, last_update_us = $3 WHERE name = $1")
            .bind(project)
            .bind(text)
            .bind(now_us)
            .execute(&mut write.tx)
            .await?;
        if done == 0 {
            return Err(StoreError::NoProject(project.to_owned()));
        }
        quota_times::note(&mut write.tx, project, now_us).await?;
        let message = match quota {
            Some(quota) => format!("project {project}: {quota}"),
            None => format!("project {project}: its quota was removed"),
        };
        let (kind, who) = ("quota".to_owned(), who.to_owned());
        let event = EventRow { time_us: now_us, kind, message, who, ..EventRow::default() };
        self.record(&mut write.tx, event).await?;
        write.commit().await
    }

    /// Every task that holds something, and those below that wait in these queues, in the order of each queue; from one
    /// moment, so that no task is in both.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn held_and_waiting(
        &self,
        queues: &[String],
    ) -> Result<(Vec<TaskRow>, Vec<TaskRow>), StoreError> {
        let mut tx = self.readers.begin().await?;
        let held = select!(tasks, "WHERE ", holds!(), " ORDER BY id");
        let held = query(held).fetch_all(&mut tx).await?;
        let mut waiting = Vec::new();
        for queue in queues {
            let rows = query(concat!(
                "SELECT ",
                columns!(tasks),
                " FROM queue_entries JOIN tasks ON tasks.id = queue_entries.task \
                 WHERE queue_entries.queue = $1 ORDER BY queue_entries.position"
            ));
            waiting.extend(rows.bind(queue).fetch_all(&mut tx).await?);
        }
        let read = |rows: &[_]| rows.iter().map(row::task).collect::<Result<Vec<_>, _>>();
        Ok((read(&held)?, read(&waiting)?))
    }

    /// The GPUs that tasks of projects hold.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn held_since(&self) -> Result<Vec<HeldSince>, StoreError> {
        let held = concat!(
            "SELECT project, milli, COALESCE(started_us, status_changed_us) AS since_us FROM tasks WHERE ",
            holds!(),
            " AND project IS NOT NULL ORDER BY id"
        );
        let read = |row: &Row| {
            let milli = row.try_get("milli").map(i64::unsigned_abs)?;
            Ok(HeldSince { project: row.try_get("project")?, milli, since_us: row.try_get("since_us")? })
        };
        query(held).fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// The facts that the agent of `node` needs, all of one moment: no task is in two parts of it. Agents call it
    /// often, so it has only sums of other nodes. `by_pool`: those of pools, too.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn fleet(&self, node: &str, queues: &[String], by_pool: bool) -> Result<FleetRows, StoreError> {
        let mut tx = self.readers.begin().await?;
        let here = select!(tasks, "WHERE ", holds!(), " AND node = $1 ORDER BY id");
        let here = query(here).bind(node).fetch_all(&mut tx).await?;
        let elsewhere = concat!(
            "SELECT project, preemptible, CAST(CASE WHEN evicted_for IS NULL THEN 0 ELSE 1 END AS BIGINT) AS stopping, \
             CAST(SUM(milli) AS BIGINT) AS milli, CAST(SUM(cpu_milli) AS BIGINT) AS cpu_milli, \
             CAST(SUM(memory_bytes) AS BIGINT) AS memory_bytes FROM tasks WHERE ",
            holds!(),
            " AND node <> $1 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        );
        let elsewhere = query(elsewhere).bind(node).fetch_all(&mut tx).await?;
        let mut elsewhere = elsewhere.iter().map(row::held_sum).collect::<Result<Vec<_>, _>>()?;
        if by_pool {
            PoolMap::read(&mut tx).await?.enter(&mut tx, node, &mut elsewhere).await?;
        }
        let freeing = concat!(
            "SELECT evicted_for, node FROM tasks WHERE ",
            holds!(),
            " AND evicted_for IS NOT NULL AND node IS NOT NULL ORDER BY id"
        );
        let freeing = query_as(freeing).fetch_all(&mut tx).await?;
        let mut waiting = Vec::new();
        for queue in queues {
            let rows = query(
                "SELECT id, queue_entries.queue AS queue, project, evicted_for, evicted_cause FROM queue_entries \
                 JOIN tasks ON tasks.id = queue_entries.task WHERE queue_entries.queue = $1 \
                 ORDER BY queue_entries.position",
            );
            waiting.extend(rows.bind(queue).fetch_all(&mut tx).await?);
        }
        Ok(FleetRows {
            here: here.iter().map(row::task).collect::<Result<_, _>>()?,
            elsewhere,
            freeing,
            waiting: waiting.iter().map(row::waiting).collect::<Result<_, _>>()?,
        })
    }
}

/// Refuses a claim that exceeds the quota of the task's project or of one above it.
pub(crate) async fn check(tx: &mut Tx, task: &TaskRow, claim: &TaskClaim) -> Result<(), StoreError> {
    let Some(id) = &task.index.project else { return Ok(()) };
    let found = query(select!(projects, "WHERE id = $1")).bind(id).fetch_optional(&mut *tx).await?;
    let Some(own) = found.as_ref().map(row::project).transpose()? else { return Ok(()) };
    let mut pools = None;
    for name in std::iter::once(own.name.as_str()).chain(projects_above(&own.name)) {
        let found = query(select!(projects, "WHERE name = $1 AND quota IS NOT NULL")).bind(name);
        // One claim after the other counts what the project holds.
        let found = found.for_change();
        let found = found.fetch_optional(&mut *tx).await?;
        if let Some(ProjectRow { quota: Some(quota), .. }) = found.as_ref().map(row::project).transpose()? {
            check_one(tx, name, &quota, claim).await?;
            if quota.named_pools().next().is_some() {
                let map = match &pools {
                    Some(map) => map,
                    None => pools.insert(PoolMap::read(tx).await?),
                };
                map.check(tx, name, &quota, claim).await?;
            }
        }
    }
    Ok(())
}

async fn check_one(
    tx: &mut Tx,
    project: &str,
    quota: &ProjectQuota,
    claim: &TaskClaim,
) -> Result<(), StoreError> {
    let asked = claim.terms.amounts(&claim.slices);
    let (held, for_good) = held_by(tx, project, &claim.task).await?;
    for (at, (resource, quota)) in RESOURCES.into_iter().zip(quota.quotas()).enumerate() {
        let rules = [
            ("limit", quota.limit, held),
            // Capacity that cannot be reclaimed must not be lent.
            ("quota", quota.deserved.filter(|_| !claim.terms.preemptible), for_good),
        ];
        for (rule, most, held) in rules {
            let (Some(most), held, asked) = (most, held.0[at], asked.0[at]) else { continue };
            if asked > 0 && held.saturating_add(asked) > most {
                let (task, project) = (claim.task.clone(), project.to_owned());
                return Err(StoreError::OverQuota { task, project, rule, resource, most, held, asked });
            }
        }
    }
    Ok(())
}

/// The holdings of the tasks of a project and those below it, without `but`; and the part that cannot be reclaimed.
async fn held_by(tx: &mut Tx, project: &str, but: &str) -> Result<(Amounts, Amounts), StoreError> {
    let sql = concat!(
        "SELECT tasks.preemptible AS preemptible, CAST(SUM(milli) AS BIGINT) AS milli, \
         CAST(SUM(cpu_milli) AS BIGINT) AS cpu_milli, CAST(SUM(memory_bytes) AS BIGINT) AS memory_bytes FROM tasks JOIN projects ON projects.id = tasks.project WHERE ",
        holds!(),
        " AND tasks.id <> $2 AND (projects.name = $1 OR SUBSTR(projects.name, 1, LENGTH($1) + 1) = $1 || '/') \
         GROUP BY tasks.preemptible"
    );
    let (mut held, mut for_good) = (Amounts::default(), Amounts::default());
    for sum in &query(sql).bind(project).bind(but).fetch_all(tx).await? {
        let amounts = row::amounts(sum)?;
        held = held.plus(amounts);
        if sum.try_get::<i64, _>("preemptible")? == 0 {
            for_good = for_good.plus(amounts);
        }
    }
    Ok((held, for_good))
}
