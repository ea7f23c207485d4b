//! Calls every endpoint over HTTP as each kind of caller, about objects that belong to the caller and objects that do not.
//!
//! The test knows nothing of the table of rights. It has three laws: what must not change does not change, what must not be read
//! is in no answer, and what may not be seen is answered as if it did not exist.

mod clock;

use std::collections::BTreeMap;

use cantle_clearml::Credentials;
use cantle_store::{Store, TaskFilter};
use serde_json::{Value, json};

use crate::common::TestServer;

/// In the name or the content of everything that an outsider must not see.
const HIDDEN: &str = "hiddenword";
/// In the output of a task, which a member of the same project must not read.
const OUTPUT: &str = "outputword";
/// An id of nothing.
const NOTHING: &str = "00000000000000000000000000000bad";

/// The answer to a call.
struct Answer {
    code: u64,
    text: String,
}

struct World {
    server: TestServer,
    http: reqwest::Client,
    store: Store,
    keys: BTreeMap<&'static str, Credentials>,
    /// A project, anna's task in it, her model, and the queue in which the task waits.
    project: String,
    task: String,
    model: String,
    queue: String,
}

impl World {
    async fn call(&self, who: &str, endpoint: &str, body: &Value) -> Answer {
        let Credentials { access_key, secret_key } = &self.keys[who];
        let url = format!("{}/{endpoint}", self.server.client.url());
        let request = self.http.post(url).basic_auth(access_key, Some(secret_key)).body(body.to_string());
        let answer = request.send().await.unwrap();
        Answer { code: answer.status().as_u16().into(), text: answer.text().await.unwrap() }
    }

    async fn ok(&self, who: &str, endpoint: &str, body: Value) -> Value {
        let answer = self.call(who, endpoint, &body).await;
        assert_eq!(answer.code, 200, "{who} {endpoint}: {}", answer.text);
        serde_json::from_str::<Value>(&answer.text).unwrap()["data"].take()
    }

    async fn add_user(&mut self, name: &'static str, fields: Value) {
        let mut body = json!({ "name": name });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let made = self.ok("admin", "cantle.add_user", body).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        let pair = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
        self.keys.insert(name, pair);
    }

    /// Everything about anna's things that a call might change.
    async fn state(&self) -> String {
        let ids = vec![self.task.clone()];
        let tasks =
            self.store.tasks(&TaskFilter { ids: ids.clone(), ..TaskFilter::default() }).await.unwrap();
        let models = self.store.models(std::slice::from_ref(&self.model), &[]).await.unwrap();
        let project = self.store.project(&self.project).await.map(|row| format!("{row:?}"));
        let mut queue = self.store.queue(&self.queue).await.unwrap();
        queue.entries.retain(|(task, _)| *task == self.task);
        let logs = self.store.count_logs(&self.task).await.unwrap();
        let scalars = self.store.count_scalars(&self.task).await.unwrap();
        let people = self.store.people().await.unwrap();
        let keys: Vec<_> = people.keys.iter().map(|key| (&key.access_key, key.revoked_us)).collect();
        let admins: Vec<_> = people.grants.iter().filter(|grant| grant.role == "admin").collect();
        let anna = &self.keys["anna"].access_key;
        let annas = keys.iter().find(|(key, _)| *key == anna);
        format!("{tasks:?} {models:?} {project:?} {queue:?} {logs} {scalars} {annas:?} {admins:?}")
    }

    /// A request that names one task, model and project in all the ways in which endpoints name them.
    fn body(&self, endpoint: &str, task: &str, model: &str, project: &str) -> Value {
        let id = if endpoint.starts_with("models.") { model } else { task };
        let param = json!([{"section": "General", "name": "a", "value": "b"}]);
        let params = if endpoint == "tasks.edit_hyper_params" { param } else { json!({}) };
        let event = json!([{"kind": "note", "task": task, "message": "m"}]);
        let by_name = matches!(endpoint, "cantle.set_quota" | "cantle.set_budget");
        let project_named = if by_name && project == self.project { "hiddenword-p" } else { project };
        json!({
            "task": if endpoint == "cantle.submit_task" { json!({"name": "n", "type": "training", "project": project}) } else { json!(task) },
            "tasks": [task], "ids": [id], "model": model, "project": project_named, "queue": self.queue,
            "force": true, "name": "n", "type": "training", "node": "n1", "worker": "n1:gpu0", "lease": "l",
            "slices": [], "reason": "r", "user": "anna", "who": "ben", "role": "admin", "access_key": self.keys["anna"].access_key,
            "section": "General", "metric": OUTPUT, "variant": "v", "from_date": 1, "to_date": 2, "interval": 1,
            "items": [], "metadata": [{"key": "k", "value": "v", "type": "t"}], "keys": ["k"], "hyperparams": params,
            "configuration": if endpoint == "tasks.edit" { json!({}) } else { json!([]) },
            "artifacts": [{"key": "a", "type": "t", "uri": "u"}], "requirements": {}, "events": event,
            "models": if endpoint == "tasks.delete_models" { json!([{"name": "m", "type": "output"}]) } else { json!({}) },
            "victims": [{"task": task, "lease": "l", "for_task": task, "cause": "reclaim"}], "evictions": 0,
            "new_task_name": "copy", "destination_project": project, "new_location": "n", "key": "iter", "id": "0000000000000000000000000000c0de",
            "token": "t", "scroll_id": "", "add_tags": ["t"], "add_or_update": {"a": "b"}, "comment": "c",
            "msg": "m", "uri": "u", "queues": [], "interval_ms": 1000, "count": 1, "metrics": [{"task": task, "metric": OUTPUT}],
        })
    }
}

async fn world() -> World {
    let server = TestServer::start().await;
    let store = Store::open(&server.dir.path().join("server/cantle.db")).await.unwrap();
    let admin = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
    let keys = BTreeMap::from([("admin", admin)]);
    let none = String::new;
    let (project, task, model, queue) = (none(), none(), none(), none());
    let mut world = World { server, http: reqwest::Client::new(), store, keys, project, task, model, queue };
    let made = world.ok("admin", "projects.create", json!({"name": "hiddenword-p", "description": ""})).await;
    world.project = made["id"].as_str().unwrap().to_owned();
    world.ok("admin", "projects.create", json!({"name": "elsewhere", "description": ""})).await;
    for (name, role, project) in [
        ("anna", "member", "hiddenword-p"),
        ("ben", "member", "hiddenword-p"),
        ("viewer2", "viewer", "hiddenword-p"),
        ("manager", "manager", "hiddenword-p"),
        ("outsider", "member", "elsewhere"),
        ("boss", "manager", "elsewhere"),
    ] {
        world.add_user(name, json!({"role": role, "project": project})).await;
    }
    world.add_user("agent1", json!({"role": "agent", "node": "n1"})).await;
    let queue = world.ok("admin", "queues.create", json!({"name": "q"})).await;
    world.queue = queue["id"].as_str().unwrap().to_owned();
    let fields = json!({"name": "hiddenword-task", "type": "training", "project": world.project, "tags": ["hiddenword-tag"],
        "hyperparams": {"General": {"hiddenword-param": {"section": "General", "name": "hiddenword-param", "value": "hiddenword-value"}}}});
    let task = world.ok("anna", "tasks.create", fields).await;
    world.task = task["id"].as_str().unwrap().to_owned();
    let model = json!({"name": "hiddenword-model", "uri": "u", "project": world.project, "task": world.task, "framework": "hiddenword-f",
        "metadata": {"hiddenword-k": {"key": "hiddenword-k", "value": "hiddenword-v"}}});
    let model = world.ok("anna", "models.create", model).await;
    world.model = model["id"].as_str().unwrap().to_owned();
    let log = json!({"type": "log", "task": world.task, "msg": OUTPUT, "worker": "w", "level": "INFO"});
    world.ok("anna", "events.add", log).await;
    let scalar = json!({"type": "training_stats_scalar", "task": world.task, "metric": OUTPUT, "variant": OUTPUT, "iter": 1, "value": 1.0});
    world.ok("anna", "events.add", scalar).await;
    // Another agent has it, so that it is neither waiting nor agent1's.
    world.ok("admin", "tasks.enqueue", json!({"task": world.task, "queue": world.queue})).await;
    world.ok("admin", "queues.get_next_task", json!({"queue": world.queue})).await;
    let claim = json!({"task": world.task, "node": "n2", "lease": "l2", "slices": []});
    world.ok("admin", "cantle.report_task", claim).await;
    world.ok("admin", "tasks.started", json!({"task": world.task})).await;
    world
}

async fn endpoints(world: &World) -> Vec<String> {
    let listed = world.ok("admin", "server.endpoints", json!({})).await;
    serde_json::from_value(listed["endpoints"].clone()).unwrap()
}

/// Requests for lists, by all that a guess could be made with.
fn guesses(world: &World) -> Vec<Value> {
    vec![
        json!({}),
        json!({"id": [world.task]}),
        json!({"id": [world.model]}),
        json!({"id": [world.project]}),
        json!({"name": HIDDEN}),
        json!({"name": "^hiddenword-task$"}),
        json!({"project": [world.project]}),
        json!({"project": "hiddenword-p"}),
        json!({"tags": ["hiddenword-tag"]}),
        json!({"order_by": [format!("-last_metrics.{OUTPUT}.{OUTPUT}.value")]}),
        json!({"only_fields": ["name"], "page": 0, "page_size": 500}),
        json!({"task_name": HIDDEN}),
        json!({"task": world.task}),
        json!({"user": ["anna"]}),
        json!({"section": "General", "name": "hiddenword-param"}),
        json!({"key": "hiddenword-k"}),
        json!({"queue": world.queue}),
        json!({"tasks": {}, "models": {}, "projects": {}}),
    ]
}

/// An answer without the values that the request itself contained.
fn without_echo(text: &str, body: &Value) -> String {
    let mut text = text.to_owned();
    let mut words = Vec::new();
    collect(body, &mut words);
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    for word in words.iter().filter(|word| word.contains(HIDDEN) || word.contains(OUTPUT) || word.len() == 32)
    {
        text = text.replace(word.as_str(), "…");
    }
    text
}

fn collect(value: &Value, words: &mut Vec<String>) {
    match value {
        Value::String(word) => words.push(word.clone()),
        Value::Array(list) => list.iter().for_each(|item| collect(item, words)),
        Value::Object(fields) => fields.values().for_each(|item| collect(item, words)),
        _ => {}
    }
}

/// The text of a refusal, without the number of the call.
fn refusal(answer: &Answer) -> Value {
    let answer: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    json!([
        answer["meta"]["result_code"],
        answer["meta"]["result_subcode"],
        answer["meta"]["result_msg"],
        answer["data"]
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn every_endpoint_as_everybody() {
    let world = world().await;
    let endpoints = endpoints(&world).await;
    let mut calls = 0;
    let before = world.state().await;
    for endpoint in &endpoints {
        let own = world.body(endpoint, &world.task, &world.model, &world.project);
        let none = world.body(endpoint, NOTHING, NOTHING, NOTHING);
        for who in ["outsider", "boss", "ben", "viewer2", "agent1"] {
            let answer = world.call(who, endpoint, &own).await;
            calls += 1;
            assert_eq!(
                world.state().await,
                before,
                "{who} changed something with {endpoint}: {}",
                answer.text
            );
            assert!(answer.code < 500, "{who} {endpoint}: {}", answer.text);
            let text = without_echo(&answer.text, &own);
            if ["outsider", "boss", "agent1"].contains(&who) {
                assert!(!text.contains(HIDDEN), "{who} {endpoint}: {text}");
                let missing = world.call(who, endpoint, &none).await;
                calls += 1;
                let (theirs, nothing) = (refusal(&answer).to_string(), refusal(&missing).to_string());
                let (theirs, nothing) = (without_echo(&theirs, &own), without_echo(&nothing, &none));
                let is_about_itself = answer.code == 200 && missing.code == 200;
                assert!(is_about_itself || theirs == nothing, "{who} {endpoint}: {theirs} / {nothing}");
            }
            if who != "viewer2" {
                assert!(!text.contains(OUTPUT), "{who} {endpoint}: {text}");
            }
        }
    }
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.contains(".get_") || endpoint.contains("_ex"))
    {
        for body in guesses(&world) {
            for who in ["outsider", "boss", "agent1"] {
                if endpoint == "queues.get_next_task" {
                    continue;
                }
                let answer = world.call(who, endpoint, &body).await;
                calls += 1;
                if answer.code != 200 {
                    // It quotes the request.
                    continue;
                }
                let text = without_echo(&answer.text, &body);
                assert!(!text.contains(HIDDEN) && !text.contains(OUTPUT), "{who} {endpoint} {body}: {text}");
                assert!(!text.contains(&world.task), "{who} {endpoint} {body}: {text}");
            }
            let answer = world.call("ben", endpoint, &body).await;
            calls += 1;
            if answer.code != 200 {
                continue;
            }
            let text = without_echo(&answer.text, &body);
            let is_names = endpoint == "projects.get_unique_metric_variants";
            assert!(is_names || !text.contains(OUTPUT), "ben {endpoint} {body}: {text}");
        }
    }
    assert_eq!(world.state().await, before);
    println!("{} endpoints, {calls} calls", endpoints.len());
    assert!(calls > 4000, "{calls}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed() {
    let world = world().await;
    let endpoints = endpoints(&world).await;
    let (mut answered, mut refused) = (0, Vec::new());
    for endpoint in &endpoints {
        // These would end the world of the others.
        if ["delete", "merge", "move", "remove_user", "revoke", "reset", "clear", "unregister"]
            .iter()
            .any(|word| endpoint.contains(word))
        {
            continue;
        }
        let body = world.body(endpoint, &world.task, &world.model, &world.project);
        let answer = world.call("admin", endpoint, &body).await;
        assert_ne!(answer.code, 403, "admin {endpoint}: {}", answer.text);
        answered += u32::from(answer.code == 200);
        if world.call("anna", endpoint, &body).await.code == 403 {
            refused.push(endpoint.as_str());
        }
    }
    // A request that no handler can read would test nothing.
    assert!(answered > 90, "{answered} of {}", endpoints.len());
    refused.retain(|endpoint| !endpoint.starts_with("cantle.") && !endpoint.starts_with("workers."));
    let expected = [
        "auth.create_user",
        "get_usages",
        "projects.create",
        "projects.update",
        "queues.add_or_update_metadata",
        "queues.create",
        "queues.get_next_task",
        "queues.update",
    ];
    assert_eq!(refused, expected, "what anna may not do, in her own project and about her own task");
    for (endpoint, body) in [
        ("events.get_task_log", json!({"task": world.task})),
        ("tasks.stop", json!({"task": world.task})),
        ("tasks.delete", json!({"task": world.task, "force": true})),
    ] {
        world.ok("anna", endpoint, body).await;
    }
}

#[tokio::test]
async fn nobody_goes_before_others_without_the_right() {
    let world = world().await;
    let param = |value: &str| json!({"cantle": {"priority": {"section": "cantle", "name": "priority", "value": value}}});
    let new = |value: &str| json!({"name": "t", "type": "training", "project": world.project, "hyperparams": param(value)});
    assert_eq!(world.call("anna", "tasks.create", &new("5")).await.code, 403);
    let task = world.ok("anna", "tasks.create", new("0")).await["id"].clone();
    let edit = json!({"task": task, "hyperparams": param("5")});
    assert_eq!(world.call("anna", "tasks.edit", &edit).await.code, 403);
    world.ok("anna", "tasks.enqueue", json!({"task": task, "queue": world.queue})).await;
    for endpoint in ["queues.move_task_to_front", "queues.move_task_forward"] {
        let body = json!({"task": task, "queue": world.queue});
        assert_eq!(world.call("anna", endpoint, &body).await.code, 403, "{endpoint}");
        world.ok("manager", endpoint, body).await;
    }
    world.ok("anna", "queues.move_task_to_back", json!({"task": task, "queue": world.queue})).await;
    let other = world.ok("manager", "tasks.create", new("5")).await["id"].clone();
    world.ok("manager", "tasks.enqueue", json!({"task": other, "queue": world.queue})).await;
}

#[tokio::test]
async fn files_belong_to_their_task() {
    let world = world().await;
    let url = |path: &str| format!("{}/files/{path}", world.server.client.url());
    let path = format!("hiddenword-p/train.{}/artifacts/a/a.bin", world.task);
    for (who, path, expected) in [
        ("anna", path.as_str(), 200),
        ("ben", &path, 403),
        ("viewer2", &path, 403),
        ("outsider", &path, 404),
        ("manager", &path, 200),
        ("anna", "shared/x.bin", 403),
        ("admin", "shared/x.bin", 200),
    ] {
        let Credentials { access_key, secret_key } = &world.keys[who];
        let request = world
            .http
            .post(url(""))
            .basic_auth(access_key, Some(secret_key))
            .header("Content-Type", "multipart/form-data; boundary=x");
        let part = format!(
            "--x\r\nContent-Disposition: form-data; name=\"{path}\"; filename=\"f\"\r\n\r\ncontent\r\n--x--\r\n"
        );
        let request = request.body(part);
        assert_eq!(request.send().await.unwrap().status().as_u16(), expected, "{who} writes {path}");
    }
    for (who, expected) in
        [("anna", 200), ("ben", 403), ("viewer2", 200), ("outsider", 404), ("agent1", 404), ("manager", 200)]
    {
        let Credentials { access_key, secret_key } = &world.keys[who];
        let request = world.http.get(url(&path)).basic_auth(access_key, Some(secret_key));
        assert_eq!(request.send().await.unwrap().status().as_u16(), expected, "{who} reads");
    }
}

#[tokio::test]
async fn keys_end_with_their_revocation_and_everything_is_in_the_audit() {
    let mut world = world().await;
    let made =
        world.ok("anna", "auth.create_credentials", json!({"label": "laptop"})).await["credentials"].clone();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let pair = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
    world.keys.insert("laptop", pair.clone());
    assert_eq!(world.ok("laptop", "users.get_current_user", json!({})).await["user"]["name"], "anna");
    let token = world.ok("laptop", "auth.login", json!({})).await["token"].as_str().unwrap().to_owned();
    assert_ne!(
        world.call("ben", "auth.revoke_credentials", &json!({"access_key": pair.access_key})).await.code,
        200
    );
    world.ok("anna", "auth.revoke_credentials", json!({"access_key": pair.access_key})).await;
    let late = world.call("laptop", "tasks.get_all", &json!({})).await;
    assert_eq!(late.code, 401);
    assert!(late.text.contains("was revoked"), "{}", late.text);
    let url = format!("{}/tasks.get_all", world.server.client.url());
    let answer = world.http.post(url).bearer_auth(&token).body("{}").send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 401, "the token ends with its key");
    assert_eq!(world.call("ben", "tasks.stop", &json!({"task": world.task})).await.code, 403);
    world.ok("admin", "cantle.remove_user", json!({"user": "ben"})).await;
    assert_eq!(world.call("ben", "tasks.get_all", &json!({})).await.code, 401);
    let last = world.call("admin", "cantle.remove_user", &json!({"user": "admin"})).await;
    assert!(last.code == 400 && last.text.contains("last administrator"), "{}", last.text);
    let records = world.ok("admin", "cantle.get_audit", json!({"limit": 1000})).await["records"].clone();
    let records: Vec<_> = records
        .as_array()
        .unwrap()
        .iter()
        .map(|record| {
            let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
            (text("user"), text("action"), text("outcome") == "done")
        })
        .collect();
    for (user, action, done) in [
        ("anna", "auth.create_credentials", true),
        ("anna", "login", true),
        ("anna", "auth.revoke_credentials", true),
        ("ben", "tasks.stop", false),
        ("admin", "cantle.remove_user", true),
        ("admin", "cantle.add_user", true),
        ("", "tasks.get_all", false),
    ] {
        let record = (user.to_owned(), action.to_owned(), done);
        assert!(records.contains(&record), "{record:?} is not in {records:?}");
    }
    let all = world.ok("admin", "cantle.get_audit", json!({"limit": 1000})).await.to_string();
    assert!(!all.contains(&pair.secret_key), "secrets stay out of it");
}
