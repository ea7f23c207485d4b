//! SQLite: one file, one writer.

use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection as _, SqliteConnection};

use super::{Kind, Pool};
use crate::{StoreError, migrations};

const READERS: u32 = 4;
/// Waits so long for other programs.
const BUSY: Duration = Duration::from_secs(10);

/// Connections that write state, that write what may be lost with the machine's power, and that read.
pub(crate) async fn open(path: &Path) -> Result<[Pool; 3], StoreError> {
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
    let state = writer().connect_with(full).await?;
    migrations::migrator(Kind::Sqlite).run(&state).await?;
    let bulk = writer().connect_with(normal).await?;
    let reading = options.pragma("query_only", "true");
    let readers: SqlitePool = SqlitePoolOptions::new().max_connections(READERS).connect_with(reading).await?;
    Ok([state, bulk, readers].map(Pool::Sqlite))
}

/// A connection that reads a file which is there.
pub(crate) async fn look(path: &Path) -> Result<Pool, StoreError> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(false);
    let options = options.busy_timeout(BUSY).pragma("query_only", "true");
    Ok(Pool::Sqlite(SqlitePoolOptions::new().max_connections(1).connect_with(options).await?))
}

/// A pool of one connection that writes. When a disk is full or fails, SQLite takes the transaction back by itself, which
/// the connection does not notice: it would refuse every later one. Such a connection is replaced.
fn writer() -> SqlitePoolOptions {
    let is_usable = |connection: &mut SqliteConnection| !connection.is_in_transaction();
    SqlitePoolOptions::new().max_connections(1).before_acquire(move |connection, _| {
        let usable = is_usable(connection);
        Box::pin(async move { Ok(usable) })
    })
}
