//! The reports of `cantle db status` and `cantle db check`. Both only read, while servers use the database, and create no
//! tables.

use std::collections::BTreeMap;

use serde::Serialize;

use super::database::Database;
use super::migrations;
use crate::StoreError;
use crate::db::{self, Alone, Kind, Pool, Row, Tx, query, query_as, query_scalar};

/// A database, as it is at this moment.
#[derive(Debug, Serialize)]
pub struct DatabaseStatus {
    /// `SQLite` or `PostgreSQL`.
    pub kind: &'static str,
    /// Its version.
    pub version: String,
    /// The newest migration that was applied; 0: there are no tables.
    pub schema: i64,
    /// Migrations of this program that a start of the server would apply.
    pub pending: Vec<i64>,
    /// Its size on disk.
    pub size_bytes: i64,
    /// Tasks, by state.
    pub tasks: BTreeMap<String, i64>,
    /// Queues.
    pub queues: i64,
    /// Nodes that ever reported.
    pub nodes: i64,
    /// The servers that are connected to it; `None`: SQLite does not tell.
    pub servers: Option<Vec<ConnectedServer>>,
}

/// A server that is connected to a PostgreSQL.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct ConnectedServer {
    /// Its machine and process, `HOST/PID`.
    pub name: String,
    /// The address of its connections.
    pub address: String,
    /// How many.
    pub connections: i64,
    /// Whether it does the periodic work.
    pub leads: bool,
}

/// Something that no crash may leave behind.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The fault.
    pub rule: &'static str,
    /// How many records.
    pub count: i64,
    /// One of them.
    pub example: String,
}

/// The findings of each rule: how many tasks, and the least id of them.
const RULES: [(&str, &str); 7] = [
    (
        "wait in a queue, and are not queued",
        "SELECT COUNT(*), MIN(e.task) FROM queue_entries e LEFT JOIN tasks t ON t.id = e.task \
         WHERE t.id IS NULL OR t.status <> 'queued'",
    ),
    (
        "wait in a queue that does not exist",
        "SELECT COUNT(*), MIN(task) FROM queue_entries WHERE queue NOT IN (SELECT id FROM queues)",
    ),
    (
        "are queued, and neither in a queue nor with an agent",
        "SELECT COUNT(*), MIN(id) FROM tasks WHERE status = 'queued' AND taken_us IS NULL AND lease IS NULL \
         AND NOT EXISTS (SELECT 1 FROM queue_entries e WHERE e.task = tasks.id) \
         AND NOT EXISTS (SELECT 1 FROM task_after a WHERE a.task = tasks.id) \
         AND NOT EXISTS (SELECT 1 FROM arrays a WHERE a.task = tasks.id)",
    ),
    (
        "wait in a queue, and are with an agent",
        "SELECT COUNT(*), MIN(id) FROM tasks WHERE taken_us IS NOT NULL \
         AND EXISTS (SELECT 1 FROM queue_entries e WHERE e.task = tasks.id)",
    ),
    (
        "have two runs that last",
        "SELECT COUNT(*), MIN(task) FROM \
         (SELECT task FROM runs WHERE outcome IS NULL GROUP BY task HAVING COUNT(*) > 1) AS twice",
    ),
    (
        "run, and have no run that lasts",
        "SELECT COUNT(*), MIN(id) FROM tasks WHERE status = 'in_progress' \
         AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.task = tasks.id AND r.outcome IS NULL)",
    ),
    (
        "have ended, and have a run that lasts",
        "SELECT COUNT(*), MIN(id) FROM tasks WHERE status IN ('completed', 'failed', 'stopped', 'closed', 'published') \
         AND EXISTS (SELECT 1 FROM runs r WHERE r.task = tasks.id AND r.outcome IS NULL)",
    ),
];

impl Database {
    /// The facts about it.
    ///
    /// # Errors
    /// See [`Database::check`].
    pub async fn status(&self) -> Result<DatabaseStatus, StoreError> {
        let (kind, pool) = self.look().await?;
        let read = read(kind, &pool).await;
        pool.close().await;
        read
    }

    /// Tries to reach it, and reads all of it: what is broken, and with which records.
    ///
    /// # Errors
    /// See [`Database::check`]; [`StoreError::Newer`]; [`StoreError::Outdated`] if its tables are of an older version.
    pub async fn verify(&self) -> Result<Vec<Broken>, StoreError> {
        let (kind, pool) = self.look().await?;
        let found = verify(kind, &pool).await;
        pool.close().await;
        found
    }

    /// A connection that only reads.
    async fn look(&self) -> Result<(Kind, Pool), StoreError> {
        Ok(match self {
            Self::Sqlite(path) => (Kind::Sqlite, db::sqlite::look(path).await?),
            Self::Postgres(options) => (Kind::Postgres, db::postgres::look(options).await?),
        })
    }
}

async fn read(kind: Kind, pool: &Pool) -> Result<DatabaseStatus, StoreError> {
    let mut tx = pool.begin().await?;
    let applied = applied(&mut tx).await?;
    let schema = applied.iter().copied().max().unwrap_or(0);
    let (mut tasks, mut queues, mut nodes) = (BTreeMap::new(), 0, 0);
    if schema > 0 {
        let by_state = query_as("SELECT status, COUNT(*) FROM tasks GROUP BY status");
        tasks = by_state.fetch_all(&mut tx).await?.into_iter().collect();
        queues = query_scalar("SELECT COUNT(*) FROM queues").fetch_one(&mut tx).await?;
        nodes = query_scalar("SELECT COUNT(*) FROM nodes").fetch_one(&mut tx).await?;
    }
    let version =
        query_scalar("SELECT sqlite_version()").on_postgres("SELECT current_setting('server_version')");
    let size = query_scalar("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
        .on_postgres("SELECT pg_database_size(current_database())");
    let servers = match kind {
        Kind::Sqlite => None,
        Kind::Postgres => Some(servers(&mut tx).await?),
    };
    let kind = kind.name();
    let (version, size_bytes) = (version.fetch_one(&mut tx).await?, size.fetch_one(&mut tx).await?);
    let pending = pending(&applied).collect();
    Ok(DatabaseStatus { kind, version, schema, pending, size_bytes, tasks, queues, nodes, servers })
}

fn pending(applied: &[i64]) -> impl Iterator<Item = i64> {
    migrations::versions().filter(|version| !applied.contains(version))
}

/// The migrations that it has; none: it has no tables.
async fn applied(tx: &mut Tx) -> Result<Vec<i64>, StoreError> {
    let there = query_scalar::<i64>("SELECT COUNT(*) FROM sqlite_master WHERE name = '_sqlx_migrations'")
        .on_postgres("SELECT (CASE WHEN to_regclass('_sqlx_migrations') IS NULL THEN 0 ELSE 1 END)::bigint");
    if there.fetch_one(&mut *tx).await? == 0 {
        return Ok(Vec::new());
    }
    Ok(query_scalar("SELECT version FROM _sqlx_migrations ORDER BY version").fetch_all(tx).await?)
}

/// By the names of their sessions; another user's are not shown to us.
async fn servers(tx: &mut Tx) -> Result<Vec<ConnectedServer>, StoreError> {
    let sessions = query(
        "SELECT substr(a.application_name, 8) AS name, COALESCE(host(MIN(a.client_addr)), 'local') AS address, \
         COUNT(DISTINCT a.pid) AS connections, MAX(CASE WHEN l.pid IS NULL THEN 0 ELSE 1 END)::bigint AS leads \
         FROM pg_stat_activity a LEFT JOIN pg_locks l ON l.pid = a.pid AND l.locktype = 'advisory' AND l.granted \
         AND l.objsubid = 2 AND l.classid::bigint = $1 AND l.objid = hashtext(current_schema())::oid \
         WHERE a.datname = current_database() AND a.application_name LIKE 'cantle %' \
         GROUP BY a.application_name ORDER BY 1",
    );
    let server = |row: &Row| -> Result<ConnectedServer, StoreError> {
        Ok(ConnectedServer {
            name: row.try_get("name")?,
            address: row.try_get("address")?,
            connections: row.try_get("connections")?,
            leads: row.try_get::<i64, _>("leads")? == 1,
        })
    };
    sessions.bind(Alone::Lead as i64).fetch_all(tx).await?.iter().map(server).collect()
}

async fn verify(kind: Kind, pool: &Pool) -> Result<Vec<Broken>, StoreError> {
    let mut tx = pool.begin().await?;
    let applied = applied(&mut tx).await?;
    let newest = migrations::versions().max().unwrap_or(0);
    match applied.iter().copied().max() {
        Some(schema) if schema > newest => return Err(StoreError::Newer(schema)),
        // A server makes the tables at its first start.
        None => return Ok(Vec::new()),
        Some(schema) if pending(&applied).next().is_some() => {
            return Err(StoreError::Outdated { schema, newest });
        }
        Some(_) => {}
    }
    let mut broken = Vec::new();
    for (rule, sql) in RULES {
        let (count, example): (i64, Option<String>) = query_as(sql).fetch_one(&mut tx).await?;
        broken.extend((count > 0).then(|| Broken { rule, count, example: example.unwrap_or_default() }));
    }
    if kind == Kind::Sqlite {
        let pages: Vec<String> = query_scalar("PRAGMA integrity_check").fetch_all(&mut tx).await?;
        let faults: Vec<String> = pages.into_iter().filter(|line| line != "ok").collect();
        let count = i64::try_from(faults.len()).unwrap_or(i64::MAX);
        broken.extend(faults.into_iter().next().map(|example| Broken { rule: DAMAGED, count, example }));
    }
    Ok(broken)
}

const DAMAGED: &str = "pages of the file are damaged";
