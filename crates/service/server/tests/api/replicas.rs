//! Two servers on one PostgreSQL: both give the same answers, and one takes over from the other.
//!
//! They need the PostgreSQL that `tests/postgres/run.sh` starts.

use std::time::Duration;

use cantle_clearml::cantle::GetEvents;
use cantle_clearml::runs::GetRuns;
use cantle_clearml::{Client, queues, tasks};
use cantle_server::ServerConfig;
use serde_json::json;
use tokio::time::Instant;

use crate::common::{self, TestServer};

/// Two servers with one database and the same keys. A task that was taken and not started within this time goes back.
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

/// A person who is removed at one server is out at the other one too: with a key, with a token, and on an open page.
#[tokio::test]
#[ignore = "needs a PostgreSQL: tests/postgres/run.sh"]
async fn who_is_removed_at_one_is_out_at_the_other() {
    let (first, second) = two(Duration::from_secs(600)).await;
    let anna = json!({"name": "anna", "role": "manager"});
    let made = first.client.call_value("cantle.add_user", &anna).await.unwrap();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let (access, secret) = (text("access_key"), text("secret_key"));
    let http = reqwest::Client::new();
    let with_keys = async || {
        let call = http.post(format!("{}/tasks.get_all", second.client.url()));
        call.basic_auth(&access, Some(&secret)).body("{}").send().await.unwrap().status().as_u16()
    };
    until("the second server knows her", async || with_keys().await == 200).await;
    let at_first = http.post(format!("{}/ui/-/session", first.client.url()));
    let keys = json!({"access_key": access, "secret_key": secret});
    let page = at_first.json(&keys).send().await.unwrap();
    let cookie = page.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let token = cookie.split_once('=').unwrap().1.to_owned();
    let with_cookie = async || {
        let call = http.get(format!("{}/ui/-/session", second.client.url())).header("Cookie", &cookie);
        call.send().await.unwrap().status().as_u16()
    };
    let with_token = async || {
        let call = http.post(format!("{}/users.get_current_user", second.client.url()));
        call.bearer_auth(&token).body("{}").send().await.unwrap().status().as_u16()
    };
    assert_eq!((with_cookie().await, with_token().await), (200, 200), "the negative control");
    let stream = http.get(format!("{}/ui/-/stream", second.client.url())).header("Cookie", &cookie);
    let mut stream = stream.send().await.unwrap();
    assert!(stream.status() == 200 && stream.chunk().await.unwrap().is_some());

    first.client.call_value("cantle.remove_user", &json!({"user": "anna"})).await.unwrap();
    let out = async || {
        let all = (with_keys().await, with_cookie().await, with_token().await);
        all == (401, 401, 401)
    };
    let took = until("the second server refuses her", out).await;
    // An open page ends with the next change, and shows nothing of it.
    let secret_task = second.task("after-she-left").await;
    let queue = second.queue("after").await;
    second.enqueue(&secret_task, &queue).await;
    let rest = tokio::time::timeout(Duration::from_secs(60), async {
        let mut rest = Vec::new();
        while let Ok(Some(chunk)) = stream.chunk().await {
            rest.extend_from_slice(&chunk);
        }
        rest
    });
    let rest = rest.await.expect("the stream of the page ends");
    assert!(!String::from_utf8_lossy(&rest).contains("after-she-left"));
    assert_eq!((with_keys().await, with_cookie().await, with_token().await), (401, 401, 401));
    eprintln!("removed at one server, refused at the other after {took:?}");
}
