//! PostgreSQL, 14 or newer: any number of servers write at once, and each task's row is locked while it changes.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use super::migrations;
use super::{Kind, Pool, Writers};
use crate::{StorageFault, StoreError};

/// Connections that write, and as many that read.
const CONNECTIONS: u32 = 8;
/// A call waits no longer for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// A connection that was used since then is taken to be well: to ask is a way to the server and back. If it is not, its call
/// fails as one does that loses its connection on the way.
const FRESH: Duration = Duration::from_secs(1);
/// Time limits that no transaction of ours exceeds; [`Kind::settled`] depends on it.
const LIMITS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s'";
/// Version 14.
const OLDEST: i32 = 140_000;

/// Its location, without the password.
pub(crate) fn place(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    format!("{}:{}/{database}", options.get_host(), options.get_port())
}

/// Reads a URL.
pub(crate) fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options: PgConnectOptions =
        url.parse().map_err(|source: sqlx::Error| StoreError::Address(source.to_string()))?;
    Ok(options.application_name("cantle"))
}

/// One connection, to a server that can be used.
pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, StoreError> {
    let refused = |source: sqlx::Error| match StorageFault::of(&source) {
        Some(fault) => StoreError::Storage { fault, source },
        None => StoreError::Refused { place: place(options), source },
    };
    let connecting = tokio::time::timeout(PATIENCE, options.connect()).await;
    let connecting =
        connecting.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
    let mut connection = connecting.map_err(refused)?;
    // Not prepared: behind a pooler, another client's statement may have that name.
    let about = "SELECT current_setting('server_version_num')::int4 AS version, current_setting('server_encoding') AS encoding, \
         pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS read_only";
    let about = sqlx::raw_sql(about).fetch_one(&mut connection).await?;
    let version: i32 = about.try_get("version")?;
    if version < OLDEST {
        return Err(StoreError::TooOld { place: place(options), version: version / 10_000 });
    }
    let encoding: String = about.try_get("encoding")?;
    if encoding != "UTF8" {
        return Err(StoreError::Encoding { place: place(options), encoding });
    }
    if about.try_get("read_only")? {
        return Err(StoreError::Standby(place(options)));
    }
    Ok(connection)
}

/// Prepared statements, the leader's lock and what is listened to belong to a session. A pooler that ends it with each transaction
/// gives two connections the same one.
async fn keeps_sessions(first: &mut PgConnection, options: &PgConnectOptions) -> Result<(), StoreError> {
    async fn session(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
        sqlx::raw_sql("SELECT pg_backend_pid()").fetch_one(connection).await?.try_get(0)
    }
    let before = session(first).await?;
    let second = tokio::time::timeout(PATIENCE, options.connect()).await;
    let second = second.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()));
    let mut second = second?;
    let other = session(&mut second).await?;
    let after = session(first).await?;
    second.close().await?;
    if before == other || before != after {
        return Err(StoreError::Pooled(place(options)));
    }
    Ok(())
}

/// A connection that reads, to a server that can be used.
pub(crate) async fn look(options: &PgConnectOptions) -> Result<Pool, StoreError> {
    connect(options).await?.close().await?;
    Ok(Pool::Postgres(PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone())))
}

/// `cantle HOST/PID`: by it `cantle db status` tells servers apart. PostgreSQL keeps 63 bytes of it.
fn session_name() -> String {
    const HOST_CHARS: usize = 44;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host.trim().chars().take(HOST_CHARS).collect();
    format!("cantle {host}/{}", std::process::id())
}

/// Connections that write, and that read.
pub(crate) async fn open(options: PgConnectOptions) -> Result<(Writers, Pool), StoreError> {
    let options = options.application_name(&session_name());
    let mut connection = connect(&options).await?;
    keeps_sessions(&mut connection, &options).await?;
    // Servers that start together wait here for each other.
    migrations::migrator(Kind::Postgres).run(&mut connection).await?;
    connection.close().await?;
    let pool = || {
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .test_before_acquire(false)
            .before_acquire(|connection, used| {
                Box::pin(async move { Ok(used.idle_for < FRESH || connection.ping().await.is_ok()) })
            })
            .after_connect(|connection, _| {
                Box::pin(async move { sqlx::raw_sql(LIMITS).execute(connection).await.map(drop) })
            })
            .connect_lazy_with(options.clone())
    };
    Ok((Writers::Postgres(pool()), Pool::Postgres(pool())))
}

/// By PostgreSQL's codes of errors.
pub(crate) fn fault(code: &str) -> Option<StorageFault> {
    match code {
        "53100" => Some(StorageFault::Full),
        "58030" => Some(StorageFault::Io),
        "25006" => Some(StorageFault::ReadOnly),
        // Too many connections; it stops, starts or had to end the session.
        "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Some(StorageFault::Away),
        // A deadlock, a conflict, a lock or a statement that took too long: another transaction was first.
        "40001" | "40P01" | "55P03" | "57014" => Some(StorageFault::Busy),
        _ if code.starts_with("08") => Some(StorageFault::Away),
        _ => None,
    }
}
