//! How much each project was guaranteed over time, for accounts.

use std::collections::BTreeMap;

use crate::data::ProjectRow;
use crate::db::{Row, Tx, query};
use crate::{Store, StoreError, row};

/// A time during which a project was guaranteed so much. Times are microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaTime {
    /// Id of the project.
    pub project: String,
    /// When it began.
    pub from_us: i64,
    /// When it ended; `None`: it lasts.
    pub to_us: Option<i64>,
    /// Thousandths of a GPU.
    pub deserved_milli: u64,
}

impl Store {
    /// The times that overlap these, by project and beginning.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn quota_times(&self, from_us: i64, to_us: i64) -> Result<Vec<QuotaTime>, StoreError> {
        let rows = query(select!(
            quota_times,
            "WHERE from_us < $2 AND (to_us IS NULL OR to_us > $1) ORDER BY project, from_us"
        ));
        rows.bind(from_us).bind(to_us).fetch_all(&self.readers).await?.iter().map(read).collect()
    }

    /// Records what projects are guaranteed now, where no row has that: quotas from before there were such rows, and
    /// projects that were deleted. Costs no write if nothing differs.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn note_quotas(&self, now_us: i64) -> Result<(), StoreError> {
        let lasting = query(select!(quota_times, "WHERE to_us IS NULL")).fetch_all(&self.readers).await?;
        let lasting = lasting.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let mut known: BTreeMap<String, u64> =
            lasting.into_iter().map(|time| (time.project, time.deserved_milli)).collect();
        let mut changed = Vec::new();
        for row in self.projects().await? {
            let deserved = deserved(&row);
            if known.remove(&row.id).unwrap_or(0) != deserved {
                changed.push((row.id, deserved));
            }
        }
        changed.extend(known.into_keys().map(|project| (project, 0)));
        if changed.is_empty() {
            return Ok(());
        }
        let mut write = self.write().await?;
        for (project, deserved) in changed {
            begin(&mut write.tx, &project, deserved, now_us).await?;
        }
        write.commit().await
    }
}

fn read(row: &Row) -> Result<QuotaTime, StoreError> {
    Ok(QuotaTime {
        project: row.try_get("project")?,
        from_us: row.try_get("from_us")?,
        to_us: row.try_get("to_us")?,
        deserved_milli: row.try_get("deserved").map(i64::unsigned_abs)?,
    })
}

/// The amount of GPUs that a project is guaranteed; nothing without a quota. A quota of all GPUs is more than there
/// are.
fn deserved(project: &ProjectRow) -> u64 {
    let of = |quota: &cantle_model::ProjectQuota| quota.quotas()[0].deserved.unwrap_or(u64::MAX >> 1);
    project.quota.as_ref().map_or(0, of)
}

/// The quota of this project changed.
pub(crate) async fn note(tx: &mut Tx, project: &str, now_us: i64) -> Result<(), StoreError> {
    let found = query(select!(projects, "WHERE name = $1")).bind(project).fetch_optional(&mut *tx).await?;
    let Some(found) = found.as_ref().map(row::project).transpose()? else { return Ok(()) };
    begin(tx, &found.id, deserved(&found), now_us).await
}

/// Begins a time and ends the one that lasted until then, unless it is the same. A time that would begin before the one that lasts,
/// because the clock was set back, begins a microsecond after it. Nothing guaranteed is no time.
async fn begin(tx: &mut Tx, project: &str, deserved: u64, now_us: i64) -> Result<(), StoreError> {
    let deserved = deserved.cast_signed();
    let ended = "UPDATE quota_times SET to_us = CASE WHEN from_us < $2 THEN $2 ELSE from_us + 1 END \
         WHERE project = $1 AND to_us IS NULL AND deserved <> $3";
    query(ended).bind(project).bind(now_us).bind(deserved).execute(&mut *tx).await?;
    if deserved == 0 {
        return Ok(());
    }
    let begun = "INSERT INTO quota_times (project, from_us, deserved) \
         SELECT $1, CASE WHEN MAX(to_us) > $2 THEN MAX(to_us) ELSE $2 END, $3 FROM quota_times WHERE project = $1 \
         HAVING COUNT(*) = COUNT(to_us)";
    query(begun).bind(project).bind(now_us).bind(deserved).execute(tx).await?;
    Ok(())
}
