//! SQLite: one file, one writer.

use std::path::Path;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use super::migrations;
use super::{Kind, Pool, Writer, Writers};
use crate::StoreError;

const READERS: u32 = 4;
/// Waits so long for other programs.
const BUSY: Duration = Duration::from_secs(10);

/// Connections that write, and that read.
pub(crate) async fn open(path: &Path) -> Result<(Writers, Pool), StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(BUSY)
        .with_regexp();
    // State is on disk when the call returns. Logs, scalars and heartbeats survive a crash of the server, but may
    // lose their last second when the machine loses power: they are sent again or only displayed.
    let full = options.clone().synchronous(SqliteSynchronous::Full);
    let normal = options.clone().synchronous(SqliteSynchronous::Normal);
    let mut durable = full.connect().await?;
    migrations::migrator(Kind::Sqlite).run(&mut durable).await?;
    let bulk = normal.connect().await?;
    let reading = options.pragma("query_only", "true");
    let readers = SqlitePoolOptions::new().max_connections(READERS).test_before_acquire(false);
    let readers = Pool::Sqlite(readers.connect_with(reading).await?);
    Ok((Writers::Sqlite(Writer::new(durable, bulk)), readers))
}

/// A connection that reads a file which is there.
pub(crate) async fn look(path: &Path) -> Result<Pool, StoreError> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(false);
    let options = options.busy_timeout(BUSY).pragma("query_only", "true");
    Ok(Pool::Sqlite(SqlitePoolOptions::new().max_connections(1).connect_with(options).await?))
}
