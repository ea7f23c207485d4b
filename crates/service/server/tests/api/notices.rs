//! Notices of tasks and of the fleet, to real receivers on loopback.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_server::{NotifyConfig, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use crate::common::TestServer;

/// A request as it arrived.
#[derive(Debug)]
struct Arrived {
    head: String,
    body: String,
}

impl Arrived {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    fn header(&self, name: &str) -> Option<&str> {
        let line = self.head.lines().find(|line| line.to_lowercase().starts_with(&format!("{name}:")))?;
        line.split_once(": ").map(|(_, value)| value)
    }
}

/// A receiver that answers with this status; `None`: never.
async fn receiver(status: Option<u16>) -> (u16, mpsc::UnboundedReceiver<Arrived>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (port, serve(listener, status))
}

fn serve(listener: TcpListener, status: Option<u16>) -> mpsc::UnboundedReceiver<Arrived> {
    let (sender, arrived) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(take(stream, status, sender.clone()));
        }
    });
    arrived
}

async fn take(mut stream: TcpStream, status: Option<u16>, sender: mpsc::UnboundedSender<Arrived>) {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    let (head, mut body) = loop {
        let length = stream.read(&mut piece).await.unwrap();
        bytes.extend_from_slice(&piece[..length]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            break (head.to_owned(), body.to_owned());
        }
        if length == 0 {
            return;
        }
    };
    let wanted = Arrived { head, body: String::new() };
    let length: usize = wanted.header("content-length").unwrap().parse().unwrap();
    while body.len() < length {
        let more = stream.read(&mut piece).await.unwrap();
        body.push_str(&String::from_utf8_lossy(&piece[..more]));
    }
    drop(sender.send(Arrived { body, ..wanted }));
    match status {
        Some(status) => {
            let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        None => std::future::pending().await,
    }
}

async fn next(arrived: &mut mpsc::UnboundedReceiver<Arrived>) -> Arrived {
    tokio::time::timeout(Duration::from_secs(30), arrived.recv()).await.unwrap().unwrap()
}

fn config(notify: NotifyConfig) -> ServerConfig {
    ServerConfig { notify: NotifyConfig { grace: Duration::ZERO, ..notify }, ..ServerConfig::default() }
}

fn on_loopback() -> ServerConfig {
    config(NotifyConfig { allow: vec!["127.0.0.1".to_owned()], ..NotifyConfig::default() })
}

async fn start(config: ServerConfig) -> TestServer {
    TestServer::start_with(tempfile::tempdir().unwrap(), config).await
}

async fn call(server: &TestServer, endpoint: &str, body: Value) -> Value {
    server.client.call_value(endpoint, &body).await.unwrap()
}

async fn set(server: &TestServer, name: &str, address: String, always: bool) -> Value {
    call(server, "cantle.set_receiver", json!({"name": name, "address": address, "always": always})).await
}

/// A task that ends in this state; with receivers that it names.
async fn ended(server: &TestServer, name: &str, state: &str, notify: &str) -> String {
    let queue = server.queue(&format!("q-{name}")).await;
    let params = json!({"cantle": {"notify": {"section": "cantle", "name": "notify", "value": notify}}});
    let id = uuid::Uuid::new_v4().simple().to_string();
    let task = json!({"name": name, "type": "custom", "hyperparams": params});
    call(server, "cantle.submit_task", json!({"queue": queue, "id": id, "task": task})).await;
    call(server, "tasks.started", json!({"task": id, "force": true})).await;
    let body = json!({"task": id, "status_reason": "exit code 3", "force": true});
    call(server, &format!("tasks.{state}"), body).await;
    id
}

async fn state(server: &TestServer, name: &str) -> Value {
    let found = call(server, "cantle.get_receivers", json!({})).await;
    found["receivers"].as_array().unwrap().iter().find(|one| one["name"] == name).cloned().unwrap()
}

#[tokio::test]
async fn a_task_that_names_a_receiver_is_reported_with_a_signature() {
    let (server, (port, mut arrived)) = (start(on_loopback()).await, receiver(Some(204)).await);
    let made = set(&server, "lab", format!("http://127.0.0.1:{port}/hook"), false).await;
    let secret = made["secret"].as_str().unwrap();
    ended(&server, "silent", "failed", "").await;
    let id = ended(&server, "train", "failed", "lab").await;
    let one = next(&mut arrived).await;
    let message = one.json();
    assert_eq!(message["task"]["id"], id, "the other task is the negative control: {message}");
    assert_eq!((&message["type"], &message["task"]["state"]), (&json!("task.failed"), &json!("failed")));
    assert_eq!(message["text"], "Task train has failed: exit code 3");
    assert!(message["task"]["url"].as_str().unwrap().ends_with(&format!("/ui/tasks/{id}")));
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let (webhook, time) = (one.header("webhook-id").unwrap(), one.header("webhook-timestamp").unwrap());
    let signature =
        STANDARD.decode(one.header("webhook-signature").unwrap().strip_prefix("v1,").unwrap()).unwrap();
    let verify = |body: &str| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
        hmac::verify(&key, format!("{webhook}.{time}.{body}").as_bytes(), &signature)
    };
    assert!(verify(&one.body).is_ok() && verify(&one.body.replace("failed", "completed")).is_err());
    // A receiver of all tasks, in the forms of Slack and Teams.
    for form in ["slack", "teams"] {
        set(&server, form, format!("{form}:http://127.0.0.1:{port}/"), true).await;
    }
    ended(&server, "other", "completed", "").await;
    let both = [next(&mut arrived).await.json(), next(&mut arrived).await.json()];
    let slack = both.iter().find_map(|body| body["text"].as_str()).unwrap();
    assert!(slack.starts_with("Task other is completed\nhttp://"), "{slack}");
    let card = both.iter().find_map(|body| body.pointer("/attachments/0/content/body/0/text")).unwrap();
    assert_eq!(card, "Task other is completed");
    let listed = call(&server, "cantle.get_receivers", json!({})).await.to_string();
    assert!(!listed.contains("/hook") && !listed.contains("whsec"), "addresses are secrets: {listed}");
    assert!(arrived.try_recv().is_err(), "nothing else arrived");
}

#[tokio::test]
async fn a_receiver_that_never_answers_delays_no_other_and_is_seen() {
    let server = start(on_loopback()).await;
    let ((dead, _held), (port, mut arrived)) = (receiver(None).await, receiver(Some(200)).await);
    set(&server, "dead", format!("http://127.0.0.1:{dead}/"), true).await;
    set(&server, "good", format!("http://127.0.0.1:{port}/"), true).await;
    for n in 0..5 {
        ended(&server, &format!("t{n}"), "failed", "").await;
    }
    let before = tokio::time::Instant::now();
    for n in 0..5 {
        assert_eq!(next(&mut arrived).await.json()["task"]["name"], format!("t{n}"), "in order");
    }
    assert!(before.elapsed() < Duration::from_secs(8), "{:?}", before.elapsed());
    let state = async {
        loop {
            let state = state(&server, "dead").await;
            if state["failure"].is_string() {
                return state;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let state = tokio::time::timeout(Duration::from_secs(30), state).await.unwrap();
    assert_eq!((&state["failure"], &state["waiting"]), (&json!("no answer within 10 s"), &json!(5)));
}

#[tokio::test]
async fn what_waits_survives_a_restart() {
    let server = start(on_loopback()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    set(&server, "lab", format!("http://127.0.0.1:{port}/"), true).await;
    let id = ended(&server, "train", "failed", "").await;
    let server = server.restart_with(on_loopback()).await;
    let mut arrived = serve(TcpListener::bind(("127.0.0.1", port)).await.unwrap(), Some(200));
    assert_eq!(next(&mut arrived).await.json()["task"]["id"], id);
    tokio::time::sleep(Duration::from_secs(2)).await;
    all_delivered(&server, "lab").await;
    assert!(arrived.try_recv().is_err(), "once");
}

#[tokio::test]
async fn users_reach_no_address_that_is_not_public() {
    let (port, mut arrived) = receiver(Some(200)).await;
    let server = start(config(NotifyConfig::default())).await;
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433"] {
        set(&server, "lab", format!("http://{host}:{port}/"), true).await;
        let (status, _, answer) = server.raw("cantle.test_receiver", r#"{"name": "lab"}"#).await;
        let why = answer["meta"]["result_msg"].as_str().unwrap();
        assert!(status == 400 && why.contains("is no public address"), "{host}: {why}");
    }
    assert!(arrived.try_recv().is_err());
    // The negative control, and a redirection that leads nowhere.
    let server = server.restart_with(on_loopback()).await;
    set(&server, "lab", format!("http://127.0.0.1:{port}/"), true).await;
    call(&server, "cantle.test_receiver", json!({"name": "lab"})).await;
    assert_eq!(next(&mut arrived).await.json()["type"], "test");
    let (moved, _) = receiver(Some(302)).await;
    set(&server, "moved", format!("http://127.0.0.1:{moved}/"), true).await;
    let (_, _, answer) = server.raw("cantle.test_receiver", r#"{"name": "moved"}"#).await;
    assert!(answer["meta"]["result_msg"].as_str().unwrap().contains("302"), "{answer}");
}

#[tokio::test]
async fn what_is_wrong_is_refused_in_one_line() {
    let server = start(on_loopback()).await;
    let refused = async |endpoint: &str, body: Value| {
        let (status, _, answer) = server.raw(endpoint, &body.to_string()).await;
        assert_eq!(status, 400, "{answer}");
        answer["meta"]["result_msg"].as_str().unwrap().to_owned()
    };
    let queue = server.queue("q").await;
    let params = json!({"cantle": {"notify": {"value": "nobody"}}});
    let task = json!({"name": "t", "type": "custom", "hyperparams": params});
    let body = json!({"queue": queue, "id": "0".repeat(32), "task": task});
    assert!(refused("cantle.submit_task", body).await.contains("you have no receiver \"nobody\""));
    for (body, why) in [
        (json!({"name": "A b", "address": "https://x.example"}), "is no name"),
        (json!({"name": "a", "address": "gopher://x.example"}), "no URL of http"),
        (json!({"name": "a", "address": "https://x.example", "on": ["dinner"]}), "is none of start"),
        (json!({"name": "a", "address": "mailto:a@x.example"}), "sends no mail"),
    ] {
        let said = refused("cantle.set_receiver", body).await;
        assert!(said.contains(why), "{said}");
    }
    assert!(refused("cantle.delete_receiver", json!({"name": "a"})).await.contains("you have no receiver"));
}

/// Waits until the server has recorded each delivery. The receiver has a notice before that, and a
/// server that stops between the two sends it again: a notice arrives at least once (ADR 0082).
async fn all_delivered(server: &TestServer, receiver: &str) {
    while state(server, receiver).await["waiting"] != 0 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn administrators_learn_of_gpus_and_nodes() {
    let (port, mut arrived) = receiver(Some(200)).await;
    let ops = |on: &[&str]| {
        config(NotifyConfig {
            receivers: vec![format!("ops=http://127.0.0.1:{port}/")],
            on: on.iter().map(|one| (*one).to_owned()).collect(),
            ..NotifyConfig::default()
        })
    };
    let server = start(ops(&[])).await;
    let report = |fault: Value| {
        let gpu = json!({"index": 0, "uuid": "GPU-1", "model": "A100", "memory_bytes": 1, "mode": "idle",
            "allocated_milli": 0, "slices": [], "fault": fault});
        json!({"node": "n1", "worker": "n1:gpu", "queues": [], "gpus": [gpu], "interval_ms": 1000})
    };
    call(&server, "cantle.report_node", report(json!("Xid 79: the GPU has fallen off the bus"))).await;
    let lost = next(&mut arrived).await.json();
    assert_eq!((&lost["type"], &lost["node"]), (&json!("gpu-lost"), &json!("n1")));
    assert_eq!(lost["text"], "GPU 0 of n1 (A100) has failed: Xid 79: the GPU has fallen off the bus");
    // A restart repeats nothing.
    all_delivered(&server, "ops").await;
    let server = server.restart_with(ops(&[])).await;
    call(&server, "cantle.report_node", report(Value::Null)).await;
    assert_eq!(next(&mut arrived).await.json()["type"], "gpu-back");
    // A node that is silent; the receiver of GPUs alone is the negative control.
    let away = next(&mut arrived).await.json();
    assert_eq!((&away["type"], &away["node"]), (&json!("agent-away"), &json!("n1")));
    all_delivered(&server, "ops").await;
    let server = server.restart_with(ops(&["gpu-lost"])).await;
    call(&server, "cantle.report_node", report(Value::Null)).await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(arrived.try_recv().is_err());
    let listed = state(&server, "ops").await;
    assert_eq!((&listed["of_server"], &listed["waiting"]), (&json!(true), &json!(0)));
}
