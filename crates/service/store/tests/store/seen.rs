//! Steps that read a task without locking it, on PostgreSQL: what changes between the reading and the writing is not
//! overwritten. Where `CANTLE_TEST_POSTGRES` names no server there is nothing to test: SQLite has one writer at a time.

use std::time::Duration;

use cantle_model::TaskStatus::{self, Created, InProgress, Published, Stopped};
use cantle_store::{Change, Database, NewTask, Store, StoreError};
use serde_json::Map;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::common;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

/// A store with a queue and a draft, and another caller's transaction that has run this statement.
async fn meanwhile(
    statement: &'static str,
    status: TaskStatus,
) -> Option<(Store, PgConnection, common::Fresh)> {
    let fresh = common::fresh().await;
    let Database::Postgres(options) = &fresh.database else { return None };
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let new = NewTask { id: "t".into(), name: "t".into(), kind: "training".into(), ..NewTask::default() };
    store.create_task(&new, 1).await.unwrap();
    if status != Created {
        store.set_status("t", status, &at(2)).await.unwrap();
    }
    let mut other = PgConnection::connect_with(options).await.unwrap();
    other.execute("BEGIN").await.unwrap();
    other.execute(statement).await.unwrap();
    Some((store, other, fresh))
}

/// Commits when another transaction waits for a row of it.
async fn commit(mut other: PgConnection) {
    let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
    for _ in 0..1000 {
        let count: i64 = other.fetch_one(waits).await.unwrap().get(0);
        if count > 0 {
            other.execute("COMMIT").await.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no transaction waits for the other one");
}

#[tokio::test]
async fn a_step_does_not_overwrite_what_it_has_not_seen() {
    let publish = "UPDATE tasks SET status = 'published' WHERE id = 't'";
    let Some((store, other, _fresh)) = meanwhile(publish, InProgress).await else { return };
    let change = at(5);
    let (refused, ()) = tokio::join!(store.set_status("t", Stopped, &change), commit(other));
    assert!(matches!(refused, Err(StoreError::Status { from: Published, .. })), "{refused:?}");
    assert_eq!(store.task("t").await.unwrap().index.status, Published);
    let events = store.events_seen(Some("t"), None, 10, None).await.unwrap();
    assert!(events.iter().all(|event| !event.message.contains("stopped")), "{events:?}");
}

#[tokio::test]
async fn a_step_is_repeated_on_what_there_is_now() {
    let rename = "UPDATE tasks SET name = 'other' WHERE id = 't'";
    let Some((store, other, _fresh)) = meanwhile(rename, InProgress).await else { return };
    let change = at(5);
    let (from, ()) = tokio::join!(store.set_status("t", Stopped, &change), commit(other));
    assert_eq!(from.unwrap(), InProgress);
    let task = store.task("t").await.unwrap();
    assert_eq!((task.index.status, task.index.name.as_str()), (Stopped, "other"));
}

#[tokio::test]
async fn no_task_enters_a_queue_that_is_deleted_meanwhile() {
    let Some((store, other, _fresh)) = meanwhile("DELETE FROM queues WHERE id = 'q'", Created).await else {
        return;
    };
    let change = at(5);
    let (refused, ()) = tokio::join!(store.enqueue("t", "q", &change), commit(other));
    assert!(matches!(refused, Err(StoreError::NoQueue(_))), "{refused:?}");
    assert_eq!(store.task("t").await.unwrap().index.status, Created);
}
