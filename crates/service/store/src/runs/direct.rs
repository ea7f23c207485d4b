//! Runs of no task: `cantle run` on a node whose agent reports its slices, and pods of a cluster that no queue made. Their records are for
//! the accounts only.

use std::collections::BTreeMap;

use cantle_model::{Slice, TaskStatus};

use super::milli;
use crate::db::{Tx, query, query_as};
use crate::{Store, StoreError, row};

/// A slice, or slices of several GPUs, that a node gave to no task of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectRun {
    /// Its lease.
    pub lease: String,
    /// Its name, for people.
    pub name: String,
    /// Its owner, for people; empty if nobody knows. No user of the server has such an id.
    pub owner: String,
    /// When it was given, in microseconds since 1970, by the node's clock; `None`: just now.
    pub since_us: Option<i64>,
    /// The slices.
    pub slices: Vec<Slice>,
}

impl Store {
    /// These are the direct runs of a node now: new ones begin, and those that are no longer there end. Costs no write if nothing changed.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn set_direct_runs(
        &self,
        node: &str,
        now: &[DirectRun],
        now_us: i64,
    ) -> Result<(), StoreError> {
        let lasting = "SELECT lease, slices FROM runs WHERE direct = 1 AND ended_us IS NULL AND node = $1";
        let lasting: Vec<(String, String)> = query_as(lasting).bind(node).fetch_all(&self.readers).await?;
        let mut gone: BTreeMap<String, String> = lasting.into_iter().collect();
        let mut new = Vec::new();
        for run in now {
            let slices = row::to_json(&run.slices)?;
            // One whose slices have changed ends, and another one begins.
            if gone.get(&run.lease) == Some(&slices) {
                gone.remove(&run.lease);
            } else {
                new.push((run, slices));
            }
        }
        if new.is_empty() && gone.is_empty() {
            return Ok(());
        }
        let mut write = self.write().await?;
        for lease in gone.keys() {
            end(&mut write.tx, node, Some(lease), now_us).await?;
        }
        for (run, slices) in new {
            begin(&mut write.tx, node, run, slices, now_us).await?;
        }
        write.commit().await
    }

    /// The direct runs of a node have ended, because it is gone.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn end_direct_runs(&self, node: &str, ended_us: i64) -> Result<(), StoreError> {
        let mut write = self.write().await?;
        end(&mut write.tx, node, None, ended_us).await?;
        write.commit().await
    }
}

/// A lease that was there before, and is there again, goes on from now.
async fn begin(
    tx: &mut Tx,
    node: &str,
    run: &DirectRun,
    slices: String,
    now_us: i64,
) -> Result<(), StoreError> {
    let DirectRun { lease, name, owner, since_us, slices: held } = run;
    let begun = "INSERT INTO runs (task, run, name, taken_us, started_us, node, lease, slices, milli, direct, owner) \
         SELECT $1, COALESCE(MAX(run), 0) + 1, $2, CASE WHEN MAX(run) IS NULL THEN $3 ELSE $4 END, \
         CASE WHEN MAX(run) IS NULL THEN $3 ELSE $4 END, $5, $1, $6, $7, 1, $8 FROM runs WHERE task = $1";
    query(begun)
        .bind(lease)
        .bind(name)
        .bind(since_us.map_or(now_us, |since_us| since_us.min(now_us)))
        .bind(now_us)
        .bind(node)
        .bind(slices)
        .bind(milli(held))
        .bind(Some(owner).filter(|owner| !owner.is_empty()))
        .execute(tx)
        .await?;
    Ok(())
}

async fn end(tx: &mut Tx, node: &str, lease: Option<&str>, ended_us: i64) -> Result<(), StoreError> {
    let ended = "UPDATE runs SET ended_us = CASE WHEN taken_us < $3 THEN $3 ELSE taken_us END, outcome = $4 \
         WHERE direct = 1 AND ended_us IS NULL AND node = $1 AND ($2 IS NULL OR lease = $2)";
    query(ended)
        .bind(node)
        .bind(lease)
        .bind(ended_us)
        .bind(TaskStatus::Completed.as_str())
        .execute(tx)
        .await?;
    Ok(())
}
