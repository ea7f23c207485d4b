//! The token of a running task has the rights of its task, for as long as the task runs. The agent's own token is the
//! negative control: with it each of the attacks succeeds.

use cantle_clearml::Credentials;
use serde_json::{Value, json};

use crate::common::TestServer;

struct World {
    server: TestServer,
    http: reqwest::Client,
    admin: Credentials,
    anna: Credentials,
    agent: Credentials,
    queue: String,
    /// Anna's, in project P: one that runs on n1 under the lease l1, one that waits, and ben's that runs on n2.
    own: String,
    waits: String,
    other: String,
    token: String,
}

/// The credential of a call.
enum As<'a> {
    Key(&'a Credentials),
    Token(&'a str),
}

impl World {
    async fn call(&self, who: As<'_>, endpoint: &str, body: &Value) -> (u16, Value) {
        let request = self.http.post(format!("{}/{endpoint}", self.server.client.url()));
        let request = match who {
            As::Key(Credentials { access_key, secret_key }) => {
                request.basic_auth(access_key, Some(secret_key))
            }
            As::Token(token) => request.bearer_auth(token),
        };
        let answer = request.body(body.to_string()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn ok(&self, who: As<'_>, endpoint: &str, body: Value) -> Value {
        let (code, mut answer) = self.call(who, endpoint, &body).await;
        assert_eq!(code, 200, "{endpoint} {body}: {answer}");
        answer["data"].take()
    }

    async fn task(&self, endpoint: &str, body: Value) -> Value {
        self.ok(As::Token(&self.token), endpoint, body).await
    }

    async fn refused(&self, endpoint: &str, body: &Value) {
        let (code, answer) = self.call(As::Token(&self.token), endpoint, body).await;
        assert_eq!(code, 403, "{endpoint} {body}: {answer}");
    }

    async fn user(&self, fields: Value) -> Credentials {
        let made = self.ok(As::Key(&self.admin), "cantle.add_user", fields).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        Credentials { access_key: text("access_key"), secret_key: text("secret_key") }
    }

    async fn claim(&self, task: &str, node: &str, lease: &str) {
        let admin = || As::Key(&self.admin);
        self.ok(admin(), "queues.get_next_task", json!({"queue": self.queue, "task": task})).await;
        let claim = json!({"task": task, "node": node, "lease": lease, "slices": []});
        self.ok(admin(), "cantle.report_task", claim).await;
        self.ok(admin(), "tasks.started", json!({"task": task})).await;
    }

    /// The agent's token for a run.
    async fn token_of(&self, task: &str, lease: &str) -> (u16, String) {
        let body = json!({"task": task, "lease": lease});
        let (code, answer) = self.call(As::Key(&self.agent), "cantle.get_task_token", &body).await;
        (code, answer["data"]["token"].as_str().unwrap_or_default().to_owned())
    }
}

async fn world() -> World {
    let server = TestServer::start().await;
    let admin = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
    let none = || Credentials { access_key: String::new(), secret_key: String::new() };
    let (queue, own, waits, other, token) =
        (String::new(), String::new(), String::new(), String::new(), String::new());
    let http = reqwest::Client::new();
    let mut world =
        World { server, http, admin, anna: none(), agent: none(), queue, own, waits, other, token };
    let admin = || As::Key(&world.admin);
    let id = |made: Value| made["id"].as_str().unwrap().to_owned();
    let project = id(world.ok(admin(), "projects.create", json!({"name": "P", "description": ""})).await);
    let anna = world.user(json!({"name": "anna", "role": "manager", "project": "P"})).await;
    let ben = world.user(json!({"name": "ben", "role": "member", "project": "P"})).await;
    let agent = world.user(json!({"name": "n1", "role": "agent", "node": "n1"})).await;
    let queue = id(world.ok(admin(), "queues.create", json!({"name": "q"})).await);
    let mut tasks = Vec::new();
    for (who, name) in [(&anna, "own"), (&anna, "waits"), (&ben, "other")] {
        let new = json!({"name": name, "type": "training", "project": project});
        let task = id(world.ok(As::Key(who), "tasks.create", new).await);
        world.ok(As::Key(who), "tasks.enqueue", json!({"task": task, "queue": queue})).await;
        tasks.push(task);
    }
    let [own, waits, other] = tasks.try_into().unwrap();
    world = World { anna, agent, queue, own, waits, other, ..world };
    world.claim(&world.own, "n1", "l1").await;
    world.claim(&world.other, "n2", "l2").await;
    let (code, token) = world.token_of(&world.own, "l1").await;
    assert_eq!(code, 200);
    World { token, ..world }
}

#[tokio::test]
async fn a_task_is_no_agent() {
    let world = world().await;
    let World { own, waits, other, queue, agent, anna, .. } = &world;
    let attacks = [
        // Work of an agent: to claim tasks, to speak for a node, and to get tokens for other tasks.
        ("queues.get_next_task", json!({"queue": queue})),
        ("cantle.report_task", json!({"task": waits, "node": "n1", "lease": "mine", "slices": []})),
        ("cantle.report_task", json!({"task": own, "node": "n1", "lease": "mine", "slices": []})),
        ("cantle.get_task_token", json!({"task": own, "lease": "l1"})),
        ("cantle.get_task_token", json!({"task": other, "lease": "l2"})),
        (
            "cantle.report_node",
            json!({"node": "n1", "worker": "n1:gpu0", "queues": [], "gpus": [], "interval_ms": 1000}),
        ),
        ("cantle.renew_leases", json!({"node": "n1", "leases": [{"task": own, "lease": "l1"}]})),
        ("cantle.end_fenced", json!({"task": own, "lease": "l1"})),
        ("cantle.get_fleet", json!({"node": "n1"})),
        (
            "cantle.evict",
            json!({"node": "n1", "victims": [{"task": waits, "lease": "l", "for_task": own, "cause": "reclaim"}], "evictions": 0}),
        ),
        ("workers.register", json!({"worker": "n1:gpu0", "queues": [queue]})),
        ("workers.status_report", json!({"worker": "n1:gpu0", "task": waits, "queues": [], "timestamp": 1})),
        ("workers.unregister", json!({"worker": "n1:gpu0"})),
        // Its owner's keys, and rights that its owner has.
        ("auth.create_credentials", json!({"label": "stolen"})),
        ("auth.get_credentials", json!({})),
        ("auth.revoke_credentials", json!({"access_key": anna.access_key})),
        ("cantle.get_keys", json!({"user": "n1"})),
        ("cantle.get_keys", json!({})),
        ("cantle.get_sessions", json!({})),
        ("cantle.end_sessions", json!({"user": "anna"})),
        ("cantle.add_key", json!({})),
        ("cantle.revoke_key", json!({"access_key": agent.access_key})),
        ("cantle.get_users", json!({})),
        ("cantle.get_audit", json!({})),
        ("queues.move_task_to_front", json!({"task": waits, "queue": queue})),
        ("queues.create", json!({"name": "mine"})),
        ("projects.delete", json!({"project": "P"})),
        ("cantle.set_quota", json!({"project": "P/mine"})),
        // Tasks of its owner and of others.
        ("tasks.stop", json!({"task": waits})),
        ("tasks.stop", json!({"task": other})),
        ("tasks.dequeue", json!({"task": waits})),
        ("tasks.reset", json!({"task": waits, "force": true})),
        ("tasks.delete", json!({"task": waits, "force": true})),
        ("tasks.edit", json!({"task": waits, "force": true, "comment": "c"})),
        ("tasks.enqueue", json!({"task": waits, "queue": queue})),
        ("tasks.update_tags", json!({"ids": [own, waits], "add_tags": ["t"]})),
        (
            "tasks.add_or_update_artifacts",
            json!({"task": waits, "artifacts": [{"key": "a", "type": "t", "uri": "u"}]}),
        ),
        ("tasks.completed", json!({"task": other})),
        ("events.add", json!({"type": "log", "task": waits, "msg": "forged"})),
        ("events.add", json!({"type": "log", "task": other, "msg": "forged"})),
        ("models.create", json!({"name": "m", "uri": "u", "task": waits})),
    ];
    for (endpoint, body) in &attacks {
        world.refused(endpoint, body).await;
    }
    // Nothing has changed, and the agent's own token does what the task's must not: that one it used to have.
    let login = world.ok(As::Key(agent), "auth.login", json!({})).await;
    let agents = login["token"].as_str().unwrap();
    let taken = world.ok(As::Token(agents), "queues.get_next_task", json!({"queue": queue})).await;
    assert_eq!(taken["entry"]["task"], json!(waits));
    let claim = json!({"task": waits, "node": "n1", "lease": "mine", "slices": []});
    world.ok(As::Token(agents), "cantle.report_task", claim).await;
    world.ok(As::Token(agents), "tasks.stopped", json!({"task": waits, "force": true})).await;
    let audit = json!({"limit": 1000, "user": "anna"});
    let audit = world.ok(As::Key(&world.admin), "cantle.get_audit", audit).await;
    let label = format!("anna (task {own})");
    let refused = audit["records"].as_array().unwrap().iter();
    assert!(refused.filter(|record| record["user"] == label.as_str()).count() > 10, "{audit}");
}

#[tokio::test]
async fn a_task_does_its_own_work() {
    let world = world().await;
    let World { own, waits, queue, .. } = &world;
    world.task("tasks.get_by_id", json!({"task": own})).await;
    world.task("events.add", json!({"type": "log", "task": own, "msg": "hello"})).await;
    world.task("tasks.edit", json!({"task": own, "force": true, "comment": "c"})).await;
    world.task("tasks.ping", json!({"task": own})).await;
    let artifact = json!({"task": own, "artifacts": [{"key": "a", "type": "t", "uri": "u"}]});
    world.task("tasks.add_or_update_artifacts", artifact).await;
    let project = world.task("tasks.get_by_id", json!({"task": own})).await["task"]["project"].clone();
    let model = json!({"name": "m", "uri": "u", "project": project});
    let model = world.task("models.create", model).await["id"].clone();
    world.task("models.edit", json!({"model": model, "comment": "c"})).await;
    world.task("models.set_ready", json!({"model": model})).await;
    // The objects that its owner may read.
    world.task("tasks.get_by_id", json!({"task": waits})).await;
    world.task("events.get_task_log", json!({"task": waits})).await;
    let me = world.task("users.get_current_user", json!({})).await;
    assert_eq!(me["user"]["name"], "anna");
    // Steps of a pipeline, and trials of a search: made, run, stopped and deleted as their owner.
    let child = json!({"task": own, "new_task_name": "step"});
    let child = world.task("tasks.clone", child).await["id"].clone();
    world.task("tasks.edit", json!({"task": child, "force": true, "comment": "c"})).await;
    world.task("tasks.enqueue", json!({"task": child, "queue": queue})).await;
    let read = world.task("tasks.get_by_id", json!({"task": child})).await;
    let owner = world.task("tasks.get_by_id", json!({"task": own})).await["task"]["user"].clone();
    assert_eq!(read["task"]["user"], owner);
    world.task("tasks.stop", json!({"task": child})).await;
    world.task("tasks.delete", json!({"task": child, "force": true})).await;
    // A child that its owner made alike is not the task's.
    let made = json!({"name": "by hand", "type": "training", "parent": own, "project": project});
    let by_hand = world.ok(As::Key(&world.anna), "tasks.create", made).await["id"].clone();
    world.refused("tasks.delete", &json!({"task": by_hand, "force": true})).await;
    // The SDK renews its token before it ends; that one is the task's, too.
    let renewed = world.task("auth.login", json!({})).await["token"].as_str().unwrap().to_owned();
    world.ok(As::Token(&renewed), "tasks.ping", json!({"task": own})).await;
    let (code, answer) = world.call(As::Token(&renewed), "tasks.stop", &json!({"task": waits})).await;
    assert_eq!(code, 403, "{answer}");
    world.task("tasks.completed", json!({"task": own})).await;
}

#[tokio::test]
async fn the_token_ends_with_the_run() {
    let world = world().await;
    let World { own, queue, anna, .. } = &world;
    let ping = json!({"task": own});
    // Only the holder gets one.
    for (task, lease) in [(own, "l2"), (own, ""), (&world.waits, "l1")] {
        assert_ne!(world.token_of(task, lease).await.0, 200, "{task} {lease}");
    }
    assert_eq!(
        world.token_of(&world.other, "l2").await.0,
        400,
        "on another node it is as if it did not exist"
    );
    // Queued again: another run begins, and the old one has no say.
    world.ok(As::Key(anna), "tasks.enqueue", json!({"task": own, "queue": queue, "force": true})).await;
    let (code, answer) = world.call(As::Token(&world.token), "tasks.ping", &ping).await;
    assert_eq!(code, 401, "{answer}");
    assert!(answer["meta"]["result_msg"].as_str().unwrap().contains("has ended with its run"), "{answer}");
    world.claim(own, "n1", "l3").await;
    assert_eq!(world.call(As::Token(&world.token), "tasks.ping", &ping).await.0, 401);
    let (_, second) = world.token_of(own, "l3").await;
    world.ok(As::Token(&second), "tasks.ping", ping.clone()).await;
    // It ended: what was sent last may still arrive.
    let exit = json!({"task": own, "node": "n1", "lease": "l3", "slices": [], "exit_code": 0});
    world.ok(As::Key(&world.agent), "cantle.report_task", exit).await;
    world.ok(As::Key(&world.agent), "tasks.completed", json!({"task": own})).await;
    world.ok(As::Token(&second), "events.add", json!({"type": "log", "task": own, "msg": "late"})).await;
    assert_eq!(world.token_of(own, "l3").await.0, 400, "but no new token");
    // A user who is gone has no tasks that act for it.
    let (_, third) = {
        world.ok(As::Key(anna), "tasks.enqueue", json!({"task": own, "queue": queue, "force": true})).await;
        world.claim(own, "n1", "l4").await;
        world.token_of(own, "l4").await
    };
    world.ok(As::Token(&third), "tasks.ping", ping.clone()).await;
    world.ok(As::Key(&world.admin), "cantle.remove_user", json!({"user": "anna"})).await;
    assert_eq!(world.call(As::Token(&third), "tasks.ping", &ping).await.0, 401);
}

#[tokio::test]
async fn a_task_has_its_files_and_no_page() {
    let world = world().await;
    let url = world.server.client.url();
    for (task, expected) in [(&world.own, 200), (&world.waits, 403), (&world.other, 403)] {
        let path = format!("P/train.{task}/artifacts/a.bin");
        let part = format!(
            "--x\r\nContent-Disposition: form-data; name=\"{path}\"; filename=\"f\"\r\n\r\ncontent\r\n--x--\r\n"
        );
        let form = "multipart/form-data; boundary=x";
        let request = world.http.post(format!("{url}/files")).bearer_auth(&world.token);
        let answer = request.header("Content-Type", form).body(part).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), expected, "{path}");
    }
    let page = world.http.get(format!("{url}/ui/-/session"));
    let answer = page.header("Cookie", format!("cantle_session={}", world.token)).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 403);
    let metrics = world.http.get(format!("{url}/metrics")).bearer_auth(&world.token).send().await.unwrap();
    assert_eq!(metrics.status().as_u16(), 403);
}
