//! Elects the server that does the periodic work, by a lock of PostgreSQL that ends with the connection that holds it.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::db::{Alone, Writers};
use crate::{Kind, Store};

/// Interval at which a server tries to lead, and a leader checks that it still leads.
const EVERY: Duration = Duration::from_millis(500);
/// The time without an answer of the database after which a leader stops leading.
const PATIENCE: Duration = Duration::from_secs(1);
/// PostgreSQL ends a session whose machine does not answer for 3 s; with it goes the lock.
const KEEPALIVE: &str =
    "SET tcp_keepalives_idle = 1; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 2";

impl Store {
    /// Says whether this server leads, and each time that this changes; never ends. A server on SQLite is the only one.
    pub async fn lead(&self, tell: impl Fn(bool) + Send + Sync) {
        let Writers::Postgres(pool) = &self.writers else {
            tell(true);
            return std::future::pending().await;
        };
        let options = pool.connect_options();
        let mut is_reported = false;
        loop {
            match try_to_lead(&options).await {
                Ok(Some(mut connection)) => {
                    is_reported = false;
                    tell(true);
                    while is_alive(&mut connection).await {
                        tokio::time::sleep(EVERY).await;
                    }
                    tell(false);
                }
                Ok(None) => {}
                // Once until it leads. Without a leader nothing fails, and lost tasks are not queued again.
                Err(error) => {
                    if !std::mem::replace(&mut is_reported, true) {
                        tracing::warn!(%error, "this server cannot try to lead; it tries again");
                    }
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    /// Whether the database answers and can be written.
    ///
    /// # Errors
    /// [`StoreError::Storage`](crate::StoreError::Storage) if not.
    pub async fn answers(&self) -> Result<bool, crate::StoreError> {
        let read_only = match self.kind {
            Kind::Sqlite => "SELECT 0",
            Kind::Postgres => {
                "SELECT CASE WHEN current_setting('transaction_read_only')::bool THEN 1 ELSE 0 END::bigint"
            }
        };
        Ok(crate::query_scalar::<i64>(read_only).fetch_one(&self.readers).await? == 0)
    }
}

async fn try_to_lead(options: &PgConnectOptions) -> Result<Option<PgConnection>, sqlx::Error> {
    let mut connection = options.connect().await?;
    sqlx::raw_sql(KEEPALIVE).execute(&mut connection).await?;
    loop {
        let held = sqlx::query_scalar("SELECT pg_try_advisory_lock($1, hashtext(current_schema()))");
        let held = held.bind(Alone::Lead as i32);
        if held.fetch_one(&mut connection).await? {
            return Ok(Some(connection));
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn is_alive(connection: &mut PgConnection) -> bool {
    matches!(tokio::time::timeout(PATIENCE, connection.ping()).await, Ok(Ok(())))
}
