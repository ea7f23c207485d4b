//! Random requests of people who may do little, to every endpoint, with the ids of things that are not theirs: no request makes the
//! server fail, shows what is hidden, or changes an object of another user.
//!
//! `CANTLE_HOSTILE=1000000 CANTLE_HOSTILE_SEED=7 cargo test -p cantle-server --test api -- --nocapture hostile_requests` sends a million;
//! without the variables 20,000 of the same seed each time.

#[path = "../world/dice.rs"]
mod dice;

use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_clearml::Credentials;
use dice::Dice;
use serde_json::{Map, Value, json};

use crate::common::TestServer;

const PAGE: &str = include_str!("../../../../../docs/reference/rights.md");
/// In everything that is hidden from the attackers.
const HIDDEN: &str = "hiddenword";
/// Requests at once.
const AT_ONCE: u64 = 8;
/// Those that wait on purpose, and those by which an attacker would lock itself out.
const LEFT_OUT: [&str; 7] = [
    "auth.logout",
    "auth.revoke_credentials",
    "cantle.end_sessions",
    "cantle.revoke_key",
    "cantle.wait_for_execs",
    "cantle.wait_for_tasks",
    "login.logout",
];
/// The names of the members of requests.
const MEMBERS: [&str; 40] = [
    "task",
    "tasks",
    "ids",
    "id",
    "model",
    "models",
    "project",
    "projects",
    "project_name",
    "destination_project",
    "new_location",
    "name",
    "new_name",
    "queue",
    "queue_name",
    "force",
    "parent",
    "user",
    "node",
    "worker",
    "tags",
    "add_tags",
    "status",
    "status_message",
    "page",
    "page_size",
    "scroll_id",
    "size",
    "order_by",
    "only_fields",
    "hyperparams",
    "configuration",
    "artifacts",
    "metadata",
    "metrics",
    "filters",
    "_any_",
    "search_text",
    "delete_output_models",
    "new_task_parent",
];

struct World {
    server: TestServer,
    http: reqwest::Client,
    attackers: Vec<Credentials>,
    endpoints: Vec<&'static str>,
    /// Ids of hidden things, of own ones, and of nothing.
    ids: Vec<String>,
    victim: BTreeMap<&'static str, String>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl World {
    async fn start() -> Self {
        let server = TestServer::start().await;
        let client = &server.client;
        let made = async |endpoint: &str, body: Value| {
            client.call_value(endpoint, &body).await.unwrap()["id"].as_str().unwrap().to_owned()
        };
        let hidden = json!({"name": format!("vision-{HIDDEN}"), "description": HIDDEN});
        let hidden = made("projects.create", hidden).await;
        let own = made("projects.create", json!({"name": "speech", "description": ""})).await;
        let task = json!({"name": format!("t-{HIDDEN}"), "type": "training", "project": hidden, "comment": HIDDEN, "tags": [HIDDEN]});
        let task = made("tasks.create", task).await;
        let model =
            json!({"name": format!("m-{HIDDEN}"), "uri": HIDDEN, "project": hidden, "tags": [HIDDEN]});
        let model = made("models.create", model).await;
        let queue = made("queues.create", json!({"name": "q"})).await;
        let log = json!({"type": "log", "task": task, "timestamp": 1, "worker": "w", "level": "INFO", "msg": HIDDEN});
        client.call_value("events.add", &log).await.unwrap();
        let mut attackers = Vec::new();
        for (name, role) in [("mallory", "member"), ("boss", "manager"), ("vera", "viewer")] {
            let new = json!({"name": name, "role": role, "project": "speech"});
            let made = client.call_value("cantle.add_user", &new).await.unwrap();
            let text = |field: &str| made[field].as_str().unwrap().to_owned();
            attackers.push(Credentials { access_key: text("access_key"), secret_key: text("secret_key") });
        }
        let cells = PAGE.lines().filter_map(|line| line.strip_prefix("| `"));
        let endpoints: Vec<&str> = cells.filter_map(|cell| cell.split('`').next()).collect();
        let endpoints: Vec<&str> =
            endpoints.into_iter().filter(|name| name.contains('.') && !LEFT_OUT.contains(name)).collect();
        assert!(endpoints.len() > 140, "{}", endpoints.len());
        let ids = vec![task.clone(), task.clone(), model.clone(), hidden.clone(), own, queue, "f".repeat(32)];
        let victim = BTreeMap::from([("task", task), ("model", model), ("project", hidden)]);
        Self { http: reqwest::Client::new(), attackers, endpoints, ids, victim, server }
    }

    fn word(&self, dice: &mut Dice) -> String {
        match dice.between(0, 10) {
            0 => "speech".to_owned(),
            1 => "default".to_owned(),
            2 => "../../etc/passwd".to_owned(),
            3 => "x' OR 1=1 --".to_owned(),
            4 => "(".repeat(usize::try_from(dice.between(1, 300)).unwrap()),
            5 => "\u{0}\u{7}\u{202e}%2f".to_owned(),
            _ => self.one_of(dice, &self.ids).clone(),
        }
    }

    fn one_of<'a, T>(&self, dice: &mut Dice, list: &'a [T]) -> &'a T {
        &list[usize::try_from(dice.between(0, i64::try_from(list.len()).unwrap())).unwrap()]
    }

    fn value(&self, dice: &mut Dice, depth: u8) -> Value {
        match dice.between(0, if depth > 2 { 7 } else { 10 }) {
            0 => json!(dice.percent(50)),
            1 => json!(dice.between(-2, 3)),
            2 => json!(i64::MAX),
            3 => Value::Null,
            7 => (0..dice.between(0, 3)).map(|_| self.value(dice, depth + 1)).collect(),
            8 => Value::Object(self.body(dice, depth + 1)),
            9 => json!([self.word(dice)]),
            _ => json!(self.word(dice)),
        }
    }

    fn body(&self, dice: &mut Dice, depth: u8) -> Map<String, Value> {
        let count = dice.between(0, 6);
        (0..count).map(|_| ((*self.one_of(dice, &MEMBERS)).to_owned(), self.value(dice, depth))).collect()
    }

    /// One request; the status of its answer.
    async fn attack(&self, dice: &mut Dice) -> u16 {
        let endpoint = *self.one_of(dice, &self.endpoints);
        let keys = self.one_of(dice, &self.attackers);
        let body = if dice.percent(3) { self.value(dice, 0) } else { Value::Object(self.body(dice, 0)) };
        let request = self.http.post(format!("{}/{endpoint}", self.server.client.url()));
        let request = request.basic_auth(&keys.access_key, Some(&keys.secret_key)).body(body.to_string());
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        assert!(status < 500, "{endpoint} {body}: {status} {text}");
        assert!(!text.contains(HIDDEN), "{endpoint} {body} shows it: {text}");
        status
    }

    /// The state that the attackers may not change, as the administrator sees it.
    async fn untouched(&self) -> Value {
        let ask =
            async |endpoint: &str, body: Value| self.server.client.call_value(endpoint, &body).await.unwrap();
        let (task, model, project) = (&self.victim["task"], &self.victim["model"], &self.victim["project"]);
        json!([
            ask("tasks.get_by_id", json!({"task": task})).await,
            ask("models.get_by_id", json!({"model": model})).await,
            ask("projects.get_by_id", json!({"project": project})).await,
            ask("events.get_task_log", json!({"task": task})).await["total"],
            ask("cantle.get_queues", json!({})).await["queues"][0]["name"],
            ask("cantle.get_users", json!({})).await["users"].as_array().unwrap().len(),
        ])
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_random_request_exceeds_a_right_or_makes_the_server_fail() {
    let (count, seed) =
        (number("CANTLE_HOSTILE").unwrap_or(20_000), number("CANTLE_HOSTILE_SEED").unwrap_or(1));
    let world = Arc::new(World::start().await);
    let before = world.untouched().await;
    let attack = |n: u64| {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            let (mut dice, mut codes) =
                (Dice::new(seed.wrapping_mul(AT_ONCE).wrapping_add(n)), BTreeMap::new());
            for _ in 0..count / AT_ONCE {
                *codes.entry(world.attack(&mut dice).await).or_insert(0_u64) += 1;
            }
            codes
        })
    };
    let mut codes: BTreeMap<u16, u64> = BTreeMap::new();
    for attacker in (0..AT_ONCE).map(attack).collect::<Vec<_>>() {
        attacker
            .await
            .unwrap()
            .into_iter()
            .for_each(|(code, times)| *codes.entry(code).or_default() += times);
    }
    assert_eq!(world.untouched().await, before);
    // The negative control: some of them did something.
    assert!(codes[&200] > count / 20 && codes[&403] > count / 50, "{codes:?}");
    println!("{count} requests of seed {seed} to {} endpoints: {codes:?}", world.endpoints.len());
}
