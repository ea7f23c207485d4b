//! Secrets of users: who gets their values, and for which tasks.

use cantle_clearml::Credentials;
use serde_json::{Value, json};

use crate::common::TestServer;

struct World {
    server: TestServer,
    admin: Credentials,
    anna: Credentials,
    /// May change anna's tasks.
    ben: Credentials,
    agent: Credentials,
    queue: String,
    project: String,
}

impl World {
    async fn call(&self, who: &Credentials, endpoint: &str, body: Value) -> (u16, Value) {
        self.server.call_as(who, endpoint, &body).await
    }

    async fn ok(&self, who: &Credentials, endpoint: &str, body: Value) -> Value {
        let (code, mut answer) = self.call(who, endpoint, body.clone()).await;
        assert_eq!(code, 200, "{endpoint} {body}: {answer}");
        answer["data"].take()
    }

    async fn refused(&self, who: &Credentials, endpoint: &str, body: Value) -> String {
        let (code, answer) = self.call(who, endpoint, body.clone()).await;
        assert!(code == 400 || code == 403, "{endpoint} {body}: {answer}");
        answer["meta"]["result_msg"].as_str().unwrap().to_owned()
    }

    async fn user(&self, fields: Value) -> Credentials {
        let made = self.ok(&self.admin, "cantle.add_user", fields).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        Credentials { access_key: text("access_key"), secret_key: text("secret_key") }
    }

    async fn set(&self, who: &Credentials, name: &str, value: &str) {
        self.ok(who, "cantle.set_secret", json!({"name": name, "value": value})).await;
    }

    /// A draft that names secrets.
    async fn draft(&self, who: &Credentials, secrets: &str) -> String {
        let params = json!({"cantle": {"secret": {"section": "cantle", "name": "secret", "value": secrets}}});
        let new = json!({"name": "t", "type": "training", "project": self.project, "hyperparams": params});
        self.ok(who, "tasks.create", new).await["id"].as_str().unwrap().to_owned()
    }

    fn enqueue(&self, task: &str) -> Value {
        json!({"task": task, "queue": self.queue})
    }

    /// The secrets that the agent gets for the environment of the task.
    async fn given(&self, task: &str) -> Value {
        let lease = format!("lease-{task}");
        self.ok(&self.agent, "queues.get_next_task", json!({"queue": self.queue, "task": task})).await;
        let claim = json!({"task": task, "node": "n1", "lease": lease, "slices": []});
        self.ok(&self.agent, "cantle.report_task", claim).await;
        self.ok(&self.agent, "cantle.get_task_token", json!({"task": task, "lease": lease})).await
    }
}

async fn world() -> World {
    let server = TestServer::start().await;
    let admin = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
    let none = || Credentials { access_key: String::new(), secret_key: String::new() };
    let (anna, ben, agent, queue, project) = (none(), none(), none(), String::new(), String::new());
    let mut world = World { server, admin, anna, ben, agent, queue, project };
    let id = |made: Value| made["id"].as_str().unwrap().to_owned();
    world.project =
        id(world.ok(&world.admin, "projects.create", json!({"name": "P", "description": ""})).await);
    world.anna = world.user(json!({"name": "anna", "role": "member", "project": "P"})).await;
    world.ben = world.user(json!({"name": "ben", "role": "manager", "project": "P"})).await;
    world.agent = world.user(json!({"name": "n1", "role": "agent", "node": "n1"})).await;
    world.queue = id(world.ok(&world.admin, "queues.create", json!({"name": "q"})).await);
    world
}

#[tokio::test]
async fn a_task_gets_the_secrets_of_its_owner_and_nobody_sees_them() {
    let world = world().await;
    let World { anna, ben, admin, .. } = &world;
    world.set(anna, "TOKEN", "anna's value").await;
    world.set(ben, "TOKEN", "ben's value").await;
    world.set(anna, "OTHER", "not asked for").await;
    let task = world.draft(anna, "TOKEN").await;
    world.ok(anna, "tasks.enqueue", world.enqueue(&task)).await;
    let given = world.given(&task).await;
    assert_eq!(given["secrets"], json!({"TOKEN": "anna's value"}));
    let listed = world.ok(anna, "cantle.get_secrets", json!({})).await;
    assert_eq!(listed["secrets"].as_array().unwrap().len(), 2);
    assert!(listed["secrets"][1]["used"].is_string() && listed["secrets"][0]["used"].is_null(), "{listed}");
    // Neither a call of a person nor the database nor the audit has the value.
    for (who, endpoint, body) in [
        (anna, "cantle.get_secrets", json!({})),
        (admin, "cantle.get_secrets", json!({})),
        (admin, "cantle.get_audit", json!({})),
        (anna, "tasks.get_by_id", json!({"task": task})),
    ] {
        let answer = world.ok(who, endpoint, body).await.to_string();
        assert!(!answer.contains("anna's value"), "{endpoint}: {answer}");
    }
    for file in std::fs::read_dir(world.server.dir.path().join("server")).unwrap() {
        let path = file.unwrap().path();
        if path.is_file() {
            let bytes = std::fs::read(&path).unwrap();
            let found = bytes.windows(12).any(|part| part == b"anna's value");
            assert!(!found, "{}", path.display());
        }
    }
    // The token of another lease gets nothing.
    let other = json!({"task": task, "lease": "another"});
    assert!(!world.refused(&world.agent, "cantle.get_task_token", other).await.contains("value"));
}

#[tokio::test]
async fn only_the_owner_gives_secrets_to_a_task() {
    let world = world().await;
    let World { anna, ben, .. } = &world;
    world.set(anna, "TOKEN", "anna's value").await;
    world.set(anna, "OTHER", "another value").await;
    world.set(ben, "OTHER", "ben's value").await;
    // Ben may change the task, and names another secret of anna's.
    let task = world.draft(anna, "TOKEN").await;
    let name = |value: &str| {
        json!({"task": task, "replace_hyperparams": "none",
            "hyperparams": [{"section": "cantle", "name": "secret", "value": value}]})
    };
    world.ok(ben, "tasks.edit_hyper_params", name("OTHER")).await;
    let said = world.refused(ben, "tasks.enqueue", world.enqueue(&task)).await;
    assert!(said.contains("only anna, the owner of the task, can give it"), "{said}");
    // Anna's own choice is the negative control; ben may queue it again.
    world.ok(anna, "tasks.enqueue", world.enqueue(&task)).await;
    world.ok(ben, "tasks.dequeue", json!({"task": task})).await;
    world.ok(ben, "tasks.enqueue", world.enqueue(&task)).await;
    // A secret that is named after the task was queued is not given, and the task does not start without it.
    let mut forced = name("OTHER,TOKEN");
    forced["force"] = json!(true);
    world.ok(ben, "tasks.edit_hyper_params", forced).await;
    let given = world.given(&task).await;
    assert!(given["no_secret"].as_str().unwrap().contains("secret TOKEN was named after"), "{given}");
    assert!(given["secrets"].is_null(), "{given}");
    // A clone has the secrets of its own owner.
    let clone = world.ok(ben, "tasks.clone", json!({"task": task})).await["id"].as_str().unwrap().to_owned();
    let mut own = name("OTHER");
    own["task"] = json!(clone);
    world.ok(ben, "tasks.edit_hyper_params", own).await;
    world.ok(ben, "tasks.enqueue", world.enqueue(&clone)).await;
    assert_eq!(world.given(&clone).await["secrets"], json!({"OTHER": "ben's value"}));
}

#[tokio::test]
async fn a_secret_that_is_missing_is_named() {
    let world = world().await;
    let World { anna, .. } = &world;
    let task = world.draft(anna, "TOKEN").await;
    let said = world.refused(anna, "tasks.enqueue", world.enqueue(&task)).await;
    assert!(said.contains("you have no secret \"TOKEN\""), "{said}");
    world.set(anna, "TOKEN", "v").await;
    world.ok(anna, "tasks.enqueue", world.enqueue(&task)).await;
    world.ok(anna, "cantle.delete_secret", json!({"name": "TOKEN"})).await;
    let given = world.given(&task).await;
    assert_eq!(given["no_secret"], "its owner has no secret TOKEN any more");
    assert!(given["secrets"].is_null());
    let said = world.refused(anna, "cantle.delete_secret", json!({"name": "TOKEN"})).await;
    assert!(said.contains("you have no secret"), "{said}");
    for (name, value, why) in [
        ("9A", "v", "is no name of an environment variable"),
        ("A-B", "v", "is no name of an environment variable"),
        ("", "v", "is no name of an environment variable"),
        ("LD_PRELOAD", "v", "begin with LD_"),
        ("CANTLE_SERVER", "v", "begin with CANTLE_"),
        ("A", "", "it is empty"),
        ("A", "a\0b", "a zero byte"),
        ("A", &"x".repeat((32 << 10) + 1), "32769 bytes; the most are 32768"),
    ] {
        let said = world.refused(anna, "cantle.set_secret", json!({"name": name, "value": value})).await;
        assert!(said.contains(why), "{name}: {said}");
    }
}

#[tokio::test]
async fn another_key_of_the_server_makes_secrets_unreadable() {
    let mut world = world().await;
    world.set(&world.anna, "TOKEN", "v").await;
    let task = world.draft(&world.anna, "TOKEN").await;
    world.ok(&world.anna, "tasks.enqueue", world.enqueue(&task)).await;
    world.server = world.server.restart().await;
    let readable = async |world: &World| {
        world.ok(&world.anna, "cantle.get_secrets", json!({})).await["secrets"][0]["readable"].clone()
    };
    assert_eq!(readable(&world).await, true);
    std::fs::write(world.server.dir.path().join("server/token.key"), "k".repeat(64)).unwrap();
    world.server = world.server.restart().await;
    assert_eq!(readable(&world).await, false);
    let given = world.given(&task).await;
    assert!(given["no_secret"].as_str().unwrap().contains("cannot decrypt secret TOKEN"), "{given}");
    world.set(&world.anna, "TOKEN", "again").await;
    assert_eq!(readable(&world).await, true);
}
