//! `cantle db copy`: copies all data of a SQLite file to an empty PostgreSQL.

use std::path::Path;

use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;

use super::database::Database;
use crate::db::{self, Row, Sql, Tx, Value, query, query_as, query_scalar};
use crate::{Kind, Store, StoreError};

/// All tables but `probes`, which is never read, and `usage_days`, which is made from others.
const TABLES: [&str; 43] = [
    "projects",
    "queues",
    "tasks",
    "runs",
    "run_slices",
    "gpu_times",
    "quota_times",
    "budgets",
    "queue_entries",
    "workers",
    "worker_properties",
    "nodes",
    "happenings",
    "logs",
    "scalars",
    "latest_scalars",
    "reports",
    "models",
    "worker_samples",
    "queue_samples",
    "charts",
    "project_use",
    "users",
    "user_keys",
    "user_grants",
    "user_groups",
    "sessions",
    "audit",
    "queue_requeues",
    "queue_times",
    "queue_preempts",
    "task_after",
    "arrays",
    "array_elements",
    "run_fences",
    "pools",
    "receivers",
    "notices",
    "receiver_states",
    "notice_place",
    "conditions",
    "secrets",
    "task_secrets",
];
/// Rows per statement: 36 values in a row at most, and PostgreSQL takes 65535.
const ROWS: i64 = 500;

/// Copies a database that no server uses, in one transaction, and counts what arrived: table and number of rows.
///
/// # Errors
/// [`StoreError::NotEmpty`] if there is something in the new one; [`StoreError::Miscounted`] if something is missing
/// there; and whatever opening them fails with.
pub async fn copy(from: &Path, target: &Database) -> Result<Vec<(&'static str, i64)>, StoreError> {
    let (from, to) = (Store::open(from).await?, Store::connect(target).await?);
    if to.kind == Kind::Sqlite {
        return Err(StoreError::Scheme("sqlite: as the new database of a copy".to_owned()));
    }
    let mut write = to.write().await?;
    for table in ["tasks", "queues", "projects", "users"] {
        if count(&mut write.tx, table).await? > 0 {
            return Err(StoreError::NotEmpty);
        }
    }
    let mut source = from.readers.begin().await?;
    let mut copied = Vec::new();
    for table in TABLES {
        copy_table(&mut source, &mut write.tx, table).await?;
        let (there, here) = (count(&mut source, table).await?, count(&mut write.tx, table).await?);
        if there != here {
            return Err(StoreError::Miscounted { table, there, here });
        }
        copied.push((table, here));
    }
    // New records are numbered after all existing ones.
    for sequence in [
        "SELECT setval('ids', GREATEST(1, (SELECT COALESCE(MAX(id), 0) FROM logs), \
         (SELECT COALESCE(MAX(id), 0) FROM happenings), \
         (SELECT COALESCE(MAX(id), 0) FROM audit)))",
        "SELECT setval('places', GREATEST(1, (SELECT COALESCE(MAX(ABS(position)), 0) FROM queue_entries)))",
    ] {
        query(sequence).execute(&mut write.tx).await?;
    }
    write.commit().await?;
    // Its connection is waited for.
    drop(source);
    from.close().await;
    to.close().await;
    if let Database::Postgres(options) = target
        && let Err(error) = tidy(options).await
    {
        tracing::warn!("all is copied, but lists may be slow until PostgreSQL has vacuumed: {error}");
    }
    Ok(copied)
}

/// PostgreSQL plans by a table's statistics, and gathers them by itself minutes later: until then some lists take seconds. The time that
/// it takes has no limit here.
async fn tidy(options: &PgConnectOptions) -> Result<(), StoreError> {
    let mut connection = db::postgres::connect(options).await?;
    sqlx::raw_sql("VACUUM (ANALYZE)").execute(&mut connection).await?;
    Ok(connection.close().await?)
}

async fn count(tx: &mut Tx, table: &str) -> Result<i64, StoreError> {
    Ok(query_scalar(format!("SELECT COUNT(*) FROM {table}")).fetch_one(tx).await?)
}

async fn copy_table(source: &mut Tx, target: &mut Tx, table: &'static str) -> Result<(), StoreError> {
    let columns = query_as("SELECT name, type FROM pragma_table_info($1) ORDER BY cid").bind(table);
    let columns: Vec<(String, String)> = columns.fetch_all(&mut *source).await?;
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    // SQLite's ids are times of arrival.
    let (more, is_log) = if table == "logs" { (", arrived_us", true) } else { ("", false) };
    let mut after = 0;
    loop {
        let page = query(format!(
            "SELECT rowid AS at, {names} FROM {table} WHERE rowid > $1 ORDER BY rowid LIMIT $2"
        ));
        let rows = page.bind(after).bind(ROWS).fetch_all(&mut *source).await?;
        let Some(last) = rows.last() else { return Ok(()) };
        after = last.try_get("at")?;
        let values = rows.iter().map(|row| read(row, &columns)).collect::<Result<Vec<_>, _>>()?;
        let mut sql = Sql::new(format!("INSERT INTO {table} ({names}{more}) "));
        sql.push_values(values, |row, values| {
            let arrived = values.first().cloned().filter(|_| is_log);
            for value in values.into_iter().chain(arrived) {
                row.push_bind(value);
            }
        });
        sql.build().execute(&mut *target).await?;
    }
}

fn read(row: &Row, columns: &[(String, String)]) -> Result<Vec<Value>, StoreError> {
    let mut values = Vec::with_capacity(columns.len() + 1);
    for (n, (_, kind)) in columns.iter().enumerate() {
        // Column 0 is the row's own number.
        values.push(match kind.as_str() {
            "BIGINT" => row.try_get::<Option<i64>, _>(n + 1)?.into(),
            "DOUBLE PRECISION" => row.try_get::<f64, _>(n + 1)?.into(),
            _ => row.try_get::<Option<String>, _>(n + 1)?.into(),
        });
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each server makes these itself.
    const OWN: [&str; 5] = ["_sqlx_migrations", "probes", "rights_version", "task_tags", "usage_days"];

    #[tokio::test]
    async fn no_table_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("cantle.db")).await.unwrap();
        let sql =
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
        let there: Vec<String> = query_scalar(sql).fetch_all(&store.readers).await.unwrap();
        let mut known: Vec<&str> = TABLES.into_iter().chain(OWN).collect();
        known.sort_unstable();
        assert_eq!(there, known);
    }
}
