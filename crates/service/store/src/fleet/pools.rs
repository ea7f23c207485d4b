//! Pools of GPUs, and which GPUs belong to them: nodes report their models.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::{Pool, PoolQuota, PoolRule, ProjectQuota, Slice, pools_of, projects_above};
use serde::Deserialize;

use crate::data::{EventRow, HeldSum, TaskClaim, TaskRow};
use crate::db::{Row, Tx, query};
use crate::people::quotas::holds;
use crate::{Store, StoreError, row};

impl Store {
    /// All pools, by name.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn pools(&self) -> Result<Vec<Pool>, StoreError> {
        let rows = query(select!(pools, "ORDER BY name")).fetch_all(&self.readers).await?;
        rows.iter().map(pool).collect()
    }

    /// Checks that each pool that a quota names exists.
    ///
    /// # Errors
    /// [`StoreError::NoPool`].
    pub async fn check_pools(&self, quota: &ProjectQuota) -> Result<(), StoreError> {
        let known: Vec<String> = self.pools().await?.into_iter().map(|pool| pool.name).collect();
        match quota.named_pools().find(|name| !known.iter().any(|pool| pool == name)) {
            None => Ok(()),
            Some(name) => Err(StoreError::NoPool { name: name.to_owned(), known: known.join(", ") }),
        }
    }

    /// Defines a pool, or defines it again.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_pool(&self, pool: &Pool, who: &str, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        query(
            "INSERT INTO pools (name, nodes, models) VALUES ($1, $2, $3) \
             ON CONFLICT (name) DO UPDATE SET nodes = $2, models = $3",
        )
        .bind(&pool.name)
        .bind(row::to_json(&pool.nodes)?)
        .bind(row::to_json(&pool.models)?)
        .execute(&mut write.tx)
        .await?;
        self.record(&mut write.tx, event(format!("pool {pool}"), who, now_us)).await?;
        write.commit().await
    }

    /// Deletes a pool.
    ///
    /// # Errors
    /// [`StoreError::NoPool`]; [`StoreError::PoolInUse`] if the quota of a project names it.
    pub async fn delete_pool(&self, name: &str, who: &str, now_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        let found = query(select!(pools, "WHERE name = $1")).bind(name).for_change();
        if found.fetch_optional(&mut write.tx).await?.is_none() {
            return Err(StoreError::NoPool { name: name.to_owned(), known: names(&mut write.tx).await? });
        }
        let with_quota = query(select!(projects, "WHERE quota IS NOT NULL ORDER BY name"));
        let rows = with_quota.fetch_all(&mut write.tx).await?;
        let projects = rows.iter().map(row::project).collect::<Result<Vec<_>, _>>()?;
        let uses = |quota: &ProjectQuota| quota.named_pools().any(|used| used == name);
        let users = projects.into_iter().filter(|row| row.quota.as_ref().is_some_and(uses));
        let users: Vec<String> = users.map(|row| row.name).collect();
        if !users.is_empty() {
            return Err(StoreError::PoolInUse { name: name.to_owned(), projects: users.join(", ") });
        }
        query("DELETE FROM pools WHERE name = $1").bind(name).execute(&mut write.tx).await?;
        self.record(&mut write.tx, event(format!("pool {name}: deleted"), who, now_us)).await?;
        write.commit().await
    }

    /// By id of a task, what it holds of each pool in thousandths of a GPU.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn held_in_pools(
        &self,
        tasks: &[TaskRow],
    ) -> Result<BTreeMap<String, BTreeMap<String, u64>>, StoreError> {
        let mut tx = self.readers.begin().await?;
        let map = PoolMap::read(&mut tx).await?;
        let of = |task: &TaskRow| {
            let mut sums = BTreeMap::new();
            map.add(&mut sums, task.node.as_deref().unwrap_or_default(), &task.slices);
            (task.index.id.clone(), sums)
        };
        Ok(tasks.iter().map(of).collect())
    }
}

fn event(message: String, who: &str, now_us: i64) -> EventRow {
    EventRow { time_us: now_us, kind: "pool".to_owned(), message, who: who.to_owned(), ..EventRow::default() }
}

fn pool(row: &Row) -> Result<Pool, StoreError> {
    Ok(Pool {
        name: row.try_get("name")?,
        nodes: row::json(row, "nodes")?,
        models: row::json(row, "models")?,
    })
}

async fn names(tx: &mut Tx) -> Result<String, StoreError> {
    let rows = query(select!(pools, "ORDER BY name")).fetch_all(tx).await?;
    let pools = rows.iter().map(pool).collect::<Result<Vec<_>, _>>()?;
    Ok(pools.into_iter().map(|pool| pool.name).collect::<Vec<_>>().join(", "))
}

/// Refuses a quota that names a pool which does not exist. The pools it names stay until the transaction ends.
pub(crate) async fn check_named(tx: &mut Tx, quota: &ProjectQuota) -> Result<(), StoreError> {
    for name in quota.named_pools() {
        let found = query(select!(pools, "WHERE name = $1")).bind(name).for_change();
        if found.fetch_optional(&mut *tx).await?.is_none() {
            return Err(StoreError::NoPool { name: name.to_owned(), known: names(tx).await? });
        }
    }
    Ok(())
}

/// The pools of which a running task holds a part, and `project` or one above it has a quota.
pub(crate) async fn contested(
    tx: &mut Tx,
    project: &str,
    holder: &TaskRow,
) -> Result<Vec<String>, StoreError> {
    let mut named = BTreeSet::new();
    for name in std::iter::once(project).chain(projects_above(project)) {
        let found = query(select!(projects, "WHERE name = $1 AND quota IS NOT NULL")).bind(name);
        let found = found.fetch_optional(&mut *tx).await?;
        let quota = found.as_ref().map(row::project).transpose()?.and_then(|row| row.quota);
        named.extend(quota.into_iter().flat_map(|quota| quota.by_pool.into_keys()));
    }
    let mut held = BTreeMap::new();
    if !named.is_empty() {
        let node = holder.node.as_deref().unwrap_or_default();
        PoolMap::read(tx).await?.add(&mut held, node, &holder.slices);
    }
    Ok(held.into_keys().filter(|pool| named.contains(pool)).collect())
}

/// The part of a node's report that decides on pools.
#[derive(Deserialize)]
struct GpuReport {
    gpus: Vec<ReportedGpu>,
}

#[derive(Deserialize)]
struct ReportedGpu {
    uuid: String,
    model: String,
}

/// Which GPUs belong to which pools.
pub(crate) struct PoolMap {
    pools: Vec<Pool>,
    /// By node and UUID.
    models: BTreeMap<(String, String), String>,
}

impl PoolMap {
    /// As the nodes reported last.
    pub(crate) async fn read(tx: &mut Tx) -> Result<Self, StoreError> {
        let rows = query(select!(pools, "ORDER BY name")).fetch_all(&mut *tx).await?;
        let pools = rows.iter().map(pool).collect::<Result<_, _>>()?;
        let mut models = BTreeMap::new();
        for node in &query(select!(nodes, "ORDER BY node")).fetch_all(tx).await? {
            let (name, report): (String, String) = (node.try_get("node")?, node.try_get("report")?);
            // A report of another version that cannot be read counts as none, as everywhere.
            let Ok(GpuReport { gpus }) = serde_json::from_str(&report) else { continue };
            models.extend(gpus.into_iter().map(|gpu| ((name.clone(), gpu.uuid), gpu.model)));
        }
        Ok(Self { pools, models })
    }

    /// The model of a GPU; empty if its node has not reported it.
    fn model(&self, node: &str, slice: &Slice) -> &str {
        self.models.get(&(node.to_owned(), slice.gpu.0.clone())).map_or("", String::as_str)
    }

    fn pools_of(&self, node: &str, slice: &Slice) -> Vec<String> {
        pools_of(&self.pools, node, self.model(node, slice))
    }

    /// Adds the thousandths that slices take of each pool.
    fn add(&self, sums: &mut BTreeMap<String, u64>, node: &str, slices: &[Slice]) {
        for slice in slices {
            for pool in self.pools_of(node, slice) {
                *sums.entry(pool).or_default() += u64::from(slice.milli.0);
            }
        }
    }

    /// Refuses a claim on a GPU that the project may not use, or beyond its quota of a pool.
    pub(crate) async fn check(
        &self,
        tx: &mut Tx,
        project: &str,
        quota: &ProjectQuota,
        claim: &TaskClaim,
    ) -> Result<(), StoreError> {
        let rule = PoolRule { project: project.to_owned(), pools: quota.pools.clone() };
        let outside = |slice: &&Slice| !rule.allows(&self.pools_of(&claim.node, slice));
        if !quota.pools.is_empty()
            && let Some(slice) = claim.slices.iter().find(outside)
        {
            let (task, node) = (claim.task.clone(), claim.node.clone());
            let model = self.model(&claim.node, slice).to_owned();
            return Err(StoreError::OutsidePools { rule, task, node, model });
        }
        let mut asked = BTreeMap::new();
        self.add(&mut asked, &claim.node, &claim.slices);
        asked.retain(|pool, milli| *milli > 0 && quota.by_pool.contains_key(pool));
        if asked.is_empty() {
            return Ok(());
        }
        let (held, for_good) = self.held_by(tx, project, &claim.task).await?;
        for (pool, asked) in asked {
            let PoolQuota { deserved, limit } = quota.by_pool[&pool];
            let of = |sums: &BTreeMap<String, u64>| sums.get(&pool).copied().unwrap_or(0);
            let rules = [
                ("limit", limit, of(&held)),
                ("quota", (!claim.terms.preemptible).then_some(deserved), of(&for_good)),
            ];
            for (rule, most, held) in rules {
                let Some(most) = most.filter(|most| held.saturating_add(asked) > *most) else { continue };
                let (task, project) = (claim.task.clone(), project.to_owned());
                return Err(StoreError::OverPool { task, project, pool, rule, most, held, asked });
            }
        }
        Ok(())
    }

    /// By pool, the holdings of the tasks of a project and those below it, without `but`; and the part that cannot be
    /// reclaimed.
    async fn held_by(
        &self,
        tx: &mut Tx,
        project: &str,
        but: &str,
    ) -> Result<(BTreeMap<String, u64>, BTreeMap<String, u64>), StoreError> {
        let sql = concat!(
            "SELECT node, slices, preemptible FROM tasks JOIN projects ON projects.id = tasks.project WHERE ",
            holds!(),
            " AND tasks.id <> $2 AND (projects.name = $1 OR SUBSTR(projects.name, 1, LENGTH($1) + 1) = $1 || '/')"
        );
        let (mut held, mut for_good) = (BTreeMap::new(), BTreeMap::new());
        for task in &query(sql).bind(project).bind(but).fetch_all(tx).await? {
            let node: Option<String> = task.try_get("node")?;
            let (node, slices): (_, Vec<Slice>) = (node.unwrap_or_default(), row::json(task, "slices")?);
            self.add(&mut held, &node, &slices);
            if task.try_get::<i64, _>("preemptible")? == 0 {
                self.add(&mut for_good, &node, &slices);
            }
        }
        Ok((held, for_good))
    }

    /// Enters into the sums of all nodes but `node` what they hold of each pool.
    pub(crate) async fn enter(
        &self,
        tx: &mut Tx,
        node: &str,
        sums: &mut [HeldSum],
    ) -> Result<(), StoreError> {
        let sql = concat!(
            "SELECT project, node, slices, preemptible, evicted_for FROM tasks WHERE ",
            holds!(),
            " AND node <> $1"
        );
        for task in &query(sql).bind(node).fetch_all(tx).await? {
            let (project, on): (Option<String>, String) = (task.try_get("project")?, task.try_get("node")?);
            let preemptible = task.try_get::<i64, _>("preemptible")? != 0;
            let stopping = task.try_get::<Option<String>, _>("evicted_for")?.is_some();
            let same = |sum: &&mut HeldSum| {
                sum.project == project && sum.preemptible == preemptible && sum.stopping == stopping
            };
            if let Some(sum) = sums.iter_mut().find(same) {
                let slices: Vec<Slice> = row::json(task, "slices")?;
                self.add(&mut sum.pool_milli, &on, &slices);
            }
        }
        Ok(())
    }
}
