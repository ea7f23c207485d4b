//! The reports of `cantle db status` and `cantle db check`, and the refusal of each unusable database: one line and a hint.
//! On PostgreSQL where `CANTLE_TEST_POSTGRES` names one, else on SQLite.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cantle_model::TaskStatus;
use cantle_store::{Change, Database, NewTask, Store, StoreError};
use serde_json::Map;

use crate::common;

const NEWEST: &str = "version = (SELECT MAX(version) FROM _sqlx_migrations)";

async fn filled(store: &Store) {
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for id in ["a", "b"] {
        let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
        store.submit(&new, "q", &Change { now_us: 2, ..Change::default() }).await.unwrap();
    }
    let taken = store.take_next("q", None, 3).await.unwrap().unwrap();
    let change = Change { now_us: 4, run: Some(taken.run), ..Change::default() };
    store.set_status(&taken.task, TaskStatus::InProgress, &change).await.unwrap();
}

/// The report on a database that cannot be used: one line, and what to do.
fn line(error: &StoreError) -> String {
    let (text, hints) = (error.to_string(), error.hints());
    assert!(!text.contains('\n') && !text.contains("secret"), "{text}");
    assert!(!hints.is_empty(), "{text}: no hint");
    text
}

#[tokio::test]
async fn a_status_makes_no_tables_and_names_what_is_pending() {
    let fresh = common::fresh().await;
    if let Database::Sqlite(path) = &fresh.database {
        std::fs::write(path, "").unwrap();
    }
    let empty = fresh.database.status().await.unwrap();
    assert_eq!((empty.schema, empty.pending.first()), (0, Some(&1)));
    assert_eq!(fresh.database.status().await.unwrap().schema, 0, "the first one made tables");
    let store = fresh.open().await;
    filled(&store).await;
    let status = fresh.database.status().await.unwrap();
    assert_eq!((status.pending.len(), status.queues), (0, 1));
    assert!(status.schema > 0 && status.size_bytes > 0 && !status.version.is_empty());
    assert_eq!(status.tasks["queued"] + status.tasks["in_progress"], 2);
    assert_eq!(fresh.database.verify().await.unwrap(), []);
    fresh.meddle(&format!("DELETE FROM _sqlx_migrations WHERE {NEWEST}")).await;
    assert_eq!(fresh.database.status().await.unwrap().pending, [status.schema]);
    let refused = fresh.database.verify().await.unwrap_err();
    assert!(line(&refused).starts_with("the tables of the database are of version "), "{refused}");
    store.close().await;
}

#[tokio::test]
async fn what_does_not_fit_together_is_found() {
    for (meddle, rule) in [
        ("DELETE FROM queue_entries", "are queued, and neither in a queue nor with an agent"),
        ("UPDATE tasks SET status = 'stopped' WHERE id = 'b'", "wait in a queue, and are not queued"),
        ("DELETE FROM queues", "wait in a queue that does not exist"),
        ("UPDATE tasks SET taken_us = 9 WHERE id = 'b'", "wait in a queue, and are with an agent"),
        ("DELETE FROM runs", "run, and have no run that lasts"),
        ("UPDATE tasks SET status = 'failed' WHERE id = 'a'", "have ended, and have a run that lasts"),
        ("INSERT INTO runs (task, run, slices) VALUES ('a', 2, '[]')", "have two runs that last"),
    ] {
        let fresh = common::fresh().await;
        let store = fresh.open().await;
        filled(&store).await;
        fresh.meddle(meddle).await;
        let broken = fresh.database.verify().await.unwrap();
        let found: Vec<_> = broken.iter().map(|broken| (broken.rule, broken.count)).collect();
        assert_eq!(found, [(rule, 1)], "{meddle}");
        store.close().await;
    }
}

#[tokio::test]
async fn a_newer_database_is_refused() {
    let fresh = common::fresh().await;
    fresh.open().await.close().await;
    fresh.meddle(&format!("UPDATE _sqlx_migrations SET version = 9999 WHERE {NEWEST}")).await;
    let text = "the database was written by a newer version of cantle (its tables are of version 9999)";
    assert_eq!(line(&fresh.database.verify().await.unwrap_err()), text);
    assert_eq!(line(&Store::connect(&fresh.database).await.unwrap_err()), text);
}

#[test]
fn an_unknown_scheme_is_refused() {
    for text in ["mysql://u:secret@h/d", "http://h", "sqlite:"] {
        let error = text.parse::<Database>().unwrap_err();
        assert!(matches!(error, StoreError::Scheme(_)), "{text}: {error}");
        line(&error);
    }
    assert!(matches!("postgres://u@h:port/d".parse::<Database>(), Err(StoreError::Address(_))));
}

#[tokio::test]
async fn wrong_credentials_and_a_wrong_name_are_refused() {
    let Some(server) = common::postgres() else { return };
    for (from, to) in [("cantle:cantle@", "cantle:secret@"), ("cantle:cantle@", "nobody:secret@")] {
        let database: Database = format!("{server}/postgres").replace(from, to).parse().unwrap();
        let error = database.check().await.unwrap_err();
        assert!(matches!(error, StoreError::Refused { .. }), "{error}");
        line(&error);
        assert!(matches!(Store::connect(&database).await, Err(StoreError::Refused { .. })));
    }
    let database: Database = format!("{server}/no_such").parse().unwrap();
    assert!(line(&database.status().await.unwrap_err()).contains("no_such"));
}

#[tokio::test]
async fn a_database_that_is_away_is_told_from_one_that_refuses() {
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let database: Database = format!("postgres://cantle:secret@127.0.0.1:{port}/cantle").parse().unwrap();
    let error = database.check().await.unwrap_err();
    assert!(matches!(error, StoreError::Storage { .. }), "a server waits for it: {error}");
    line(&error);
}

/// As while PostgreSQL restarts: it takes the connection and ends it.
#[tokio::test]
async fn a_connection_that_ends_at_once_is_a_database_that_is_away() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            // After the question, or the end would be a reset.
            let mut question = [0; 8];
            tokio::io::AsyncReadExt::read_exact(&mut socket, &mut question).await.unwrap();
        }
    });
    let database: Database = format!("postgres://cantle:secret@127.0.0.1:{port}/cantle").parse().unwrap();
    let error = database.check().await.unwrap_err();
    assert!(matches!(error, StoreError::Storage { .. }), "a server waits for it: {error}");
}

/// A stand-in for a standby: a session that may not write. A real standby gives the same answer.
#[tokio::test]
async fn a_read_only_database_is_refused() {
    let Some(server) = common::postgres() else { return };
    let url = format!("{server}/postgres?options=-c%20default_transaction_read_only%3Don");
    let database: Database = url.parse().unwrap();
    let error = database.check().await.unwrap_err();
    assert!(line(&error).ends_with("is read-only, as a standby is"), "{error}");
    assert!(matches!(Store::connect(&database).await, Err(StoreError::Standby(_))));
}

/// The leader of one schema is no leader of another one in the same database.
#[tokio::test]
async fn each_schema_has_a_leader_and_the_status_names_it() {
    if common::postgres().is_none() {
        return;
    }
    for fresh in [common::fresh().await, common::fresh().await] {
        let store = Arc::new(fresh.open().await);
        let leads = Arc::new(AtomicBool::new(false));
        let (store, seen) = (Arc::clone(&store), Arc::clone(&leads));
        // It leads until the test ends: the second schema's leader is an additional one.
        tokio::spawn(async move { store.lead(|now| seen.store(now, Ordering::Relaxed)).await });
        let begin = Instant::now();
        while !leads.load(Ordering::Relaxed) {
            assert!(begin.elapsed() < Duration::from_secs(60), "no server leads in this schema");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let servers = fresh.database.status().await.unwrap().servers.unwrap();
        let me = format!("/{}", std::process::id());
        assert!(servers.iter().any(|server| server.leads && server.name.ends_with(&me)), "{servers:?}");
    }
}
