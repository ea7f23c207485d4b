//! Endpoints × roles × id parameters × kinds of objects: each call is allowed or refused as `docs/reference/rights.md` says. The
//! test reads the page, not the table of the server: the test checks the page that users read.

mod page;
mod writes;

use std::collections::BTreeMap;

use cantle_clearml::Credentials;
use cantle_store::{ModelRow, NewTask, Store, TaskFilter};
use page::{Need, page};
use serde_json::{Value, json};

use crate::common::TestServer;

/// Those who call, and their rights in the project `vision`.
const ROLES: [(&str, &[&str]); 8] = [
    ("nobody", &[]),
    ("viewer", &["see", "read"]),
    ("member", &["see", "submit"]),
    ("reader", &["see", "submit", "read"]),
    ("manager", &["see", "read", "submit", "manage"]),
    ("admin", &["see", "read", "submit", "manage", "administer", "serve"]),
    ("agent", &[]),
    ("run", &["see", "submit"]),
];
/// The kinds of values that fill a parameter.
const FILLS: [&str; 5] = ["own", "visible", "hidden", "other kind", "nothing"];

/// Whose an object is, and where: what rights depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Own,
    Visible,
    Hidden,
    Nothing,
}

struct World {
    server: TestServer,
    http: reqwest::Client,
    store: Store,
    keys: BTreeMap<&'static str, Credentials>,
    ids: BTreeMap<&'static str, String>,
    token: String,
    run: String,
    vision: String,
    speech: String,
    queue: String,
    /// By role and fill: a task and a model.
    tasks: BTreeMap<(&'static str, &'static str), String>,
    models: BTreeMap<(&'static str, &'static str), String>,
    made: u64,
}

impl World {
    async fn call(&self, who: &str, endpoint: &str, body: &Value) -> (u16, Value) {
        let body = if endpoint == "events.add_batch" {
            json!({"type": "log", "task": body["task"], "msg": "m"}).to_string()
        } else {
            body.to_string()
        };
        self.send(who, endpoint, body).await
    }

    async fn send(&self, who: &str, endpoint: &str, body: String) -> (u16, Value) {
        let request = self.http.post(format!("{}/{endpoint}", self.server.client.url()));
        let request = match (who, self.keys.get(who)) {
            ("run", _) => request.bearer_auth(&self.token),
            (_, Some(pair)) => request.basic_auth(&pair.access_key, Some(&pair.secret_key)),
            (_, None) => request,
        };
        let answer = request.body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn ok(&self, who: &str, endpoint: &str, body: Value) -> Value {
        let (code, mut answer) = self.call(who, endpoint, &body).await;
        assert_eq!(code, 200, "{who} {endpoint}: {answer}");
        answer["data"].take()
    }

    async fn add_user(&mut self, name: &'static str, fields: Value) {
        let mut body = json!({"name": format!("the-{name}")});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let made = self.ok("admin", "cantle.add_user", body).await;
        let text = |field: &str| made[field].as_str().unwrap().to_owned();
        let pair = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
        self.keys.insert(name, pair);
        let me = self.ok(name, "users.get_current_user", json!({})).await;
        self.ids.insert(name, me["user"]["id"].as_str().unwrap().to_owned());
    }

    /// A task and a model for this role and this fill, in place of those that are there.
    async fn make(&mut self, role: &'static str, fill: &'static str) {
        let owner = match (fill, role) {
            ("own", "run") => self.ids["member"].clone(),
            ("own", _) => self.ids[role].clone(),
            ("visible", _) => self.ids["ben"].clone(),
            _ => self.ids["carol"].clone(),
        };
        let project = if fill == "hidden" { &self.speech } else { &self.vision };
        let made_by = (fill == "own" && role == "run").then(|| self.run.clone());
        self.made += 2;
        let id = |n: u64| format!("{n:032x}");
        let task = NewTask {
            id: id(self.made),
            name: fill.to_owned(),
            kind: "training".to_owned(),
            owner: owner.clone(),
            made_by: made_by.clone(),
            project: Some(project.clone()),
            ..NewTask::default()
        };
        self.store.create_task(&task, 1).await.unwrap();
        let model = ModelRow {
            id: id(self.made + 1),
            name: fill.to_owned(),
            task: made_by,
            project: Some(project.clone()),
            owner,
            created_us: 1,
            last_update_us: 1,
            doc: serde_json::Map::new(),
        };
        self.store.create_model(&model).await.unwrap();
        self.tasks.insert((role, fill), task.id);
        self.models.insert((role, fill), model.id);
    }

    /// The objects of this role that are not its own, as they are in the store.
    async fn state(&self, role: &'static str) -> String {
        let of = |all: &BTreeMap<(&str, &str), String>| -> Vec<String> {
            ["visible", "hidden"].iter().map(|fill| all[&(role, *fill)].clone()).collect()
        };
        let filter = TaskFilter { ids: of(&self.tasks), ..TaskFilter::default() };
        let tasks = self.store.tasks(&filter).await.unwrap();
        let models = self.store.models(&of(&self.models), &[]).await.unwrap();
        format!("{tasks:?} {models:?}")
    }

    fn has_own(role: &str) -> bool {
        !matches!(role, "nobody" | "viewer" | "agent")
    }

    /// The id that a parameter gets, and where the object is.
    fn fill(&self, role: &'static str, is_task: bool, fill: &'static str) -> (String, At) {
        let (own_kind, other_kind) =
            if is_task { (&self.tasks, &self.models) } else { (&self.models, &self.tasks) };
        match fill {
            "own" if Self::has_own(role) => (own_kind[&(role, "own")].clone(), At::Own),
            "own" | "visible" => (own_kind[&(role, "visible")].clone(), At::Visible),
            "hidden" => (own_kind[&(role, "hidden")].clone(), At::Hidden),
            "other kind" => (other_kind[&(role, "visible")].clone(), At::Visible),
            _ => ("f".repeat(32), At::Nothing),
        }
    }

    /// A request that every handler can read, in which everything is the caller's own, as far as it has something.
    fn body(&self, role: &'static str, endpoint: &str) -> Value {
        let (task, model) = (self.fill(role, true, "own").0, self.fill(role, false, "own").0);
        let id = if endpoint.starts_with("models.") { &model } else { &task };
        let params = if endpoint == "tasks.edit_hyper_params" {
            json!([{"section": "General", "name": "a", "value": "b"}])
        } else {
            json!({})
        };
        let is_submit = endpoint == "cantle.submit_task";
        let mut body = json!({
            "task": if is_submit { json!({"name": "n", "type": "training", "project": self.vision}) } else { json!(task) },
            "tasks": [task], "ids": [id], "model": model, "project": self.vision, "queue": self.queue, "force": true, "name": "n",
            "type": "training", "node": "n1", "worker": "n1:gpu0", "lease": "l", "slices": [], "reason": "r", "section": "General",
            "metric": "m", "variant": "v", "from_date": 1, "to_date": 2, "interval": 1, "items": [], "keys": ["k"],
            "metadata": [{"key": "k", "value": "v", "type": "t"}], "hyperparams": params,
            "configuration": if endpoint == "tasks.edit" { json!({}) } else { json!([]) },
            "artifacts": [{"key": "a", "type": "t", "uri": "u"}], "requirements": {}, "events": [], "evictions": 0, "runs": [],
            "models": if endpoint == "tasks.delete_models" { json!([{"name": "m", "type": "output"}]) } else { json!({}) },
            "victims": [], "new_task_name": "copy", "key": "iter", "scroll_id": "", "add_tags": ["t"], "add_or_update": {"a": "b"},
            "comment": "c", "msg": "m", "uri": "u", "queues": [], "interval_ms": 1000, "count": 1, "metrics": [], "timestamp": 1,
        });
        match endpoint {
            "tasks.add_or_update_model" => body["type"] = json!("output"),
            "events.add" => body["type"] = json!("log"),
            "events.scalar_metrics_iter_raw" => body["metric"] = json!({"metric": "m"}),
            // By its name: it need not exist.
            "cantle.set_quota" => (body["project"], body["quota"]) = (json!("vision/x"), json!({})),
            "cantle.set_budget" => {
                (body["project"], body["budget"]) = (json!("vision/x"), json!({"gpu_seconds": 3600}));
            }
            _ => {}
        }
        body
    }
}

/// Puts a word where a path leads.
fn put(body: &mut Value, path: &str, word: &str) {
    match path.split_once('.') {
        None if body[path].is_array() || path == "ids" || path == "tasks" => body[path] = json!([word]),
        None => body[path] = json!(word),
        Some(("task", member)) => body["task"][member] = json!(word),
        Some((list, member)) => {
            let mut item =
                json!({"lease": "l", "for_task": word, "cause": "reclaim", "run": 1, "metric": "m"});
            item[member] = json!(word);
            body[list] = json!([item]);
        }
    }
}

/// Whether this role has the right in the project of the object, or the object is its own.
fn may_object(role: &str, rights: &[&str], act: &str, at: At) -> bool {
    if role == "admin" {
        return true;
    }
    let sees = at == At::Own || (at == At::Visible && rights.contains(&"see"));
    let own = at == At::Own;
    sees && match act {
        "see" => true,
        "read" => own || rights.contains(&"read"),
        // A run changes what was made in it.
        "change" => own || (role != "run" && rights.contains(&"manage")),
        // An agent holds the tasks of its node, and does not own them.
        "enter" => (own && role != "agent") || (role != "run" && rights.contains(&"manage")),
        "run" => (own && rights.contains(&"submit")) || (role != "run" && rights.contains(&"manage")),
        "manage" => role != "run" && rights.contains(&"manage"),
        _ => panic!("{act}"),
    }
}

impl World {
    /// The page's result for a call in which the parameter at `path` is filled like this, all others with the caller's
    /// own.
    fn expected(&self, role: &str, needs: &[Need], path: &str, at: At) -> bool {
        let rights = ROLES.iter().find(|(name, _)| *name == role).unwrap().1;
        if role == "nobody" {
            return false;
        }
        if role == "admin" {
            return true;
        }
        let default = if Self::has_own(role) { At::Own } else { At::Visible };
        needs.iter().all(|need| match need {
            Need::Free => true,
            Need::NoRun => role != "run",
            // Roles hold in the project, but for those of agents.
            Need::Everywhere(wanted) => role == "agent" && wanted.iter().any(|right| right == "serve"),
            Need::Object { act, path: own, .. } if own == path => may_object(role, rights, act, at),
            Need::Object { act, path: own, .. } => match own.as_str() {
                "task" | "tasks" | "ids" | "model" => may_object(role, rights, act, default),
                // The request does not name it.
                _ => true,
            },
            Need::Project { right, path, always } => match path.as_str() {
                "project" | "task.project" => rights.contains(&right.as_str()),
                // A name outside of the project.
                "name" => false,
                _ => !always,
            },
            Need::Copy => rights.contains(&"submit"),
        })
    }
}

async fn world() -> World {
    let server = TestServer::start().await;
    let store = server.store().await;
    let admin = cantle_server::CredentialsFile::read(server.dir.path()).unwrap().unwrap().credentials();
    let keys = BTreeMap::from([("admin", admin)]);
    let none = String::new;
    let mut world = World {
        server,
        http: reqwest::Client::new(),
        store,
        keys,
        ids: BTreeMap::new(),
        token: none(),
        run: none(),
        vision: none(),
        speech: none(),
        queue: none(),
        tasks: BTreeMap::new(),
        models: BTreeMap::new(),
        made: 0xabc0_0000,
    };
    let me = world.ok("admin", "users.get_current_user", json!({})).await;
    world.ids.insert("admin", me["user"]["id"].as_str().unwrap().to_owned());
    let id = |made: Value| made["id"].as_str().unwrap().to_owned();
    world.vision =
        id(world.ok("admin", "projects.create", json!({"name": "vision", "description": ""})).await);
    world.speech =
        id(world.ok("admin", "projects.create", json!({"name": "speech", "description": ""})).await);
    for (name, role, project) in [
        ("viewer", "viewer", "vision"),
        ("member", "member", "vision"),
        ("reader", "member", "vision"),
        ("manager", "manager", "vision"),
        ("ben", "member", "vision"),
        ("carol", "member", "speech"),
    ] {
        world.add_user(name, json!({"role": role, "project": project})).await;
    }
    let reads = json!({"who": "the-reader", "role": "viewer", "project": "vision"});
    world.ok("admin", "cantle.set_role", reads).await;
    world.add_user("agent", json!({"role": "agent", "node": "n1"})).await;
    world.queue = id(world.ok("admin", "queues.create", json!({"name": "q"})).await);
    let new = json!({"name": "run", "type": "training", "project": world.vision});
    world.run = id(world.ok("member", "tasks.create", new).await);
    world.ok("member", "tasks.enqueue", json!({"task": world.run, "queue": world.queue})).await;
    world.ok("admin", "queues.get_next_task", json!({"queue": world.queue})).await;
    let claim = json!({"task": world.run, "node": "n1", "lease": "l1", "slices": []});
    world.ok("agent", "cantle.report_task", claim).await;
    world.ok("agent", "tasks.started", json!({"task": world.run})).await;
    let token = world.ok("agent", "cantle.get_task_token", json!({"task": world.run, "lease": "l1"})).await;
    world.token = token["token"].as_str().unwrap().to_owned();
    for (role, _) in ROLES {
        for fill in ["own", "visible", "hidden"] {
            if fill != "own" || World::has_own(role) {
                world.make(role, fill).await;
            }
        }
    }
    world
}

/// Whether an answer refuses because of a right, or of an object that is as if it did not exist.
fn is_refusal(code: u16, answer: &Value) -> bool {
    let said = answer["meta"]["result_msg"].as_str().unwrap_or_default();
    matches!(code, 401 | 403)
        || (code == 400
            && (said.starts_with("Invalid ") || said.contains("(Invalid task id"))
            && said.contains(" id"))
}

/// Calls that would end the world of the others, or wait.
fn ends_the_world(endpoint: &str) -> bool {
    const WORDS: [&str; 12] = [
        "remove_user",
        "revoke",
        "end_sessions",
        "clear_queue",
        "queues.delete",
        "projects.delete",
        "merge",
        "projects.move",
        "projects.update",
        "logout",
        "wait_for",
        "get_next_task",
    ];
    WORDS.iter().any(|word| endpoint.contains(word))
}

#[derive(Default)]
struct Tally {
    cells: u32,
    allowed: u32,
    refused: u32,
    /// Cells that are not as the page says.
    wrong: Vec<String>,
}

async fn cell(
    world: &mut World,
    tally: &mut Tally,
    (endpoint, needs): (&str, &[Need]),
    role: &'static str,
    parameter: Option<(&str, bool)>,
    fill: &'static str,
) {
    let (path, is_task) = parameter.unwrap_or(("", true));
    let (id, at) = world.fill(role, is_task, fill);
    let mut body = world.body(role, endpoint);
    if parameter.is_some() {
        put(&mut body, path, &id);
    }
    let allowed = world.expected(role, needs, path, at);
    if allowed && ends_the_world(endpoint) {
        return;
    }
    let before = if allowed { String::new() } else { world.state(role).await };
    let (code, answer) = world.call(role, endpoint, &body).await;
    let what = format!("{role} {endpoint} {path}={fill}: {code} {}", answer["meta"]["result_msg"]);
    tally.cells += 1;
    let fits = fill != "other kind" && fill != "nothing";
    let mut wrong = |is_wrong: bool, why: &str| {
        if is_wrong {
            tally.wrong.push(format!("{why}: {what}"));
        }
    };
    wrong(code >= 500, "a fault");
    if allowed {
        wrong(code == 403 || (fits && is_refusal(code, &answer)), "the page allows it");
        tally.allowed += 1;
        let only_reads = endpoint.contains(".get_");
        for fill in ["own", "visible", "hidden"] {
            if !only_reads && (fill != "own" || World::has_own(role)) {
                world.make(role, fill).await;
            }
        }
        return;
    }
    wrong(code == 200 || (fits && !is_refusal(code, &answer)), "the page refuses it");
    wrong(world.state(role).await != before, "it is refused, and something changed");
    tally.refused += 1;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_call_is_as_the_page_says() {
    let mut world = world().await;
    let page = page();
    assert!(page.len() > 150, "{}", page.len());
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    for (endpoint, needs) in &page {
        let objects: Vec<(&str, bool)> = needs
            .iter()
            .filter_map(|need| match need {
                Need::Object { path, is_task, .. } => Some((path.as_str(), *is_task)),
                _ => None,
            })
            .collect();
        for (role, _) in ROLES {
            let tally = tallies.entry(role).or_default();
            let row = (*endpoint, needs.as_slice());
            if objects.is_empty() {
                cell(&mut world, tally, row, role, None, "own").await;
            }
            for parameter in &objects {
                for fill in FILLS {
                    if fill != "own" || World::has_own(role) {
                        cell(&mut world, tally, row, role, Some(*parameter), fill).await;
                    }
                }
            }
        }
    }
    let mut sum = Tally::default();
    for (role, tally) in &tallies {
        println!("{role:8} {:5} cells {:5} allowed {:5} refused", tally.cells, tally.allowed, tally.refused);
        sum.cells += tally.cells;
        sum.allowed += tally.allowed;
        sum.refused += tally.refused;
        tally.wrong.iter().for_each(|wrong| println!("{wrong}"));
        sum.wrong.extend(tally.wrong.iter().cloned());
    }
    println!(
        "{} endpoints, {} cells: {} allowed, {} refused",
        page.len(),
        sum.cells,
        sum.allowed,
        sum.refused
    );
    assert!(sum.wrong.is_empty(), "{} cells are not as the page says", sum.wrong.len());
    assert!(sum.allowed > 800 && sum.refused > 1500, "{} {}", sum.allowed, sum.refused);
}
