//! A database of an older release works with all its data; one of a newer release is refused and not changed.

use std::path::PathBuf;

use cantle_model::{Measured, TaskStatus};
use cantle_store::{Change, Store, StoreError, TaskClaim, TaskFilter, Terms};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

struct Old {
    dir: tempfile::TempDir,
}

impl Old {
    async fn make() -> Self {
        let old = Self { dir: tempfile::tempdir().unwrap() };
        let pool = old.pool().await;
        sqlx::raw_sql(include_str!("../databases/0.1.0.sql")).execute(&pool).await.unwrap();
        pool.close().await;
        old
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("cantle.db")
    }

    async fn pool(&self) -> SqlitePool {
        let options = SqliteConnectOptions::new().filename(self.path()).create_if_missing(true);
        SqlitePool::connect_with(options).await.unwrap()
    }

    async fn version(&self) -> i64 {
        let pool = self.pool().await;
        let version = sqlx::query_scalar("SELECT MAX(version) FROM _sqlx_migrations").fetch_one(&pool).await;
        pool.close().await;
        version.unwrap()
    }
}

#[tokio::test]
async fn all_that_the_first_release_wrote_is_there() {
    let old = Old::make().await;
    assert_eq!(old.version().await, 1);
    let store = Store::open(&old.path()).await.unwrap();
    let states: Vec<(String, TaskStatus)> = store
        .task_index(&TaskFilter::default())
        .await
        .unwrap()
        .into_iter()
        .map(|task| (task.id, task.status))
        .collect();
    let state = |id: &str| states.iter().find(|(task, _)| task == id).unwrap().1;
    use TaskStatus::{Completed, Created, Failed, InProgress, Queued};
    for (id, expected) in [
        ("t-draft", Created),
        ("t-waits", Queued),
        ("t-runs", InProgress),
        ("t-asked", InProgress),
        ("t-done", Completed),
        ("t-failed", Failed),
    ] {
        assert_eq!(state(id), expected, "{id}");
    }
    let failed = store.task("t-failed").await.unwrap();
    assert_eq!((failed.exit_code, failed.reason.as_deref()), (Some(3), Some("no memory")));
    assert_eq!(failed.slices[0].memory_limit_bytes, 1 << 30);
    assert!(failed.doc.contains_key("script"));
    assert!(store.task("t-asked").await.unwrap().stop_asked);
    let queue = store.queue("q1").await.unwrap();
    assert_eq!((queue.name.as_str(), queue.entries.len()), ("default", 1));
    assert_eq!(store.projects().await.unwrap()[0].name, "vision");
    assert_eq!(store.logs_after("t-runs", 0, 10).await.unwrap()[0].msg, "hello from t-runs\n");
    assert_eq!(store.scalars("t-done").await.unwrap().len(), 1);
    assert_eq!(store.reports("t-done", "plot").await.unwrap().len(), 1);
    assert_eq!(store.models(&["m1".into()], &[]).await.unwrap()[0].name, "model");
    assert_eq!(store.nodes().await.unwrap()[0].node, "node1");
    assert_eq!(store.events(Some("t-runs"), None, 10).await.unwrap().len(), 1);
    // A task that ran has a run.
    assert_eq!(store.runs("t-failed").await.unwrap()[0].exit_code, Some(3));
    assert_eq!(store.runs("t-waits").await.unwrap(), []);
}

#[tokio::test]
async fn what_ran_then_ends_now() {
    let old = Old::make().await;
    let store = Store::open(&old.path()).await.unwrap();
    // As the agent of that release reports it, which knows no number of a run.
    let exit = TaskClaim {
        task: "t-runs".into(),
        node: "node1".into(),
        lease: "l1".into(),
        run: None,
        slices: Vec::new(),
        terms: Terms::default(),
        exit_code: Some(0),
        reason: None,
        measured: Measured::default(),
    };
    store.claim(&exit, 3000).await.unwrap();
    store
        .set_status("t-runs", TaskStatus::Completed, &Change { now_us: 3001, ..Change::default() })
        .await
        .unwrap();
    let taken = store.take_next("q1", None, 3002).await.unwrap().unwrap();
    assert_eq!(taken.task, "t-waits");
    store.close().await;
    // Opened again, nothing is migrated twice.
    let version = old.version().await;
    let store = Store::open(&old.path()).await.unwrap();
    assert_eq!(store.task("t-runs").await.unwrap().index.status, TaskStatus::Completed);
    store.close().await;
    assert_eq!(old.version().await, version);
}

#[tokio::test]
async fn a_newer_database_is_refused_and_left_alone() {
    let old = Old::make().await;
    let pool = old.pool().await;
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'from the future', 1, x'00', 1)";
    sqlx::raw_sql(newer).execute(&pool).await.unwrap();
    pool.close().await;
    let error = Store::open(&old.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer(9999)), "{error}");
    assert!(error.to_string().contains("written by a newer version of cantle"));
    assert!(error.hints()[0].contains("start that version"), "{:?}", error.hints());
    // No migration of ours was applied to it.
    let pool = old.pool().await;
    let ours: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM _sqlx_migrations").fetch_one(&pool).await.unwrap();
    assert_eq!(ours, 2);
}

#[tokio::test]
async fn a_released_migration_that_was_changed_is_refused() {
    let old = Old::make().await;
    let pool = old.pool().await;
    sqlx::raw_sql("UPDATE _sqlx_migrations SET checksum = x'00'").execute(&pool).await.unwrap();
    pool.close().await;
    let error = Store::open(&old.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Migrate(_)), "{error}");
    assert_eq!(old.version().await, 1);
}

/// Before there was a column for it, only the message of a running task said that it was asked to stop.
#[tokio::test]
async fn requests_to_stop_in_an_older_database_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cantle.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&path).create_if_missing(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    let files = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let mut older = sqlx::migrate::Migrator::new(files).await.unwrap();
    older.migrations = older.iter().filter(|migration| migration.version < 6).cloned().collect();
    older.run(&pool).await.unwrap();
    for (id, status, message) in [
        ("asked", "in_progress", "stopping"),
        ("evicted", "in_progress", "stopping for another task"),
        ("ended", "stopped", "stopping"),
    ] {
        sqlx::query(
            "INSERT INTO tasks (id, name, kind, status, tags, system_tags, status_reason, status_message, created_us, \
             last_update_us, status_changed_us, last_iteration, slices, doc) \
             VALUES ($1, $1, 'training', $2, '[]', '[]', '', $3, 1, 1, 1, 0, '[]', '{}')",
        )
        .bind(id)
        .bind(status)
        .bind(message)
        .execute(&pool)
        .await
        .unwrap();
    }
    pool.close().await;
    let store = Store::open(&path).await.unwrap();
    for (id, asked) in [("asked", true), ("evicted", false), ("ended", false)] {
        assert_eq!(store.task(id).await.unwrap().stop_asked, asked, "{id}");
    }
}
