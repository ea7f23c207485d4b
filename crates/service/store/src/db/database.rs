//! The location of a database, as users write it after `--database`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;

use crate::{StoreError, db};

/// `sqlite:PATH`, a path, or `postgres://USER:PASSWORD@HOST:PORT/NAME`.
#[derive(Clone, Debug)]
pub enum Database {
    /// A file.
    Sqlite(PathBuf),
    /// A server. Options that the URL does not give are those of `libpq`: `PGHOST`, `PGUSER`, `PGPASSWORD`, `~/.pgpass`.
    Postgres(Box<PgConnectOptions>),
}

impl Database {
    /// Tries to reach it. A file is not opened.
    ///
    /// # Errors
    /// [`StoreError::Storage`] if it is away; it may come back. [`StoreError::Refused`], [`StoreError::TooOld`],
    /// [`StoreError::Encoding`], [`StoreError::Standby`] if it cannot be used as it is.
    pub async fn check(&self) -> Result<(), StoreError> {
        match self {
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(options) => Ok(db::postgres::connect(options).await?.close().await?),
        }
    }
}

impl FromStr for Database {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(Box::new(db::postgres::options(text)?)));
        }
        let path = text.strip_prefix("sqlite://").or_else(|| text.strip_prefix("sqlite:")).unwrap_or(text);
        match path.split_once("://") {
            Some((scheme, _)) => Err(StoreError::Scheme(scheme.to_owned())),
            None if path.is_empty() => Err(StoreError::Scheme(text.to_owned())),
            None => Ok(Self::Sqlite(PathBuf::from(path))),
        }
    }
}

impl fmt::Display for Database {
    /// Without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(options) => write!(f, "postgres://{}", db::postgres::place(options)),
        }
    }
}
