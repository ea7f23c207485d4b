//! Copies a SQLite file to PostgreSQL: nothing is missing there, and work continues where the file ended.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says by panicking that something is wrong")]

mod common;

use cantle_model::TaskStatus;
use cantle_store::{Change, LogLine, NewTask, Scalar, Store, StoreError, copy};
use serde_json::Map;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

#[tokio::test]
#[ignore = "needs a PostgreSQL: tests/postgres/run.sh"]
async fn all_of_it_arrives() {
    assert!(common::postgres().is_some(), "CANTLE_TEST_POSTGRES names no server; see tests/postgres/run.sh");
    let fresh = common::fresh().await;
    let file = fresh.dir.path().join("cantle.db");
    let old = Store::open(&file).await.unwrap();
    old.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for id in ["a", "b", "c"] {
        let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
        old.submit(&new, "q", &at(5)).await.unwrap();
    }
    old.take_next("q", None, 6).await.unwrap().unwrap();
    old.set_status("a", TaskStatus::InProgress, &at(7)).await.unwrap();
    old.move_in_queue("q", "c", |_, _| 0).await.unwrap();
    // A program may print a NUL, which PostgreSQL's texts cannot have.
    let line =
        |n: i64| LogLine { task: "a".into(), timestamp_ms: n, msg: format!("{n}\0"), ..LogLine::default() };
    old.add_logs(&(0..1200).map(line).collect::<Vec<_>>(), 8).await.unwrap();
    let point = Scalar {
        task: "a".into(),
        metric: "m".into(),
        variant: "v".into(),
        iter: 1,
        timestamp_ms: 1,
        value: 0.1,
    };
    old.add_scalars(&[point]).await.unwrap();
    let events = old.events(None, Some(0), 100).await.unwrap();
    old.close().await;
    let copied = copy(&file, &fresh.database).await.unwrap();
    assert!(copied.contains(&("logs", 1200)) && copied.contains(&("tasks", 3)), "{copied:?}");
    // Fails if PostgreSQL has no statistics of a table that was filled.
    let known = "SELECT 1 / count(*) FROM pg_class WHERE oid = 'logs'::regclass AND reltuples = 1200";
    fresh.meddle(known).await;
    let new = fresh.open().await;
    assert_eq!(new.events(None, Some(0), 100).await.unwrap(), events);
    assert_eq!(new.runs("a").await.unwrap().len(), 1);
    assert_eq!(new.scalars("a").await.unwrap()[0].value.to_bits(), 0.1_f64.to_bits());
    let lines = new.logs_after("a", 0, 10_000).await.unwrap();
    assert_eq!((lines.len(), lines[7].msg.as_str()), (1200, "7\u{fffd}"));
    // It continues: in order, behind what is there.
    new.add_logs(&[line(1200)], 9).await.unwrap();
    assert!(new.logs_after("a", 0, 10_000).await.unwrap()[1200].id > lines[1199].id);
    let last = NewTask { id: "d".into(), name: "d".into(), kind: "training".into(), ..NewTask::default() };
    new.submit(&last, "q", &at(10)).await.unwrap();
    let order: Vec<_> = new.queue("q").await.unwrap().entries.into_iter().map(|(task, _)| task).collect();
    assert_eq!(order, ["c", "b", "d"]);
    assert!(matches!(copy(&file, &fresh.database).await, Err(StoreError::NotEmpty)), "not twice");
}
