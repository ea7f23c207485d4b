//! A caller has the server do something to an object that the caller itself may not touch: by an id of its own choice, by a
//! reference that another user's object contains, by a list of names. Each attack has a negative control, the direct
//! call, which is refused.

use std::collections::BTreeMap;

use cantle_clearml::Credentials;
use serde_json::{Value, json};

use crate::common::TestServer;

/// A word that a task's owner left in it.
const PREVIEW: &str = "previewword";

/// The project `vision` with anna and ben, and `speech` with carol, who see nothing of one another's project.
struct World {
    server: TestServer,
    http: reqwest::Client,
    keys: BTreeMap<&'static str, Credentials>,
    vision: String,
    speech: String,
}

impl World {
    async fn start() -> Self {
        let server = TestServer::start().await;
        let admin = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
        let keys = BTreeMap::from([("admin", admin)]);
        let (http, vision, speech) = (reqwest::Client::new(), String::new(), String::new());
        let mut world = Self { server, http, keys, vision, speech };
        world.vision =
            world.made("admin", "projects.create", json!({"name": "vision", "description": ""})).await;
        world.speech =
            world.made("admin", "projects.create", json!({"name": "speech", "description": ""})).await;
        for (name, role, project) in [
            ("anna", "member", "vision"),
            ("ben", "member", "vision"),
            ("vera", "viewer", "vision"),
            ("boss", "manager", "vision"),
            ("carol", "member", "speech"),
        ] {
            let new = json!({"name": name, "role": role, "project": project});
            let made = world.ok("admin", "cantle.add_user", new).await;
            let text = |field: &str| made[field].as_str().unwrap().to_owned();
            let pair = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
            world.keys.insert(name, pair);
        }
        world
    }

    async fn call(&self, who: &str, endpoint: &str, body: Value) -> (u16, Value) {
        let Credentials { access_key, secret_key } = &self.keys[who];
        let request = self.http.post(format!("{}/{endpoint}", self.server.client.url()));
        let request = request.basic_auth(access_key, Some(secret_key)).body(body.to_string());
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn ok(&self, who: &str, endpoint: &str, body: Value) -> Value {
        let (code, mut answer) = self.call(who, endpoint, body).await;
        assert_eq!(code, 200, "{who} {endpoint}: {answer}");
        answer["data"].take()
    }

    async fn refused(&self, who: &str, endpoint: &str, body: Value) {
        let (code, answer) = self.call(who, endpoint, body.clone()).await;
        assert!((400..=404).contains(&code), "{who} {endpoint} {body}: {code} {answer}");
    }

    async fn made(&self, who: &str, endpoint: &str, body: Value) -> String {
        self.ok(who, endpoint, body).await["id"].as_str().unwrap().to_owned()
    }

    /// A task of ben's with a line of output and a value.
    async fn task_with_output(&self) -> String {
        let new = json!({"name": "bens", "type": "training", "project": self.vision});
        let task = self.made("ben", "tasks.create", new).await;
        self.ok("ben", "events.add", json!({"type": "log", "task": task, "msg": "line"})).await;
        let scalar = json!({"type": "training_stats_scalar", "task": task, "metric": "m", "variant": "v", "iter": 1, "value": 1.0});
        self.ok("ben", "events.add", scalar).await;
        task
    }

    async fn output_of(&self, task: &str) -> u64 {
        self.ok("ben", "events.get_task_log", json!({"task": task})).await["total"].as_u64().unwrap()
    }

    async fn task_of(&self, who: &str, project: &str) -> String {
        self.made(who, "tasks.create", json!({"name": "mine", "type": "training", "project": project})).await
    }
}

#[tokio::test]
async fn a_model_has_an_id_of_its_own() {
    let world = World::start().await;
    let victim = world.task_with_output().await;
    world.refused("anna", "events.delete_for_task", json!({"task": victim})).await;
    for (who, project) in [("anna", &world.vision), ("carol", &world.speech)] {
        let new = |id: &str| json!({"name": "m", "uri": "u", "project": project, "id": id});
        for id in [victim.as_str(), "../../etc/passwd", "", "0", &"A".repeat(32), &"0".repeat(33)] {
            world.refused(who, "models.create", new(id)).await;
        }
        world.refused(who, "events.delete_for_model", json!({"model": victim})).await;
        assert_eq!(world.output_of(&victim).await, 1, "{who}");
        // One that is new and well-formed, as clients that work offline send, is taken, and only once.
        let own = format!("{:032x}", who.len());
        assert_eq!(world.made(who, "models.create", new(&own)).await, own);
        world.refused(who, "models.create", new(&own)).await;
        world.ok(who, "events.delete_for_model", json!({"model": own})).await;
    }
}

/// A database of an older version may have a model with the id of a task.
#[tokio::test]
async fn what_a_task_reported_is_not_deleted_as_a_models() {
    let world = World::start().await;
    let victim = world.task_with_output().await;
    let store = world.server.store().await;
    let own =
        world.made("anna", "models.create", json!({"name": "m", "uri": "u", "project": world.vision})).await;
    let old = cantle_store::ModelRow { id: victim.clone(), ..store.model(&own).await.unwrap() };
    store.create_model(&old).await.unwrap();
    world.call("anna", "events.delete_for_model", json!({"model": victim})).await;
    assert_eq!(world.output_of(&victim).await, 1);
}

#[tokio::test]
async fn a_model_that_is_only_named_is_not_deleted_with_the_task() {
    let world = World::start().await;
    let new = json!({"name": "bens", "uri": "http://secret", "project": world.vision});
    let bens = world.made("ben", "models.create", new).await;
    let admins = world.made("admin", "models.create", json!({"name": "of all", "uri": "u"})).await;
    for (who, project) in [("anna", &world.vision), ("carol", &world.speech)] {
        for model in [&bens, &admins] {
            world.refused(who, "models.delete", json!({"model": model})).await;
            let task = world.task_of(who, project).await;
            let named = json!({"task": task, "type": "output", "name": "x", "model": model});
            world.call(who, "tasks.add_or_update_model", named).await;
            let models = json!({"output": [{"name": "x", "model": model}], "input": []});
            world.call(who, "tasks.edit", json!({"task": task, "force": true, "models": models})).await;
            let delete =
                json!({"task": task, "force": true, "delete_output_models": true, "return_file_urls": true});
            let done = world.ok(who, "tasks.delete", delete).await;
            assert_eq!(done["deleted_models"], 0, "{who}: {done}");
            assert!(!done.to_string().contains("http://secret"), "{who}: {done}");
            world.ok("admin", "models.get_by_id", json!({"model": model})).await;
        }
    }
    // The negative control: the owner's task takes the model with it.
    let task = world.task_of("ben", &world.vision).await;
    let named = json!({"task": task, "type": "output", "name": "x", "model": bens});
    world.ok("ben", "tasks.add_or_update_model", named).await;
    let delete = json!({"task": task, "force": true, "delete_output_models": true, "return_file_urls": true});
    let done = world.ok("ben", "tasks.delete", delete).await;
    assert_eq!(done["deleted_models"], 1, "{done}");
    assert!(done.to_string().contains("http://secret"), "{done}");
}

/// A model whose entry says that it belongs to this task, but that its owner did not let anybody put there.
#[tokio::test]
async fn a_model_cannot_be_seen_through_a_task_that_names_it() {
    let world = World::start().await;
    let bens =
        world.made("ben", "models.create", json!({"name": "m", "uri": "u", "project": world.vision})).await;
    let task = world.task_of("carol", &world.speech).await;
    let named = json!({"task": task, "type": "input", "name": "x", "model": bens});
    world.refused("carol", "tasks.add_or_update_model", named.clone()).await;
    let missing = json!({"task": task, "type": "input", "name": "x", "model": "0".repeat(32)});
    let (_, hidden) = world.call("carol", "tasks.add_or_update_model", named).await;
    let (_, missing) = world.call("carol", "tasks.add_or_update_model", missing).await;
    let said =
        |answer: &Value| answer["meta"]["result_msg"].as_str().unwrap().replace(&bens, &"0".repeat(32));
    assert_eq!(said(&hidden), said(&missing));
    // Anna sees it, and may use it as an input.
    let task = world.task_of("anna", &world.vision).await;
    let named = json!({"task": task, "type": "input", "name": "x", "model": bens});
    world.ok("anna", "tasks.add_or_update_model", named).await;
}

#[tokio::test]
async fn artifacts_need_the_right_to_read() {
    let world = World::start().await;
    let task = world.task_of("ben", &world.vision).await;
    let artifact = json!({"key": "a", "type": "pandas", "uri": format!("http://{PREVIEW}"), "type_data": {"preview": PREVIEW}});
    world.ok("ben", "tasks.add_or_update_artifacts", json!({"task": task, "artifacts": [artifact]})).await;
    let guess = json!({"id": [task], "_any_": {"pattern": PREVIEW, "fields": ["execution.artifacts.type_data.preview"]}});
    let calls = [
        ("tasks.get_by_id", json!({"task": task})),
        ("tasks.get_by_id_ex", json!({"task": task})),
        ("tasks.get_all", json!({"id": [task]})),
        ("tasks.get_all_ex", json!({"id": [task]})),
        ("tasks.get_all_ex", json!({"id": [task], "only_fields": ["execution"]})),
        ("tasks.get_all_ex", json!({"only_fields": ["execution.artifacts"]})),
    ];
    for (who, reads) in [("ben", true), ("vera", true), ("boss", true), ("admin", true), ("anna", false)] {
        for (endpoint, body) in &calls {
            let answer = world.ok(who, endpoint, body.clone()).await.to_string();
            assert_eq!(answer.contains(PREVIEW), reads, "{who} {endpoint}: {answer}");
        }
        let found = world.ok(who, "tasks.get_all_ex", guess.clone()).await;
        assert_eq!(found["tasks"].as_array().unwrap().len(), usize::from(reads), "{who}: {found}");
    }
    // Objects that may be seen are still there.
    let seen = world.ok("anna", "tasks.get_by_id", json!({"task": task})).await;
    assert_eq!(seen["task"]["execution"]["artifacts"], json!([]), "{seen}");
}

#[tokio::test]
async fn a_parent_is_a_task_that_the_caller_sees() {
    let world = World::start().await;
    let new = json!({"name": "hidden-parent", "type": "training", "project": world.vision});
    let hidden = world.made("ben", "tasks.create", new).await;
    let own = world.task_of("carol", &world.speech).await;
    let child =
        |parent: &str| json!({"name": "c", "type": "training", "project": world.speech, "parent": parent});
    world.refused("carol", "tasks.create", child(&hidden)).await;
    world.refused("carol", "tasks.edit", json!({"task": own, "parent": hidden})).await;
    world.refused("carol", "tasks.clone", json!({"task": own, "new_task_parent": hidden})).await;
    let submit = json!({"id": "0".repeat(32), "queue": "q", "task": child(&hidden)});
    world.refused("carol", "cantle.submit_task", submit).await;
    world.ok("carol", "tasks.create", child(&own)).await;
    // One that was seen once, and is not seen any more.
    let made = world.made("admin", "tasks.create", child(&hidden)).await;
    for body in [json!({}), json!({"projects": [world.speech]})] {
        let parents = world.ok("carol", "projects.get_task_parents", body.clone()).await;
        assert!(parents.to_string().contains(&own), "{parents}");
        assert!(!parents.to_string().contains("hidden-parent"), "{parents}");
        assert!(!parents.to_string().contains(&world.vision), "{parents}");
        let parents = world.ok("admin", "projects.get_task_parents", body).await;
        assert!(parents.to_string().contains("hidden-parent"), "{parents}");
    }
    world.ok("admin", "tasks.delete", json!({"task": made, "force": true})).await;
}

#[tokio::test]
async fn a_project_has_one_spelling() {
    let world = World::start().await;
    let spelled = ["vision/", "/vision", "vision//", " vision ", "vision/ "];
    for name in spelled {
        world.refused("admin", "projects.create", json!({"name": name, "description": ""})).await;
    }
    for name in ["vision/.", "vision/../speech", "..", "/", "//", " "] {
        world.refused("admin", "projects.create", json!({"name": name, "description": ""})).await;
        world.refused("boss", "cantle.set_quota", json!({"project": name, "gpus": 1})).await;
    }
    let below =
        world.made("boss", "projects.create", json!({"name": "vision// x /", "description": ""})).await;
    let read = world.ok("boss", "projects.get_by_id", json!({"project": below})).await;
    assert_eq!(read["project"]["name"], "vision/x");
    // The right is asked for the name that the project gets.
    world.refused("carol", "projects.create", json!({"name": "vision /y", "description": ""})).await;
    world.refused("carol", "projects.create", json!({"name": "speech/../vision/y", "description": ""})).await;
    let names = world.ok("admin", "projects.get_all", json!({})).await;
    let names: Vec<&str> =
        names["projects"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert!(
        names.iter().all(|name| !name.contains("//") && !name.ends_with('/') && name.trim() == *name),
        "{names:?}"
    );
}

/// Roles are given in a project, not in all that will ever have its name.
#[tokio::test]
async fn a_new_project_inherits_no_roles_from_a_deleted_one() {
    let world = World::start().await;
    let first = world.made("admin", "projects.create", json!({"name": "thesis", "description": ""})).await;
    let role = json!({"who": "carol", "role": "manager", "project": "thesis"});
    world.ok("admin", "cantle.set_role", role).await;
    world.made("carol", "tasks.create", json!({"name": "t", "type": "training", "project": first})).await;
    world.ok("carol", "projects.delete", json!({"project": first, "force": true})).await;
    let second = world.made("admin", "projects.create", json!({"name": "thesis", "description": ""})).await;
    let secret = world
        .made("admin", "tasks.create", json!({"name": "s", "type": "training", "project": second}))
        .await;
    world.refused("carol", "tasks.get_by_id", json!({"task": secret})).await;
    world.refused("carol", "tasks.delete", json!({"task": secret, "force": true})).await;
    world.refused("carol", "tasks.create", json!({"name": "t", "type": "training", "project": second})).await;
    // The negative control: with a new name a project keeps its roles, and its old name has none.
    world.ok("admin", "projects.update", json!({"project": world.speech, "name": "voice"})).await;
    world
        .made("carol", "tasks.create", json!({"name": "t", "type": "training", "project": world.speech}))
        .await;
    let speech = world.made("admin", "projects.create", json!({"name": "speech", "description": ""})).await;
    world.refused("carol", "tasks.create", json!({"name": "t", "type": "training", "project": speech})).await;
}

/// The runs and events of a deleted task are kept under its id. The owner of a new task with this id would see them.
#[tokio::test]
async fn nobody_gets_the_id_of_a_deleted_task() {
    let world = World::start().await;
    let queue = world.made("admin", "queues.create", json!({"name": "q"})).await;
    let new = |id: &str, project: &str| json!({"queue": queue, "id": id, "task": {"name": "n", "type": "training", "project": project}});
    let id = "0123456789abcdef0123456789abcdef";
    world.ok("ben", "cantle.submit_task", new(id, &world.vision)).await;
    // The answer was lost: the same request again is no other task.
    world.ok("ben", "cantle.submit_task", new(id, &world.vision)).await;
    world.refused("carol", "cantle.submit_task", new(id, &world.speech)).await;
    world.ok("ben", "tasks.delete", json!({"task": id, "force": true})).await;
    for (who, project) in [("carol", &world.speech), ("ben", &world.vision)] {
        world.refused(who, "cantle.submit_task", new(id, project)).await;
    }
    world.ok("carol", "cantle.submit_task", new(&id.replace('0', "f"), &world.speech)).await;
}

/// As ClearML's SDK does: the task first, then the models that it made, and then each file.
#[tokio::test]
async fn who_deleted_a_task_deletes_its_files_afterwards_and_nobody_else_does() {
    let world = World::start().await;
    let task = world
        .made("ben", "tasks.create", json!({"name": "t", "type": "training", "project": world.vision}))
        .await;
    let path = format!("vision/t.{task}/models/net.pkl");
    let file = format!("{}/files/{path}", world.server.client.url());
    let with_keys = |who: &str, request: reqwest::RequestBuilder| {
        let Credentials { access_key, secret_key } = &world.keys[who];
        request.basic_auth(access_key, Some(secret_key))
    };
    let form = format!(
        "--x\r\nContent-Disposition: form-data; name=\"{path}\"; filename=\"f\"\r\n\r\nweights\r\n--x--\r\n"
    );
    let upload = world.http.post(format!("{}/files", world.server.client.url()));
    let upload = upload.header("Content-Type", "multipart/form-data; boundary=x").body(form);
    assert_eq!(with_keys("ben", upload).send().await.unwrap().status(), 200);
    let model = world
        .made(
            "ben",
            "models.create",
            json!({"name": "m", "uri": file, "task": task, "project": world.vision}),
        )
        .await;
    let remove =
        async |who: &str| with_keys(who, world.http.delete(&file)).send().await.unwrap().status().as_u16();
    assert_ne!(remove("anna").await, 200, "the negative control: the task is there");
    world.ok("ben", "tasks.delete", json!({"task": task, "force": true})).await;
    world.ok("ben", "models.delete", json!({"model": model})).await;
    for other in ["anna", "vera", "carol"] {
        assert_ne!(remove(other).await, 200, "{other}");
    }
    assert_eq!(
        with_keys("admin", world.http.get(&file)).send().await.unwrap().status(),
        200,
        "it is still there"
    );
    assert_eq!(remove("ben").await, 200);
    assert_eq!(with_keys("admin", world.http.get(&file)).send().await.unwrap().status(), 404);
}

/// No id is no object. It was every object: the refusal named the project of the first one.
#[tokio::test]
async fn a_request_without_ids_is_about_nothing() {
    let world = World::start().await;
    world.task_with_output().await;
    for body in [json!({}), json!({"task": ""}), json!({"task": []})] {
        let (code, answer) = world.call("carol", "tasks.clone", body.clone()).await;
        assert!((400..500).contains(&code) && !answer.to_string().contains("vision"), "{body}: {answer}");
    }
}
