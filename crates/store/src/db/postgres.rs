//! PostgreSQL, 14 or newer: any number of servers write at once, each task's row is kept while it changes.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _};

use super::{Kind, Pool};
use crate::{StorageFault, StoreError, migrations};

/// Connections that write, and as many that read.
const CONNECTIONS: u32 = 8;
/// A call waits no longer for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// What no transaction of ours takes; [`Kind::settled`] depends on it.
const LIMITS: &str = "SET statement_timeout = '30s'; SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '30s'";
/// Version 14.
const OLDEST: i32 = 140_000;

/// Where it is, without the password.
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
    let version: i32 = sqlx::query_scalar("SELECT current_setting('server_version_num')::int")
        .fetch_one(&mut connection)
        .await?;
    if version < OLDEST {
        return Err(StoreError::TooOld { place: place(options), version: version / 10_000 });
    }
    let encoding: String = sqlx::query_scalar("SHOW server_encoding").fetch_one(&mut connection).await?;
    if encoding != "UTF8" {
        return Err(StoreError::Encoding { place: place(options), encoding });
    }
    let read_only: bool =
        sqlx::query_scalar("SELECT pg_is_in_recovery() OR current_setting('transaction_read_only')::bool")
            .fetch_one(&mut connection)
            .await?;
    if read_only {
        return Err(StoreError::Standby(place(options)));
    }
    Ok(connection)
}

/// Connections that write state, that write the rest, and that read.
pub(crate) async fn open(options: PgConnectOptions) -> Result<[Pool; 3], StoreError> {
    let mut connection = connect(&options).await?;
    // Servers that start together wait here for each other.
    migrations::migrator(Kind::Postgres).run(&mut connection).await?;
    connection.close().await?;
    let pool = || {
        PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(PATIENCE)
            .after_connect(|connection, _| {
                Box::pin(async move { sqlx::raw_sql(LIMITS).execute(connection).await.map(drop) })
            })
            .connect_lazy_with(options.clone())
    };
    let write = pool();
    Ok([write.clone(), write, pool()].map(Pool::Postgres))
}

/// By PostgreSQL's codes of errors.
pub(crate) fn fault(code: &str) -> Option<StorageFault> {
    match code {
        "53100" => Some(StorageFault::Full),
        "58030" => Some(StorageFault::Io),
        "25006" => Some(StorageFault::ReadOnly),
        // Too many connections; it stops, starts or was told to end the session.
        "53300" | "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Some(StorageFault::Away),
        // A deadlock, a conflict, a lock or a statement that took too long: another transaction was first.
        "40001" | "40P01" | "55P03" | "57014" => Some(StorageFault::Busy),
        _ if code.starts_with("08") => Some(StorageFault::Away),
        _ => None,
    }
}
