//! Copies of a database that is in use. A copy is a database itself, with the files that belong to it in pieces next to
//! the tables: one file, which SQLite can check.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use crate::StoreError;

const PIECE_BYTES: usize = 1 << 20;

/// The contents of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Tasks in it.
    pub tasks: i64,
    /// Files in it.
    pub files: i64,
}

async fn open(path: &Path) -> Result<SqliteConnection, StoreError> {
    Ok(SqliteConnectOptions::new().filename(path).create_if_missing(false).connect().await?)
}

async fn copy(from: &mut SqliteConnection, to: &Path) -> Result<(), StoreError> {
    sqlx::query("VACUUM INTO $1").bind(to.display().to_string()).execute(from).await?;
    Ok(())
}

/// Copies the database of a server, which may run, to a new file. At the end, no other file lies next to the copy.
///
/// # Errors
/// If one of both cannot be opened, or the copy cannot be written.
pub async fn copy_database(from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut source = open(from).await?;
    copy(&mut source, to).await?;
    let mut copied = open(to).await?;
    for sql in [
        "CREATE TABLE backup_pieces (path TEXT NOT NULL, piece BIGINT NOT NULL, data BLOB NOT NULL, \
         PRIMARY KEY (path, piece))",
        "CREATE TABLE backup_files (path TEXT PRIMARY KEY, size BIGINT NOT NULL)",
    ] {
        sqlx::query(sql).execute(&mut copied).await?;
    }
    source.close().await?;
    Ok(copied.close().await?)
}

/// Puts a file into a copy, under a path of its own.
///
/// # Errors
/// If it cannot be read, or the copy cannot be written.
pub async fn put_file(copied: &Path, path: &str, file: &Path) -> Result<(), StoreError> {
    let mut copied = open(copied).await?;
    let mut tx = copied.begin().await?;
    let mut source = File::open(file).map_err(sqlx::Error::Io)?;
    let mut size = 0;
    for piece in 0_i64.. {
        let mut data = Vec::new();
        let limit = u64::try_from(PIECE_BYTES).unwrap_or(u64::MAX);
        (&mut source).take(limit).read_to_end(&mut data).map_err(sqlx::Error::Io)?;
        if data.is_empty() {
            break;
        }
        size += i64::try_from(data.len()).unwrap_or(0);
        let insert = sqlx::query("INSERT INTO backup_pieces (path, piece, data) VALUES ($1, $2, $3)");
        insert.bind(path).bind(piece).bind(data).execute(&mut *tx).await?;
    }
    let insert = sqlx::query("INSERT INTO backup_files (path, size) VALUES ($1, $2)");
    insert.bind(path).bind(size).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(copied.close().await?)
}

/// Reads a copy from its beginning to its end.
///
/// # Errors
/// [`StoreError::NoBackup`] if it is damaged, or no copy.
pub async fn check(copied: &Path) -> Result<Contents, StoreError> {
    let no_backup = |why: String| StoreError::NoBackup { path: copied.to_owned(), why };
    let mut source = open(copied).await.map_err(|error| no_backup(error.to_string()))?;
    let contents = async {
        let found: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut source).await?;
        let tasks: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM tasks").fetch_one(&mut source).await?;
        let files: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM backup_files").fetch_one(&mut source).await?;
        let short: Option<String> = sqlx::query_scalar(
            "SELECT path FROM backup_files WHERE size <> (SELECT COALESCE(SUM(LENGTH(data)), 0) \
             FROM backup_pieces WHERE backup_pieces.path = backup_files.path) LIMIT 1",
        )
        .fetch_optional(&mut source)
        .await?;
        Ok::<_, sqlx::Error>((found, Contents { tasks, files }, short))
    };
    let (found, contents, short) = contents.await.map_err(|error| no_backup(error.to_string()))?;
    source.close().await?;
    match short {
        _ if found != "ok" => Err(no_backup(found)),
        Some(path) => Err(no_backup(format!("{path} is not whole"))),
        None => Ok(contents),
    }
}

/// The paths of the files in a copy.
///
/// # Errors
/// If it cannot be read.
pub async fn files(copied: &Path) -> Result<Vec<String>, StoreError> {
    let mut source = open(copied).await?;
    Ok(sqlx::query_scalar("SELECT path FROM backup_files ORDER BY path").fetch_all(&mut source).await?)
}

/// Writes one of the files of a copy.
///
/// # Errors
/// If it cannot be read or written.
pub async fn take_file(copied: &Path, path: &str, to: &mut File) -> Result<(), StoreError> {
    let mut source = open(copied).await?;
    for piece in 0_i64.. {
        let data = sqlx::query_scalar("SELECT data FROM backup_pieces WHERE path = $1 AND piece = $2");
        let data: Option<Vec<u8>> = data.bind(path).bind(piece).fetch_optional(&mut source).await?;
        let Some(data) = data else { break };
        to.write_all(&data).map_err(sqlx::Error::Io)?;
    }
    to.sync_all().map_err(sqlx::Error::Io)?;
    Ok(source.close().await?)
}

/// Writes the database of a copy, without the files.
///
/// # Errors
/// If it cannot be read or written.
pub async fn take_database(copied: &Path, to: &Path) -> Result<(), StoreError> {
    let mut source = open(copied).await?;
    copy(&mut source, to).await?;
    source.close().await?;
    let mut restored = open(to).await?;
    for sql in ["DROP TABLE backup_pieces", "DROP TABLE backup_files", "VACUUM"] {
        sqlx::query(sql).execute(&mut restored).await?;
    }
    Ok(restored.close().await?)
}
