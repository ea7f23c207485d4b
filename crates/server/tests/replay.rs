//! Recorded conversations of ClearML's real clients, sent again: our answers must have the same codes, the same shapes
//! and the same states. The recordings are not part of this repository; without them the test says so and ends.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says by panicking that something is wrong"
)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::TestServer;
use serde_json::Value;

/// Flows that contain their own set-up, each group against one server.
const GROUPS: [&[&str]; 4] = [
    &["a1_sdk_init"],
    &["c1_agent_queue_list", "a2_create_enqueue", "b1_agent_daemon_venv"],
    &["d3_oss_server_no_runtime_props"],
    &["d4_validation"],
];

fn recordings() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/facts/clearml-traces")
}

#[tokio::test]
async fn recorded_clients_get_the_answers_they_know() {
    if !recordings().is_dir() {
        eprintln!("skipped: no recordings at {}", recordings().display());
        return;
    }
    let mut calls = 0;
    for group in GROUPS {
        let server = TestServer::start().await;
        let mut replay = Replay { server, ids: BTreeMap::new() };
        for flow in group {
            let text = std::fs::read_to_string(recordings().join(format!("{flow}.jsonl"))).unwrap();
            for (number, line) in text.lines().enumerate() {
                let record: Value = serde_json::from_str(line).unwrap();
                calls += usize::from(replay.send(&record, &format!("{flow}:{}", number + 1)).await);
            }
        }
    }
    assert!(calls > 250, "{calls} calls");
}

struct Replay {
    server: TestServer,
    /// Recorded id → ours.
    ids: BTreeMap<String, String>,
}

impl Replay {
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
        if endpoint == "workers.set_runtime_properties" && record["code"] == 400 {
            // Recorded from a server without it; ours has it.
            assert_eq!(status, 200, "{place}");
            return true;
        }
        assert_eq!(Value::from(status), record["code"], "{place} {endpoint} {body} → {envelope}");
        // Tokens differ, and nobody reads the answer of the other one.
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
                for (then, now) in then.iter().zip(now) {
                    self.compare(then, now, place);
                }
            }
            (Value::String(then), Value::String(now)) => {
                if is_id(then) && is_id(now) {
                    self.ids.insert(then.clone(), now.clone());
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

fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
