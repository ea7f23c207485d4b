//! Writes of projects, queues and events: each role × each kind of object that a request may name. A cell is allowed or refused
//! as the page says; and whatever the answer is, nothing changes that the caller may not change.

use std::fmt::Write as _;

use cantle_store::{LogLine, ProjectRow, ReportRow, Scalar};

use super::*;

/// Kinds of events, with the members that each needs in addition to its task.
const EVENTS: [(&str, &str); 5] = [
    ("log", r#""msg": "m", "level": "info", "worker": "w""#),
    ("training_stats_scalar", r#""metric": "m", "variant": "v", "iter": 1, "value": 1.0"#),
    ("training_stats_vector", r#""metric": "m", "variant": "v", "iter": 1, "values": [1]"#),
    ("training_debug_image", r#""metric": "m", "variant": "v", "iter": 1, "url": "u""#),
    ("plot", r#""metric": "m", "variant": "v", "iter": 1, "plot_str": "{}""#),
];
/// The kinds of values for the name or the id of a project.
const PROJECTS: [&str; 6] = ["below", "hidden", "hidden by name", "task", "queue", "nothing"];
/// The kinds of values for the id of a queue.
const QUEUES: [&str; 5] = ["queue", "by name", "task", "project", "nothing"];

/// One request, and what is expected of it.
struct Write {
    role: &'static str,
    endpoint: &'static str,
    what: String,
    body: String,
    allowed: bool,
    /// All that it names exists and is of the right kind: an answer other than success is a refusal.
    fits: bool,
}

/// The objects to which the requests write, and their state at the last look.
struct Writes {
    world: World,
    tally: BTreeMap<(&'static str, &'static str), Tally>,
    /// As of the last look; `None`: it may have changed since.
    seen: Option<Seen>,
    made: u32,
}

/// A picture of all that can be written.
#[derive(Default, PartialEq, Eq)]
struct Seen {
    /// Where the roles have their rights.
    within: String,
    outside: String,
}

fn rights_of(role: &str) -> &'static [&'static str] {
    ROLES.iter().find(|(name, _)| *name == role).unwrap().1
}

impl Writes {
    /// Everything that these requests could change.
    async fn look(&self, role: &'static str) -> Seen {
        let (world, store) = (&self.world, &self.world.store);
        let mut seen = Seen::default();
        for ProjectRow { id, name, description, quota, doc, .. } in store.projects().await.unwrap() {
            let is_in = name == "vision" || name.starts_with("vision/");
            let part = if is_in { &mut seen.within } else { &mut seen.outside };
            let _ = writeln!(part, "{id} {name} {description} {quota:?} {doc:?}");
        }
        for row in store.queues().await.unwrap() {
            let _ = writeln!(seen.outside, "{} {} {:?}", row.id, row.name, row.doc);
            let _ = writeln!(seen.within, "{:?}", row.entries);
        }
        let rules = (store.requeues().await.unwrap(), store.queue_times().await.unwrap());
        let rules = (rules, store.queue_preempts().await.unwrap());
        let _ = writeln!(seen.outside, "{rules:?}");
        for fill in ["visible", "hidden"] {
            for id in [&world.tasks[&(role, fill)], &world.models[&(role, fill)]] {
                let (logs, scalars) =
                    (store.count_logs(id).await.unwrap(), store.count_scalars(id).await.unwrap());
                let mut reports = 0;
                for (kind, _) in &EVENTS[2..] {
                    reports += store.reports(id, kind).await.unwrap().len();
                }
                let part = if fill == "hidden" { &mut seen.outside } else { &mut seen.within };
                let _ = writeln!(part, "{id} {logs} {scalars} {reports}");
            }
        }
        seen
    }

    /// Makes the request and judges its answer.
    async fn cell(&mut self, group: &'static str, write: Write) {
        let Write { role, endpoint, what, body, allowed, fits } = write;
        let before = match self.seen.take() {
            Some(seen) => seen,
            None => self.look(role).await,
        };
        let (code, answer) = self.world.send(role, endpoint, body).await;
        let text = format!("{role} {endpoint} {what}: {code} {}", answer["meta"]["result_msg"]);
        let after = self.look(role).await;
        let mut faults = Vec::new();
        if code >= 500 {
            faults.push("a fault");
        }
        // All actions of a manager of one project are in that project; an agent may act for every user.
        if !matches!(role, "admin" | "agent") && before.outside != after.outside {
            faults.push("something changed that is out of reach");
        }
        let tally = self.tally.entry((group, role)).or_default();
        tally.cells += 1;
        if allowed {
            tally.allowed += 1;
            if code == 403 || fits && code != 200 {
                faults.push("the page allows it");
            }
        } else {
            tally.refused += 1;
            if code == 200 || fits && !is_refusal(code, &answer) {
                faults.push("the page refuses it");
            }
            if before != after {
                faults.push("it is refused, and something changed");
            }
        }
        tally.wrong.extend(faults.into_iter().map(|why| format!("{why}: {text}")));
        self.seen = Some(after);
    }

    /// A new project of this name, made behind the server's back.
    async fn project(&mut self, name: &str) -> String {
        self.made += 1;
        let row = ProjectRow {
            id: format!("{:032x}", 0xdef0_0000_u32 + self.made),
            name: name.to_owned(),
            description: "d".to_owned(),
            created_us: 1,
            last_update_us: 1,
            quota: None,
            doc: serde_json::Map::new(),
        };
        self.world.store.create_project(&row).await.unwrap();
        self.seen = None;
        row.id
    }

    /// The value that names a project like this, and whether it is one in which the roles have their rights.
    async fn named(&mut self, role: &'static str, fill: &str) -> (String, bool) {
        let number = self.made + 1;
        match fill {
            "below" => (self.project(&format!("vision/p{number}")).await, true),
            "hidden" => (self.project(&format!("speech/p{number}")).await, false),
            "hidden by name" => {
                let name = format!("speech/p{number}");
                self.project(&name).await;
                (name, false)
            }
            "task" => (self.world.tasks[&(role, "visible")].clone(), false),
            "queue" => (self.world.queue.clone(), false),
            _ => ("f".repeat(32), false),
        }
    }

    /// Each parameter of each write of projects that names one by its id.
    async fn projects(&mut self, role: &'static str) {
        for (endpoint, parameter, others) in [
            ("projects.update", "project", json!({"description": "changed", "tags": ["t"]})),
            ("projects.update", "project", json!({"name": "vision/renamed"})),
            ("projects.delete", "project", json!({"force": true})),
            ("projects.validate_delete", "project", json!({})),
            ("projects.move", "project", json!({"new_location": "vision/moved"})),
            ("projects.merge", "project", json!({"destination_project": null})),
            ("projects.merge", "destination_project", json!({"project": null})),
        ] {
            for fill in PROJECTS {
                let (id, is_in) = self.named(role, fill).await;
                let mut body = others.clone();
                for (_, other) in
                    body.as_object_mut().unwrap().iter_mut().filter(|(_, other)| other.is_null())
                {
                    *other = json!(self.named(role, "below").await.0);
                }
                if let Some(name) = body.get_mut("name") {
                    *name = json!(format!("vision/renamed{}", self.made));
                }
                body[parameter] = json!(id);
                let allowed = role == "admin" || is_in && rights_of(role).contains(&"manage");
                let fits = matches!(fill, "below" | "hidden");
                let what = format!("{parameter}={fill}");
                self.cell("projects", Write { role, endpoint, what, body: body.to_string(), allowed, fits })
                    .await;
            }
        }
    }

    /// The writes that name a project as it will be called.
    async fn names_of_projects(&mut self, role: &'static str) {
        let right_of = |endpoint: &str| if endpoint == "projects.create" { "submit" } else { "manage" };
        for endpoint in
            ["projects.create", "projects.update", "projects.move", "cantle.set_quota", "cantle.set_budget"]
        {
            for (place, is_in) in [
                ("vision/new", true),
                ("/vision//new ", true),
                ("speech/new", false),
                ("vision/../speech/new", false),
                ("vision2/new", false),
                ("VISION/new", false),
                ("new", false),
                ("vision", endpoint == "projects.move"),
                ("speech", false),
                ("/", false),
            ] {
                let moved = self.named(role, "below").await.0;
                let name = if place.ends_with("new") || place.ends_with("new ") {
                    format!("{}{}", place.trim_end(), self.made)
                } else {
                    place.to_owned()
                };
                let body = match endpoint {
                    "projects.create" => json!({"name": name, "description": "new"}),
                    "projects.update" => json!({"project": moved, "name": name}),
                    "projects.move" => json!({"project": moved, "new_location": name}),
                    "cantle.set_budget" => json!({"project": name, "budget": {"gpu_seconds": 3600}}),
                    _ => json!({"project": name, "quota": {"gpu": {"deserved": 1000}}}),
                };
                let allowed = role == "admin" || is_in && rights_of(role).contains(&right_of(endpoint));
                // The administrator is refused an invalid name, and a name that exists already.
                let fits = !place.contains("..") && !matches!(place, "/" | "vision" | "speech");
                let what = format!("name={place}");
                self.cell("projects", Write { role, endpoint, what, body: body.to_string(), allowed, fits })
                    .await;
            }
        }
    }

    /// The value that names a queue like this.
    async fn queue(&mut self, role: &'static str, fill: &str) -> String {
        self.made += 1;
        let name = format!("q{}", self.made);
        let id = format!("{:032x}", 0xaef0_0000_u32 + self.made);
        self.world.store.create_queue(&id, &name, &serde_json::Map::new(), 1).await.unwrap();
        self.seen = None;
        match fill {
            "queue" => id,
            "by name" => name,
            "task" => self.world.tasks[&(role, "visible")].clone(),
            "project" => self.world.vision.clone(),
            _ => "f".repeat(32),
        }
    }

    /// Changes of queues themselves: none of them is in a project.
    async fn queues(&mut self, role: &'static str) {
        for (endpoint, others) in [
            ("queues.update", json!({"tags": ["t"]})),
            ("queues.update", json!({"name": "renamed"})),
            ("queues.delete", json!({"force": true})),
            ("queues.clear_queue", json!({})),
            ("queues.add_or_update_metadata", json!({"metadata": [{"key": "k", "value": "v"}]})),
            ("queues.delete_metadata", json!({"keys": ["k"]})),
            ("cantle.set_queue", json!({"requeue_after_s": 60})),
            ("cantle.set_queue_times", json!({"max_time_s": 60})),
            ("cantle.set_queue_preempt", json!({"preempt": ["suspend", "requeue"]})),
        ] {
            for fill in QUEUES {
                let mut body = others.clone();
                body["queue"] = json!(self.queue(role, fill).await);
                if body["name"].is_string() {
                    body["name"] = json!(format!("renamed{}", self.made));
                }
                let by_name = endpoint.starts_with("cantle.");
                let fits = fill == "queue" || fill == "by name" && by_name;
                let what = format!("queue={fill}");
                let allowed = role == "admin";
                self.cell("queues", Write { role, endpoint, what, body: body.to_string(), allowed, fits })
                    .await;
            }
        }
        let (endpoint, what) = ("queues.create", "a new one".to_owned());
        let body = json!({"name": format!("made{}", self.made), "tags": [role]}).to_string();
        let allowed = matches!(role, "admin" | "agent");
        self.cell("queues", Write { role, endpoint, what, body, allowed, fits: true }).await;
    }

    /// Changes of the tasks in a queue, which belong to a user.
    async fn tasks_in_queues(&mut self, role: &'static str) {
        for endpoint in [
            "queues.add_task",
            "queues.remove_task",
            "queues.move_task_to_front",
            "queues.move_task_to_back",
            "queues.move_task_forward",
            "queues.move_task_backward",
        ] {
            let act = match endpoint {
                "queues.add_task" => "run",
                "queues.move_task_to_front" | "queues.move_task_forward" => "manage",
                _ => "change",
            };
            for (fill, at) in [("own", At::Own), ("visible", At::Visible), ("hidden", At::Hidden)] {
                if fill == "own" && !World::has_own(role) {
                    continue;
                }
                self.world.make(role, fill).await;
                let task = self.world.tasks[&(role, fill)].clone();
                let queue = self.queue(role, "queue").await;
                if endpoint != "queues.add_task" {
                    self.world.ok("admin", "tasks.enqueue", json!({"task": task, "queue": queue})).await;
                }
                // A waiting task is an agent's to take, and so to give back.
                let is_held = role == "agent" && endpoint != "queues.add_task" && act == "change";
                let allowed = is_held || role != "nobody" && may_object(role, rights_of(role), act, at);
                let body = json!({"task": task, "queue": queue}).to_string();
                let what = format!("task={fill}");
                self.cell("queues", Write { role, endpoint, what, body, allowed, fits: true }).await;
                self.seen = None;
            }
        }
    }

    /// The object that an event names, and whether the role may change it.
    fn reporter(&self, role: &'static str, of_model: bool, fill: &'static str) -> (String, bool) {
        let (id, at) = self.world.fill(role, !of_model, fill);
        (id, role != "nobody" && may_object(role, rights_of(role), "change", at))
    }

    /// Each kind of event, about a task and about a model: alone, in a batch, and in a batch after one of the caller's own.
    async fn events(&mut self, role: &'static str) {
        for (kind, members) in EVENTS {
            for of_model in [false, true] {
                for fill in FILLS {
                    let (id, may) = self.reporter(role, of_model, fill);
                    let line = |id: &str| {
                        let flag = if of_model { r#", "model_event": true"# } else { "" };
                        format!(r#"{{"type": "{kind}", "task": "{id}", "timestamp": 1, {members}{flag}}}"#)
                    };
                    let fits = matches!(fill, "own" | "visible" | "hidden")
                        && (fill != "own" || World::has_own(role));
                    let is_own = fill == "own" && World::has_own(role);
                    let whose = if of_model { "model" } else { "task" };
                    for (endpoint, body) in [("events.add", line(&id)), ("events.add_batch", line(&id))] {
                        let what = format!("{kind} {whose}={fill}");
                        let write = Write { role, endpoint, what, body, allowed: may, fits };
                        self.cell("events", write).await;
                    }
                    if World::has_own(role) && !is_own {
                        self.mixed_batch(role, kind, &line(&id), may).await;
                    }
                }
            }
        }
    }

    /// The caller's own event does not carry the other one in.
    async fn mixed_batch(&mut self, role: &'static str, kind: &str, other: &str, may: bool) {
        let own = &self.world.tasks[&(role, "own")];
        let body = format!("{{\"type\": \"log\", \"task\": \"{own}\", \"msg\": \"m\"}}\n{other}\n");
        let before = self.look(role).await;
        let (code, answer) = self.world.send(role, "events.add_batch", body).await;
        let after = self.look(role).await;
        let tally = self.tally.entry(("events", role)).or_default();
        tally.cells += 1;
        *(if may { &mut tally.allowed } else { &mut tally.refused }) += 1;
        let is_kept_out = before == after && (code != 200 || answer["data"]["errors"] == 1);
        if code >= 500 || !may && !is_kept_out {
            tally.wrong.push(format!("{role} a batch with a {kind} of another: {code} {answer}"));
        }
        self.seen = Some(after);
    }

    /// The calls that remove events.
    async fn deleted_events(&mut self, role: &'static str) {
        for (endpoint, of_model) in [
            ("events.clear_task_log", false),
            ("events.delete_for_task", false),
            ("events.delete_for_model", true),
        ] {
            for fill in FILLS {
                let (id, may) = self.reporter(role, of_model, fill);
                let body = json!({"task": id, "model": id, "force": true, "allow_locked": true}).to_string();
                let fits = matches!(fill, "own" | "visible" | "hidden");
                let what = format!("of={fill}");
                self.cell("events", Write { role, endpoint, what, body, allowed: may, fits }).await;
                self.report(role).await;
            }
        }
    }

    /// Something of each kind in everything that is not the role's own.
    async fn report(&mut self, role: &'static str) {
        for fill in ["visible", "hidden"] {
            for task in [&self.world.tasks[&(role, fill)], &self.world.models[&(role, fill)]] {
                let store = &self.world.store;
                let text = || "x".to_owned();
                let (task, worker, level, msg) = (task.clone(), text(), text(), text());
                let log = LogLine { id: 0, task: task.clone(), timestamp_ms: 1, worker, level, msg };
                store.add_logs(&[log], 1).await.unwrap();
                let (metric, variant) = (text(), text());
                let (iter, timestamp_ms, value) = (1, 1, 1.0);
                let scalar = Scalar { task: task.clone(), metric, variant, iter, timestamp_ms, value };
                store.add_scalars(&[scalar]).await.unwrap();
                let (metric, variant, kind, doc) = (text(), text(), "plot".to_owned(), json!({}));
                let plot = ReportRow { task, kind, metric, variant, iter, timestamp_ms, doc };
                store.add_reports(&[plot]).await.unwrap();
            }
        }
        self.seen = None;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_write_reaches_what_the_page_says() {
    let mut writes = Writes { world: world().await, tally: BTreeMap::new(), seen: None, made: 0 };
    writes.project("vision/moved").await;
    for (role, _) in ROLES {
        writes.report(role).await;
        writes.projects(role).await;
        writes.names_of_projects(role).await;
        writes.queues(role).await;
        writes.tasks_in_queues(role).await;
        // Drafts: waiting tasks are an agent's to change.
        for fill in ["own", "visible", "hidden"] {
            if fill != "own" || World::has_own(role) {
                writes.world.make(role, fill).await;
            }
        }
        writes.report(role).await;
        writes.events(role).await;
        writes.deleted_events(role).await;
    }
    let (mut cells, mut wrong) = (0, 0);
    for ((group, role), tally) in &writes.tally {
        let Tally { cells: of, allowed, refused, wrong: faults } = tally;
        println!("{group:8} {role:8} {of:4} cells {allowed:4} allowed {refused:4} refused");
        faults.iter().for_each(|fault| println!("{fault}"));
        (cells, wrong) = (cells + of, wrong + faults.len());
        // The negative control: where a role may make a change, a change was made.
        assert!(*role != "admin" || allowed > refused, "{group} {role}");
    }
    println!("{cells} cells of writes");
    assert!(wrong == 0 && cells > 1500, "{wrong} of {cells} cells are not as the page says");
}
