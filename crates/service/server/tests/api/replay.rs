//! Replays recorded conversations of ClearML's real clients: our answers must have the same codes, the same shapes and
//! the same states. The recordings are not part of this repository; without them the test is skipped with a message.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::TestServer;

/// Each group against one server, in the order in which they were recorded. Not b2: its recording server only asked for
/// the stop of a task that is tagged `development`, and ClearML's own, like ours, stops such a task at once.
const GROUPS: [&[&str]; 5] = [
    &["a1_sdk_init"],
    &[
        "c1_agent_queue_list",
        "a2_create_enqueue",
        "b1_agent_daemon_venv",
        "d1_dynamic_gpus_docs_example",
        "d2_head_of_line",
    ],
    &["b3_agent_runs_sdk_task"],
    &["d3_oss_server_no_runtime_props"],
    &["d4_validation"],
];

/// Endpoints that the open-source server lacks; the recording one had these two all the same, except for d3.
const LACKING: [&str; 2] = ["workers.get_runtime_properties", "workers.set_runtime_properties"];

fn recordings() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/facts/clearml-traces")
}

#[tokio::test]
async fn recorded_clients_get_the_answers_they_know() {
    replay_all(false).await;
}

#[tokio::test]
async fn and_from_a_server_that_has_only_what_the_open_source_one_has() {
    replay_all(true).await;
}

async fn replay_all(open_source: bool) {
    if !recordings().is_dir() {
        eprintln!("skipped: no recordings at {}", recordings().display());
        return;
    }
    let mut calls = 0;
    for group in GROUPS {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start_in(dir, open_source).await;
        let mut replay = Replay { server, open_source, ids: BTreeMap::new() };
        for flow in group {
            let text = std::fs::read_to_string(recordings().join(format!("{flow}.jsonl"))).unwrap();
            let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            replay.set_up(&records).await;
            for (number, record) in records.iter().enumerate() {
                calls += usize::from(replay.send(record, &format!("{flow}:{}", number + 1)).await);
            }
        }
    }
    assert!(calls > 600, "{calls} calls");
}

struct Replay {
    server: TestServer,
    open_source: bool,
    /// Recorded id → id of this server.
    ids: BTreeMap<String, String>,
}

impl Replay {
    /// Makes the queues and tasks that were there before the recording began: a daemon's flows show them, and no call
    /// creates them.
    async fn set_up(&mut self, records: &[Value]) {
        let made_here =
            records.iter().any(|record| record["ep"] == "queues.create" || record["ep"] == "tasks.create");
        if made_here || !records.iter().any(|record| record["ep"] == "workers.register") {
            return;
        }
        let shown = || records.iter().flat_map(|record| record["res"]["queues"].as_array()).flatten();
        for queue in shown().filter(|queue| queue["name"].is_string()) {
            let (recorded, name) = (text(&queue["id"]), text(&queue["name"]));
            if !self.ids.contains_key(recorded) {
                let ours = self.server.queue(name).await;
                self.ids.insert(recorded.to_owned(), ours);
            }
        }
        for queue in shown() {
            for entry in queue["entries"].as_array().into_iter().flatten() {
                let recorded = text(&entry["task"]);
                if self.ids.contains_key(recorded) {
                    continue;
                }
                let mut created = as_created(recorded, records);
                if created["script"].is_object() {
                    // Shown with its project, which all recordings call so.
                    let project = json!({"name": "P1"});
                    let project = self.server.client.call_value("projects.create", &project).await.unwrap();
                    created["project"] = project["id"].clone();
                }
                let ours = self.server.task_from(&created).await;
                self.server.enqueue(&ours, &self.ids[text(&queue["id"])]).await;
                self.ids.insert(recorded.to_owned(), ours);
            }
        }
    }

    async fn send(&mut self, record: &Value, place: &str) -> bool {
        // Uploads go to the file server, and the recording has only their length.
        let (Some(endpoint), Some(path)) = (record["ep"].as_str(), record["path"].as_str()) else {
            return false;
        };
        let mut body = match &record["req"] {
            Value::Array(lines) => lines.iter().map(|line| format!("{line}\n")).collect(),
            Value::Null => String::new(),
            request => request.to_string(),
        };
        for (recorded, ours) in &self.ids {
            body = body.replace(recorded, ours);
        }
        let (status, _, envelope) = self.server.raw(path.trim_start_matches('/'), &body).await;
        if LACKING.contains(&endpoint) && (self.open_source || record["code"] == 400) {
            // In d3, where it matters, the recording server had none of them.
            assert_eq!(status, if self.open_source { 400 } else { 200 }, "{place}");
            return true;
        }
        assert_eq!(Value::from(status), record["code"], "{place} {endpoint} {body} → {envelope}");
        // Tokens differ, and the other answer is never read.
        if status == 200 && !matches!(endpoint, "auth.login" | "workers.set_runtime_properties") {
            self.compare(&record["res"], &envelope["data"], &format!("{place} {endpoint}"));
        }
        true
    }

    /// All that was answered then is answered now.
    fn compare(&mut self, then: &Value, now: &Value, place: &str) {
        match (then, now) {
            (Value::Object(then), Value::Object(now)) => {
                for (key, value) in then {
                    // The recording server echoed whole requests there, and once had a list where an object must be.
                    if key == "method"
                        || key == "errors_info"
                        || (key == "fields" && place.contains("tasks.edit"))
                    {
                        continue;
                    }
                    let found = now.get(key).unwrap_or_else(|| panic!("{place}: no {key} in {now:?}"));
                    self.compare(value, found, &format!("{place}.{key}"));
                }
            }
            (Value::Array(then), Value::Array(now)) => {
                assert_eq!(then.len(), now.len(), "{place}: {then:?} {now:?}");
                for (then, at) in then.iter().zip(now) {
                    // Queues and workers come in an order of the server's own.
                    let id = then["id"].as_str();
                    let id = id.map(|id| self.ids.get(id).map_or(id, String::as_str));
                    let same = now.iter().find(|now| id.is_some() && now["id"].as_str() == id);
                    self.compare(then, same.unwrap_or(at), place);
                }
            }
            (Value::String(then), Value::String(now)) => {
                if is_id(then) && is_id(now) {
                    self.ids.insert(then.clone(), now.clone());
                } else if place.contains(".company.") || place.contains(".user.") {
                    // The origin of the server.
                } else if place.ends_with(".name") || place.ends_with(".status") && !place.contains("dequeue")
                {
                    // (The recording server ignored the new status that a dequeue asks for.)
                    assert_eq!(then, now, "{place}");
                }
            }
            (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) | (Value::Null, _) => {}
            _ => panic!("{place}: {then} was answered then, {now} now"),
        }
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A recorded task as far as its flow shows how it was made.
fn as_created(task: &str, records: &[Value]) -> Value {
    let seen = records.iter().map(|record| &record["res"]["task"]).find(|seen| text(&seen["id"]) == task);
    let workers = records.iter().flat_map(|record| record["res"]["workers"].as_array()).flatten();
    let named = workers.map(|worker| &worker["task"]).find(|seen| text(&seen["id"]) == task);
    let name = seen.or(named).map_or("task", |seen| text(&seen["name"]));
    let mut created = json!({"name": name, "type": "training"});
    for part in ["script", "container", "system_tags"] {
        if let Some(seen) = seen {
            created[part] = seen[part].clone();
        }
    }
    created
}

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
