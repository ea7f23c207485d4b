//! Measures the cost of rights: `rights STATE_DIR [USERS] [PROJECTS] [TASKS]` fills a new server with users (1,000), each
//! with roles in two of the projects (500), and ended tasks (20,000). It makes the same calls in turns as the administrator,
//! which needs no look-up, and as callers with roles: a page of tasks as a member, and claims as an agent. Prints
//! medians. The server is the example `serve`, in a process of its own. With `CANTLE_BENCH_HOLD=1` it exits with 1 if a
//! promise of SPECIFICATION.md is broken.

mod common;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::{Client, Credentials};
use cantle_model::TaskStatus;
use cantle_server::CredentialsFile;
use cantle_store::{GrantRow, NewTask, ProjectRow, Store, UserRow};
use serde_json::{Value, json};
use tokio::time::Instant;

use common::{Fail, Served, is_judged, percentile, say};

/// Calls of each kind and caller.
const PAGES: usize = 200;
const CLAIMS: usize = 200;
/// Roles of everybody count for each caller.
const SHARED: usize = 20;
/// The promises of SPECIFICATION.md.
const PAGE_MS: f64 = 1.0;
const CLAIM_PERCENT: f64 = 5.0;

#[tokio::main]
async fn main() -> Result<ExitCode, Fail> {
    let mut args = std::env::args().skip(1);
    let state_dir: PathBuf = args.next().ok_or("usage: rights STATE_DIR [USERS] [PROJECTS] [TASKS]")?.into();
    let mut count = |default| args.next().map_or(Ok(default), |count| count.parse::<usize>());
    let (users, projects, tasks) = (count(1000)?, count(500)?.max(3), count(20_000)?);
    let served = Served::start(&state_dir, None)?;
    let keys = CredentialsFile::read(&state_dir)?.ok_or("no credentials")?;
    let admin = Client::new(&keys.url, keys.credentials())?;
    let database = format!("sqlite:{}", state_dir.join("server/cantle.db").display());
    let store = Store::connect(&database.parse()?).await?;
    fill(&store, users, projects, tasks).await?;
    store.close().await;
    let add = |name: &'static str, more: Value| caller(&admin, &keys.url, name, more);
    // Each change makes the server read everything again, also what another writer has written.
    let member = add("anna", json!({ "role": "member", "project": "project3" })).await?;
    let agent = add("n2", json!({ "role": "agent", "node": "n2" })).await?;
    say(&format!("{users} users, {projects} projects, {tasks} tasks"));

    let page = json!({
        "page": 0, "page_size": 50, "order_by": ["-last_update"], "only_fields": ["id", "name", "status"],
        "project": ["p3"],
    });
    let mut pages = [Vec::new(), Vec::new()];
    for _ in 0..PAGES {
        for (times, client) in pages.iter_mut().zip([&admin, &member]) {
            let started = Instant::now();
            let answer = client.call_value("tasks.get_all", &page).await?;
            times.push(started.elapsed());
            let found = answer["tasks"].as_array().map_or(0, Vec::len);
            if found != (tasks / projects).min(50) {
                return Err(format!("a page has {found} tasks").into());
            }
        }
    }
    let [free_ms, asked_ms] = pages.map(|mut times| percentile(&mut times, 50));
    let page_ms = asked_ms - free_ms;
    say(&format!("a page of tasks: {free_ms:.3} ms without, {asked_ms:.3} ms with roles: {page_ms:+.3} ms"));

    let [free_ms, asked_ms] = claims(&admin, &agent).await?;
    let claim_percent = (asked_ms / free_ms - 1.0) * 100.0;
    say(&format!(
        "a claim (next task, then its report): {free_ms:.3} ms without, {asked_ms:.3} ms with roles: {claim_percent:+.1} %"
    ));
    say(&format!("memory of the server: {} MiB", served.memory_kib()? >> 10));
    let is_held = page_ms <= PAGE_MS && claim_percent <= CLAIM_PERCENT;
    say(if is_held { "held" } else { "missed: at most 1 ms of a page, and 5 % of a claim" });
    Ok(if is_held || !is_judged() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A client of a new user.
async fn caller(admin: &Client, url: &str, name: &str, more: Value) -> Result<Client, Fail> {
    let mut body = json!({ "name": name });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    let made = admin.call_value("cantle.add_user", &body).await?;
    let text = |field: &str| made[field].as_str().map(str::to_owned).ok_or("no key");
    let keys = Credentials { access_key: text("access_key")?, secret_key: text("secret_key")? };
    Ok(Client::new(url, keys)?)
}

/// Medians of a claim by the administrator, who acts as another node, and by the agent.
async fn claims(admin: &Client, agent: &Client) -> Result<[f64; 2], Fail> {
    let queue = admin.call_value("queues.create", &json!({ "name": "q" })).await?["id"].clone();
    for n in 0..2 * CLAIMS {
        let new = json!({ "name": format!("waits{n}"), "type": "training" });
        let task = admin.call_value("tasks.create", &new).await?["id"].clone();
        admin.call_value("tasks.enqueue", &json!({ "task": task, "queue": queue })).await?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for n in 0..CLAIMS {
        for (times, (client, node)) in times.iter_mut().zip([(admin, "n1"), (agent, "n2")]) {
            let started = Instant::now();
            let next = client.call_value("queues.get_next_task", &json!({ "queue": queue })).await?;
            let task = &next["entry"]["task"];
            let claim = json!({ "task": task, "node": node, "lease": format!("{node}-{n}"), "slices": [] });
            client.call_value("cantle.report_task", &claim).await?;
            times.push(started.elapsed());
        }
    }
    Ok(times.map(|mut times: Vec<Duration>| percentile(&mut times, 50)))
}

async fn fill(store: &Store, users: usize, projects: usize, tasks: usize) -> Result<(), Fail> {
    let role = |subject: String, project: usize, role: &str| GrantRow {
        subject,
        project: format!("project{}", project % projects),
        role: role.to_owned(),
    };
    for n in 0..users {
        let user = UserRow { id: format!("u{n}"), name: format!("user{n}"), ..UserRow::default() };
        let own = format!("user:u{n}");
        store.add_user(&user, &[role(own.clone(), n, "member"), role(own, n + 1, "viewer")]).await?;
    }
    for n in 0..projects {
        let row = ProjectRow {
            id: format!("p{n}"),
            name: format!("project{n}"),
            description: String::new(),
            created_us: 1,
            last_update_us: 1,
            quota: None,
            doc: serde_json::Map::new(),
        };
        store.create_project(&row).await?;
    }
    for project in 0..SHARED {
        store.set_grant(&role("everybody".to_owned(), project, "viewer"), true).await?;
    }
    let new = |n: usize| NewTask {
        id: format!("{n:032x}"),
        name: format!("task{n}"),
        kind: "training".to_owned(),
        owner: format!("u{}", n % users.max(1)),
        project: Some(format!("p{}", n % projects)),
        ..NewTask::default()
    };
    let ended: Vec<_> = (0..tasks).map(|n| (i64::try_from(n).unwrap_or(i64::MAX), new(n))).collect();
    store.create_ended(&ended, TaskStatus::Completed).await?;
    Ok(())
}
