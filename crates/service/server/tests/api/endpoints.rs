//! Every endpoint that ClearML's clients use, with the minimum that they accept as an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::TestServer;

/// Endpoint, request, and what must be in the answer: a path and an example of the right type. `$name` means an id
/// that an earlier answer gave; the name before `=` keeps the id of this answer.
const WALK: &str = r#"
              auth.login {}                                                                 → {"token": ""}
              users.get_vaults {}                                                           → {"vaults": []}
project =     projects.create {"name": "P1", "description": ""}                             → {"id": ""}
              projects.get_all {"name": "^P1$", "only_fields": ["id"], "search_hidden": true} → {"projects": [{"id": ""}]}
              projects.get_by_id {"project": "$project"}                                    → {"project": {"id": "", "name": "", "tags": [], "system_tags": []}}
queue =       queues.create {"name": "default", "system_tags": ["default"]}                 → {"id": ""}
              queues.get_all {"id": ["$queue"], "only_fields": ["id", "tags"]}              → {"queues": [{"id": "", "tags": []}]}
              queues.get_by_id {"queue": "$queue"}                                          → {"queue": {"id": "", "name": "", "entries": [], "tags": [], "system_tags": [], "metadata": {}}}
              queues.get_default {}                                                         → {"id": "", "name": ""}
task =        tasks.create {"name": "a", "type": "training", "project": "$project", "system_tags": ["x"]} → {"id": ""}
other =       tasks.clone {"task": "$task", "new_task_name": "b"}                           → {"id": ""}
              tasks.get_by_id {"task": "$task"}                                             → {"task": {"id": "", "name": "", "type": "", "status": "", "project": "", "status_message": "", "status_reason": "", "tags": [], "system_tags": [], "script": {}, "execution": {}, "container": {}, "hyperparams": {}, "configuration": {}, "runtime": {}, "models": {"input": [], "output": []}, "output": {"destination": ""}, "last_iteration": 0, "last_metrics": {}}}
              tasks.edit {"task": "$task", "force": true, "runtime": {"_abort_callback_timeout": 30.0, "_abort_poll_freq": 5.0, "_abort_callback_completed": ""}} → {"updated": 1, "fields": {}}
              tasks.get_all {"id": ["$task"], "only_fields": ["status", "status_message", "runtime._abort_callback_timeout", "runtime._abort_poll_freq", "runtime._abort_callback_completed"]} → {"tasks": [{"id": "", "status": "", "status_message": "", "runtime": {"_abort_callback_timeout": 0.0, "_abort_poll_freq": 0.0, "_abort_callback_completed": ""}}]}
              tasks.set_requirements {"task": "$task", "requirements": {"pip": "", "conda": ""}} → {"updated": 1, "fields": {}}
              tasks.add_or_update_artifacts {"task": "$task", "force": true, "artifacts": [{"key": "d", "type": "dict", "uri": "http://x/d"}]} → {"updated": 1}
              tasks.update {"task": "$task", "name": "c", "comment": "x"}                   → {"updated": 1, "fields": {}}
              tasks.edit_hyper_params {"task": "$task", "replace_hyperparams": "none", "hyperparams": [{"section": "General", "name": "lr", "value": "1", "type": "float", "description": ""}]} → {"updated": 1}
              tasks.get_hyper_params {"tasks": ["$task"]}                                   → {"params": [{"task": "", "hyperparams": [{"section": "", "name": "", "value": ""}]}]}
              tasks.get_configurations {"tasks": ["$task"]}                                 → {"configurations": [{"task": "", "configuration": []}]}
              tasks.enqueue {"task": "$other", "queue": "$queue", "verify_watched_queue": false} → {"queued": 1, "updated": 1, "fields": {"status": ""}}
              tasks.enqueue {"task": "$task", "queue_name": "default"}                      → {"queued": 1, "updated": 1, "fields": {"status": ""}}
              queues.move_task_to_front {"queue": "$queue", "task": "$task"}                → {"position": 0}
              queues.remove_task {"queue": "$queue", "task": "$other"}                      → {"removed": 1}
              queues.add_task {"queue": "$queue", "task": "$other"}                         → {"added": 1}
              queues.get_queue_metrics {"from_date": 0, "to_date": 9e9, "interval": 60, "refresh": true} → {"queues": [{"queue": "", "dates": [0], "avg_waiting_times": [0.0], "queue_lengths": [0]}]}
              queues.get_next_task {"queue": "$queue", "get_task_info": true}               → {"entry": {"task": "", "added": ""}, "task_info": {"company": "", "user": ""}}
              workers.register {"worker": "node1:gpu0,1", "queues": ["$queue"]}             → {}
              workers.set_runtime_properties {"worker": "node1:gpu0,1", "runtime_properties": [{"key": "available_gpus", "value": "0_"}]} → {}
              workers.get_runtime_properties {"worker": "node1:gpu0,1"}                     → {"runtime_properties": [{"key": "", "value": ""}]}
              tasks.started {"task": "$task", "force": true, "status_message": "pulled by agent"} → {"updated": 1, "started": 1, "fields": {"status": ""}}
              workers.status_report {"worker": "node1:gpu0,1", "task": "$task", "timestamp": 1795218361680, "machine_stats": {"cpu_usage": [83.3, 10.1], "memory_used": 1265.2}} → {}
              workers.get_all {"last_seen": 600, "worker_pattern": "node1:gpu*"}            → {"workers": [{"id": "", "task": {"id": "", "name": ""}, "queues": [{"id": ""}]}]}
              workers.get_count {"last_seen": 0}                                            → {"count": 1}
              workers.get_metric_keys {}                                                    → {"categories": [{"name": "", "metric_keys": [""]}]}
              workers.get_stats {"from_date": 0, "to_date": 9e9, "interval": 60, "items": [{"key": "cpu_usage", "aggregation": "max"}]} → {"workers": [{"worker": "", "metrics": [{"metric": "", "stats": [{"aggregation": "", "dates": [0], "values": [0.0]}]}]}]}
              workers.get_activity_report {"from_date": 0, "to_date": 9e9, "interval": 60}  → {"total": {"dates": [0], "counts": [0]}, "active": {"dates": [0], "counts": [0]}}
              workers.cluster_report {"worker": "node1:dgpu0-3", "partial": true, "key": "onprem", "timestamp": 1, "timeout": 120, "resource_groups": ["a"], "properties": {"max_gpus": 4}} → {}
              workers.cluster_unregister {"key": "onprem"}                                  → {}
              tasks.ping {"task": "$task"}                                                  → {}
              events.add_batch {"type": "training_stats_scalar", "task": "$task", "iter": 0, "metric": "loss", "variant": "train", "value": 1.0, "method": "get"} → {"added": 1, "errors": 0, "errors_info": {}}
              tasks.stop {"task": "$task"}                                                  → {"updated": 1, "fields": {"status_message": ""}}
              tasks.stopped {"task": "$task", "force": false, "status_reason": "x"}         → {"updated": 1, "fields": {"status": ""}}
              tasks.dequeue {"task": "$other", "new_status": "in_progress"}                 → {"dequeued": 1, "updated": 1, "fields": {"status": ""}}
              tasks.completed {"task": "$other", "force": false, "publish": false}          → {"updated": 1, "fields": {"status": ""}}
              tasks.failed {"task": "$task", "force": true}                                 → {"updated": 1, "fields": {"status": ""}}
              tasks.reset {"task": "$task", "force": false, "clear_all": false}             → {"updated": 1, "fields": {"status": ""}, "dequeued": {}, "events": {}, "deleted_models": 0}
              tasks.delete {"task": "$task", "force": false, "move_to_trash": false}        → {"deleted": true, "updated_children": 0, "updated_models": 0, "events": {}}
              workers.unregister {"worker": "node1:gpu0,1", "queues": []}                   → {}
"#;

struct Step {
    keep: Option<&'static str>,
    endpoint: &'static str,
    request: &'static str,
    answer: Value,
}

fn steps() -> Vec<Step> {
    let step = |line: &'static str| {
        let (call, answer) = line.split_once('→').unwrap();
        let (head, request) = call.split_at(call.find('{').unwrap());
        let (keep, endpoint) = match head.split_once('=') {
            Some((keep, endpoint)) => (Some(keep.trim()), endpoint),
            None => (None, head),
        };
        Step {
            keep,
            endpoint: endpoint.trim(),
            request: request.trim(),
            answer: serde_json::from_str(answer).unwrap(),
        }
    };
    WALK.trim_matches('\n').lines().map(step).collect()
}

/// Is everything that is in `least` in `given`, with the same types?
fn has(given: &Value, least: &Value, place: &str) {
    match (given, least) {
        (Value::Object(given), Value::Object(least)) => {
            for (name, least) in least {
                let found = given.get(name).unwrap_or_else(|| panic!("{place}: no {name} in {given:?}"));
                has(found, least, &format!("{place}.{name}"));
            }
        }
        (Value::Array(given), Value::Array(least)) => {
            if let Some(least) = least.first() {
                assert!(!given.is_empty(), "{place}: empty");
                given.iter().for_each(|item| has(item, least, place));
            }
        }
        (Value::String(_), Value::String(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (Value::Number(given), Value::Number(least)) => {
            assert!(least.is_f64() || given.is_i64() || given.is_u64(), "{place}: {given}");
        }
        _ => panic!("{place}: {given}, which is not like {least}"),
    }
}

#[tokio::test]
async fn each_endpoint_answers_what_clients_need() {
    let server = TestServer::start().await;
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    for Step { keep, endpoint, request, answer } in steps() {
        let mut body = request.to_owned();
        ids.iter().for_each(|(name, id)| body = body.replace(&format!("${name}"), id));
        let (status, _, envelope) = server.raw(&format!("v2.23/{endpoint}"), &body).await;
        assert_eq!(status, 200, "{endpoint} {body}: {}", envelope["meta"]);
        has(&envelope["data"], &answer, endpoint);
        if let Some(name) = keep {
            ids.insert(name, envelope["data"]["id"].as_str().unwrap().to_owned());
        }
    }
}

/// The walk has every endpoint that the collected facts about ClearML give an example of. They are not part of this
/// repository; without them the test says so and ends.
#[test]
fn the_walk_leaves_none_out() {
    let facts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/facts/clearml.md");
    let Ok(text) = std::fs::read_to_string(&facts) else {
        eprintln!("skipped: no facts at {}", facts.display());
        return;
    };
    let walked: BTreeSet<&str> = steps().iter().map(|step| step.endpoint).collect();
    // Headings like **queues.add_task / remove_task (not recorded)**.
    let headings = text.lines().filter_map(|line| line.strip_prefix("**")?.split_once("**"));
    let mut known = 0;
    for (heading, _) in headings {
        let names = heading.split('(').next().unwrap_or_default();
        let Some((service, _)) = names.split_once('.') else { continue };
        for name in names.split(" / ").map(str::trim) {
            let name = if name.contains('.') { name.to_owned() } else { format!("{service}.{name}") };
            assert!(walked.contains(name.as_str()), "{name}");
            known += 1;
        }
    }
    assert!(known > 35, "{known} endpoints in the facts");
}

#[tokio::test]
async fn an_open_source_server_lacks_what_it_lacks() {
    let server = TestServer::start_open_source().await;
    for endpoint in [
        "workers.get_runtime_properties",
        "workers.set_runtime_properties",
        "users.get_vaults",
        "workers.cluster_report",
        "cantle.get_nodes",
    ] {
        let (status, subcode, envelope) = server.raw(endpoint, r#"{"worker": "w", "key": "k"}"#).await;
        assert_eq!((status, subcode), (400, 0), "{endpoint}");
        assert_eq!(envelope["meta"]["result_msg"], format!("Unsupported endpoint: {endpoint}"));
    }
    let queue = server.queue("q").await;
    let (first, second) = (server.task("1").await, server.task("2").await);
    server.enqueue(&first, &queue).await;
    server.enqueue(&second, &queue).await;
    let body = json!({"queue": queue, "task": second}).to_string();
    let (_, _, envelope) = server.raw("queues.get_next_task", &body).await;
    assert_eq!(envelope["data"]["entry"]["task"], json!(first), "it does not look at cantle's own fields");
}
