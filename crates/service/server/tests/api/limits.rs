//! Limits of users: refused at submit and at claim, left out of plans, and explained. The same calls of a user without limits are the
//! negative control.

use cantle_clearml::Credentials;
use serde_json::{Value, json};

use crate::common::TestServer;

struct World {
    server: TestServer,
    queue: String,
    project: String,
    anna: Credentials,
    ben: Credentials,
}

impl World {
    async fn call(&self, who: &Credentials, endpoint: &str, body: &Value) -> (u16, Value) {
        self.server.call_as(who, endpoint, body).await
    }

    async fn ok(&self, who: &Credentials, endpoint: &str, body: Value) -> Value {
        let (code, mut answer) = self.call(who, endpoint, &body).await;
        assert_eq!(code, 200, "{endpoint} {body}: {answer}");
        answer["data"].take()
    }

    async fn admin(&self, endpoint: &str, body: Value) -> Value {
        self.server.client.call_value(endpoint, &body).await.unwrap()
    }

    /// Code, subcode and text.
    async fn refused(&self, who: &Credentials, endpoint: &str, body: &Value) -> (u16, u64, String) {
        let (code, answer) = self.call(who, endpoint, body).await;
        assert_ne!(code, 200, "{endpoint} {body}");
        let meta = &answer["meta"];
        (
            code,
            meta["result_subcode"].as_u64().unwrap(),
            meta["result_msg"].as_str().unwrap_or_default().to_owned(),
        )
    }

    async fn draft(&self, who: &Credentials) -> String {
        let new = json!({"name": "t", "type": "training", "project": self.project});
        self.ok(who, "tasks.create", new).await["id"].as_str().unwrap().to_owned()
    }

    async fn queued(&self, who: &Credentials) -> String {
        let task = self.draft(who).await;
        self.ok(who, "tasks.enqueue", json!({"task": task, "queue": self.queue})).await;
        task
    }

    fn claim_of(task: &str, milli: u32) -> Value {
        let slice = json!({"gpu": "GPU-a", "milli": milli, "memory_limit_bytes": 1 << 30});
        json!({"task": task, "node": "n", "lease": format!("lease of {task}"), "slices": [slice]})
    }

    async fn claim(&self, task: &str, milli: u32) -> Result<Value, String> {
        self.admin("queues.get_next_task", json!({"queue": self.queue, "task": task})).await;
        let claim = Self::claim_of(task, milli);
        let done = self.server.client.call_value("cantle.report_task", &claim).await;
        done.map_err(|error| error.to_string())
    }

    async fn held_back(&self) -> Vec<String> {
        let fleet = self.admin("cantle.get_fleet", json!({"node": "n", "queues": [self.queue]})).await;
        serde_json::from_value(fleet.get("held_back").cloned().unwrap_or(json!([]))).unwrap()
    }

    async fn why(&self, task: &str) -> String {
        let told = self.admin("cantle.explain_task", json!({"task": task})).await;
        told["reason"].as_str().unwrap().to_owned()
    }
}

async fn world() -> World {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let made = server.client.call_value("projects.create", &json!({"name": "P", "description": ""})).await;
    let project = made.unwrap()["id"].as_str().unwrap().to_owned();
    let mut users = Vec::new();
    for (name, role) in [("anna", "manager"), ("ben", "member")] {
        let new = json!({"name": name, "role": role, "project": "P"});
        let made = server.client.call_value("cantle.add_user", &new).await.unwrap();
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        users.push(Credentials { access_key: text("access_key"), secret_key: text("secret_key") });
    }
    let [anna, ben] = users.try_into().unwrap();
    World { server, queue, project, anna, ben }
}

#[tokio::test]
async fn tasks_in_queues() {
    let world = world().await;
    let (anna, ben) = (&world.anna, &world.ben);
    world.admin("cantle.set_user", json!({"user": "anna", "limits": {"queued": 2}})).await;
    for _ in 0..2 {
        world.queued(anna).await;
    }
    let task = world.draft(anna).await;
    let enqueue = json!({"task": task, "queue": world.queue});
    for endpoint in ["tasks.enqueue", "queues.add_task"] {
        let (code, subcode, text) = world.refused(anna, endpoint, &enqueue).await;
        assert_eq!((code, subcode), (400, 9001), "{text}");
        assert!(text.contains("anna has 2 tasks in queues, and may have no more at once"), "{text}");
    }
    let submit = json!({"queue": world.queue, "id": "0".repeat(32), "task": {"name": "s", "type": "training", "project": world.project}});
    assert_eq!(world.refused(anna, "cantle.submit_task", &submit).await.1, 9001);
    // Neither a draft nor a place is left of it, and others continue.
    assert_eq!(world.refused(anna, "tasks.get_by_id", &json!({"task": "0".repeat(32)})).await.0, 400);
    for _ in 0..3 {
        world.queued(ben).await;
    }
    // One that runs is in no queue; and an agent may put it back above the limit.
    let runs =
        world.admin("queues.get_next_task", json!({"queue": world.queue})).await["entry"]["task"].clone();
    world.ok(anna, "tasks.enqueue", enqueue).await;
    world.admin("tasks.enqueue", json!({"task": runs, "queue": world.queue, "force": true})).await;
    let users = world.admin("cantle.get_users", json!({})).await;
    let limits = |name: &str| {
        let users = users["users"].as_array().unwrap();
        users.iter().find(|user| user["name"] == name).unwrap()["limits"].clone()
    };
    assert_eq!((limits("anna"), limits("ben")), (json!({"queued": 2}), Value::Null));
}

#[tokio::test]
async fn gpus_at_once() {
    let world = world().await;
    let [anna, ben] = [&world.anna, &world.ben];
    let [first, second, third] =
        [world.queued(anna).await, world.queued(anna).await, world.queued(anna).await];
    let others = world.queued(ben).await;
    world.admin("cantle.set_user", json!({"user": "anna", "limits": {"gpu_milli": 1500}})).await;
    world.claim(&first, 1000).await.unwrap();
    world.admin("tasks.started", json!({"task": first})).await;
    assert_eq!(world.held_back().await, [""; 0], "half a GPU is left");
    let told = world.claim(&second, 1000).await.unwrap_err();
    assert!(told.contains("anna holds 1 GPU and may hold 1.5 GPUs at once"), "{told}");
    assert!(told.contains("needs 1 GPU more"), "{told}");
    world.admin("queues.add_task", json!({"task": second, "queue": world.queue})).await;
    // Now it is known what it needs, and no agent tries again; the others continue.
    assert_eq!(world.held_back().await, [second.as_str()]);
    let why = world.why(&second).await;
    assert!(why.starts_with("anna holds 1 GPU and may hold 1.5 GPUs at once"), "{why}");
    assert!(!world.why(&others).await.contains("may hold"));
    world.claim(&third, 500).await.unwrap();
    world.claim(&others, 4000).await.unwrap();
    // The place is free again.
    let exit = json!({"task": first, "node": "n", "lease": format!("lease of {first}"), "slices": [], "exit_code": 0});
    world.admin("cantle.report_task", exit).await;
    world.admin("tasks.completed", json!({"task": first})).await;
    assert_eq!(world.held_back().await, [""; 0]);
    world.claim(&second, 1000).await.unwrap();
    world.admin("cantle.set_user", json!({"user": "anna", "limits": {"gpu_milli": 0}})).await;
    let fourth = world.queued(anna).await;
    assert_eq!(world.held_back().await, [fourth.as_str()], "none at all");
    world.admin("cantle.set_user", json!({"user": "anna", "limits": {}})).await;
    assert_eq!(world.held_back().await, [""; 0]);
    world.claim(&fourth, 1000).await.unwrap();
}

#[tokio::test]
async fn priorities() {
    let world = world().await;
    let anna = &world.anna;
    let param = |value: &str| json!({"cantle": {"priority": {"section": "cantle", "name": "priority", "value": value}}});
    let new = |value: &str| json!({"name": "t", "type": "training", "project": world.project, "hyperparams": param(value)});
    let urgent = world.ok(anna, "tasks.create", new("9")).await["id"].clone();
    world.admin("cantle.set_user", json!({"user": "anna", "limits": {"priority": 5}})).await;
    let (code, _, text) = world.refused(anna, "tasks.create", &new("6")).await;
    assert_eq!(code, 403);
    assert!(text.contains("anna may give a task a priority of at most 5"), "{text}");
    world.ok(anna, "tasks.create", new("5")).await;
    // One that was made before the limit does not enter a queue.
    assert_eq!(
        world.refused(anna, "tasks.enqueue", &json!({"task": urgent, "queue": world.queue})).await.0,
        403
    );
    let list = json!({"task": urgent, "hyperparams": [
        {"section": "cantle", "name": "priority", "value": "8"}, {"section": "cantle", "name": "priority", "value": "1"},
    ]});
    assert_eq!(world.refused(anna, "tasks.edit_hyper_params", &list).await.0, 403, "each of two counts");
    // A limit gives no user a right: ben is a member.
    world.admin("cantle.set_user", json!({"user": "ben", "limits": {"priority": 5}})).await;
    assert_eq!(world.refused(&world.ben, "tasks.create", &new("1")).await.0, 403);
    let (code, _, _) = world.refused(anna, "cantle.set_user", &json!({"user": "anna", "limits": {}})).await;
    assert_eq!(code, 403);
}
