//! Charts outlive the server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::common::TestServer;

const PATIENCE: Duration = Duration::from_secs(60);

/// A document of the page, read with a session as the page has one.
async fn read(server: &TestServer, path: &str) -> Value {
    let credentials = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap();
    let keys = json!({"access_key": credentials.access_key, "secret_key": credentials.secret_key});
    let http = reqwest::Client::new();
    let url = server.client.url();
    let login = http.post(format!("{url}/ui/-/session")).header("Content-Type", "application/json");
    let login = login.body(keys.to_string()).send().await.unwrap();
    let cookie = login.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    let answer = http.get(format!("{url}/ui/-/{path}")).header("Cookie", cookie).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap()
}

/// The chart, once it has this number of samples.
async fn chart(server: &TestServer, path: &str, samples: usize) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let found = read(server, path).await;
        if found["times_s"].as_array().unwrap().len() >= samples {
            return found;
        }
        assert!(Instant::now() < end, "{path} has only {found}");
        sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_task_and_a_queue_have_their_past_after_a_restart() {
    let server = TestServer::start().await;
    let queue = server.queue("long").await;
    let task = server.task("waits").await;
    server.enqueue(&task, &queue).await;
    let slice = json!({"task": "t", "lease": "l", "milli": 500, "memory_limit_bytes": 20, "memory_used_bytes": 7, "mig": null});
    let gpu = json!({"index": 0, "uuid": "GPU-0", "model": "X", "memory_bytes": 40, "mode": "shared", "allocated_milli": 500, "slices": [slice]});
    let report = json!({"node": "n", "worker": "n", "queues": [], "gpus": [gpu], "waiting": [], "interval_ms": 600_000});
    server.client.call_value("cantle.report_node", &report).await.unwrap();
    let (of_task, of_queue) = ("history/task/t", "history/queue/long");
    let before = chart(&server, of_task, 1).await;
    assert_eq!(
        (&before["series"]["used_bytes"][0], &before["series"]["limit_bytes"][0]),
        (&json!(7), &json!(20))
    );
    let queue_before = chart(&server, of_queue, 1).await;

    let server = server.restart().await;
    let after = chart(&server, of_task, 2).await;
    assert_eq!(after["times_s"][0], before["times_s"][0], "it begins where it began");
    assert_eq!(after["series"]["used_bytes"][0], json!(7));
    let queue = chart(&server, of_queue, 2).await;
    assert_eq!(queue["times_s"][0], queue_before["times_s"][0], "it begins where it began");
    // The first sample may be from before the task was queued.
    assert_eq!(queue["series"]["waiting"].as_array().unwrap().last(), Some(&json!(1)));
    assert!(read(&server, "history/task/never-seen").await["times_s"].as_array().unwrap().is_empty());
}
