//! A fresh database for each test: a file, or one of its own on the PostgreSQL that `CANTLE_TEST_POSTGRES` names
//! (`tests/postgres` starts one).
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "not every test uses all of it; the suite says where its PostgreSQL is"
)]

use std::sync::atomic::{AtomicU32, Ordering};

use cantle_store::{Database, ProjectRow, Store};
use serde_json::Map;

/// A database without tables.
pub struct Fresh {
    pub dir: tempfile::TempDir,
    pub database: Database,
}

/// URL of the PostgreSQL that tests use, without a database.
pub fn postgres() -> Option<String> {
    std::env::var("CANTLE_TEST_POSTGRES").ok().filter(|url| !url.is_empty())
}

pub async fn fresh() -> Fresh {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = postgres() else {
        let database = Database::Sqlite(dir.path().join("cantle.db"));
        return Fresh { dir, database };
    };
    let name = format!("t{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    // A schema is a database of its own here, and made in a tenth of the time.
    run(&format!("{server}/postgres"), &format!("CREATE SCHEMA {name}")).await;
    let url = format!("{server}/postgres?options=-c%20search_path%3D{name}");
    Fresh { dir, database: url.parse().unwrap() }
}

/// One statement that takes no values.
pub async fn run(url: &str, statement: &str) {
    use sqlx::Connection as _;
    let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

/// Makes a project without a quota.
pub async fn make_project(store: &Store, id: &str, name: &str) {
    let project = ProjectRow {
        id: id.into(),
        name: name.into(),
        description: String::new(),
        created_us: 1,
        last_update_us: 1,
        quota: None,
        doc: Map::new(),
    };
    store.create_project(&project).await.unwrap();
}

impl Fresh {
    pub async fn open(&self) -> Store {
        Store::connect(&self.database).await.unwrap()
    }

    /// One statement behind the store's back.
    pub async fn meddle(&self, statement: &str) {
        match &self.database {
            Database::Sqlite(path) => {
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
                let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
                let statement = sqlx::AssertSqlSafe(statement.to_owned());
                sqlx::raw_sql(statement).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Database::Postgres(options) => {
                let pool = sqlx::PgPool::connect_with((**options).clone()).await.unwrap();
                let statement = sqlx::AssertSqlSafe(statement.to_owned());
                sqlx::raw_sql(statement).execute(&pool).await.unwrap();
                pool.close().await;
            }
        }
    }
}
