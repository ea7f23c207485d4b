//! Two servers on one PostgreSQL: both give the same answers, and one takes over from the other.
//!
//! They need the PostgreSQL that `tests/postgres/run.sh` starts.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says by panicking that something is wrong"
)]

mod common;

use std::time::Duration;

use cantle_clearml::cantle::{GetEvents, GetRuns};
use cantle_clearml::{Client, queues, tasks};
use cantle_server::ServerConfig;
use common::TestServer;
use serde_json::json;
use tokio::time::Instant;

/// Two servers with one database and the same keys. What was taken and not started within this time goes back.
async fn two(start_within: Duration) -> (TestServer, TestServer) {
    let first = tempfile::tempdir().unwrap();
    let db = common::database_of(first.path()).await;
    assert!(db.is_some(), "CANTLE_TEST_POSTGRES names no server; see tests/postgres/run.sh");
    let config = ServerConfig { db, start_within, ..ServerConfig::default() };
    let first = TestServer::start_with(first, config.clone()).await;
    let second = tempfile::tempdir().unwrap();
    std::fs::create_dir(second.path().join("server")).unwrap();
    for key in ["credentials.json", "viewer.json", "token.key"] {
        let key = format!("server/{key}");
        std::fs::copy(first.dir.path().join(&key), second.path().join(&key)).unwrap();
    }
    let second = TestServer::start_with(second, config).await;
    (first, second)
}

async fn next_task(client: &Client, queue: &str) -> Option<(String, Option<i64>)> {
    let request = queues::GetNextTask { queue: queue.into(), ..queues::GetNextTask::default() };
    client.call(&request).await.unwrap().entry.map(|entry| (entry.task, entry.run))
}

/// Waits for it, for as long as a machine under load may need.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let begin = Instant::now();
    while !is_so().await {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    begin.elapsed()
}

#[tokio::test]
#[ignore = "needs a PostgreSQL: tests/postgres/run.sh"]
async fn each_answers_what_the_other_was_told() {
    let (first, second) = two(Duration::from_secs(600)).await;
    let queue = first.queue("q").await;
    let task = first.task("t").await;
    second.enqueue(&task, &queue).await;
    let (got, run) = next_task(&first.client, &queue).await.unwrap();
    assert_eq!((&got, run), (&task, Some(1)));
    assert_eq!(next_task(&second.client, &queue).await, None, "it is taken");
    let started = tasks::Started { task: task.clone(), run, ..tasks::Started::default() };
    second.client.call(&started).await.unwrap();
    let log = json!({"type": "log", "task": task, "level": "info", "worker": "w", "msg": "hello\u{0}"});
    first.client.call_value("events.add", &log).await.unwrap();
    let ask = json!({"task": task});
    let of = async |server: &TestServer| server.client.call_value("events.get_task_log", &ask).await.unwrap();
    until("the second server has the first one's log", async || of(&second).await["returned"] == 1).await;
    let done = tasks::Completed { task: task.clone(), run, ..tasks::Completed::default() };
    second.client.call(&done).await.unwrap();
    let events = GetEvents { task: Some(task.clone()), after: Some(0), limit: None };
    let kinds = async || {
        let events = first.client.call(&events).await.unwrap().events;
        events.into_iter().map(|event| event.kind).collect::<Vec<_>>()
    };
    until("the first server has the second one's events", async || {
        kinds().await == ["enqueue", "start", "end"]
    })
    .await;
    let runs = first.client.call(&GetRuns { task }).await.unwrap().runs;
    assert_eq!((runs.len(), runs[0].outcome), (1, Some(cantle_model::TaskStatus::Completed)));
}

#[tokio::test]
#[ignore = "needs a PostgreSQL: tests/postgres/run.sh"]
async fn the_other_one_takes_over_the_periodic_work() {
    let (first, second) = two(Duration::from_secs(1)).await;
    let queue = first.queue("q").await;
    let task = first.task("t").await;
    first.enqueue(&task, &queue).await;
    let put_back = async |server: &TestServer| {
        assert_eq!(next_task(&server.client, &queue).await.unwrap().0, task);
        let waits = json!({"queue": queue});
        until("who leads puts it back", async || {
            server.client.call_value("queues.get_num_entries", &waits).await.unwrap()["num"] == 1
        })
        .await
    };
    put_back(&second).await;
    first.stop().await;
    let took = put_back(&second).await;
    eprintln!("handed over and put back in {took:?}");
}
