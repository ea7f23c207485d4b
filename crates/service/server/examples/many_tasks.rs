//! Measures how quickly lists are answered when there are many tasks: `many_tasks STATE_DIR [TASKS] [DATABASE]` fills a new
//! server with ended tasks, and a hundredth of that with waiting ones, through its own store, asks as ClearML's SDK and the
//! web page do, and prints the times. The server is the example `serve`, in a process of its own, so that its memory can be
//! measured. With `CANTLE_BENCH_HOLD=1` it exits with 1 if a promise of SPECIFICATION.md is broken. `make bench` runs it.

mod common;

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::Client;
use cantle_model::TaskStatus;
use cantle_server::CredentialsFile;
use cantle_store::{Change, Database, NewTask, Scalar, Store};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::Instant;

use common::{Fail, Served, is_judged, percentile, say};

/// Calls of each kind: the 99th percentile is the second slowest.
const ASKED: usize = 200;
const BESIDE: usize = 16;
/// Calls of `get_next_task` in parallel to them.
const TAKEN: usize = 400;
/// The promises of SPECIFICATION.md, up to this many tasks and beyond.
const SMALL: usize = 100_000;
const PROMISED: Promise = Promise { list_ms: 50.0, next_ms: 10.0, memory_kib: 100 << 10 };
const PROMISED_BEYOND: Promise = Promise { list_ms: 100.0, ..PROMISED };

#[derive(Clone, Copy)]
struct Promise {
    list_ms: f64,
    next_ms: f64,
    memory_kib: u64,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Fail> {
    let mut args = std::env::args().skip(1);
    let state_dir: PathBuf = args.next().ok_or("usage: many_tasks STATE_DIR [TASKS] [DATABASE]")?.into();
    let tasks: usize = args.next().map_or(Ok(SMALL), |count| count.parse())?;
    let database = args.next();
    let promise = if tasks > SMALL { PROMISED_BEYOND } else { PROMISED };
    let list_ms = if database.is_some() { PROMISED.list_ms } else { promise.list_ms };
    let served = Served::start(&state_dir, database.as_deref())?;
    let keys = CredentialsFile::read(&state_dir)?.ok_or("no credentials")?;
    let client = Arc::new(Client::new(&keys.url, keys.credentials())?);
    let project = client.call_value("projects.create", &json!({"name": "p"})).await?["id"].clone();
    let queue = client.call_value("queues.create", &json!({"name": "q"})).await?["id"].clone();
    let database =
        database.unwrap_or_else(|| format!("sqlite:{}", state_dir.join("server/cantle.db").display()));
    let store = Arc::new(Store::connect(&database.parse::<Database>()?).await?);
    fill(&store, &project, tasks).await?;
    wait_in(&store, &queue, tasks / 100).await?;
    store.close().await;
    if database.starts_with("postgres") {
        // As after `cantle db copy`: PostgreSQL would do it by itself some minutes later.
        sqlx::query("VACUUM (ANALYZE)").execute(&sqlx::PgPool::connect(&database).await?).await?;
    }
    let mut broken = slow_lists(&client, &project, tasks, list_ms).await?;
    let mut next = hand_out(&client, &project, &queue).await?;
    let p99_ms = report("queues.get_next_task with 16 clients", &mut next);
    let memory_kib = served.memory_kib()?;
    broken += u32::from(p99_ms > promise.next_ms) + u32::from(memory_kib > promise.memory_kib);
    say(&format!("{tasks} tasks; the server holds {} MiB; {broken} promises broken", memory_kib >> 10));
    Ok(if is_judged() && broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A list of this project as ClearML's SDK asks for it, with `more`.
fn sdk_list(project: &Value, more: Value) -> Value {
    let mut body = json!({
        "project": [project], "only_fields": ["id", "name", "last_update", "system_tags"], "page": 0,
        "page_size": 500, "order_by": ["-last_update"],
    });
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    body
}

/// Prints the times of lists; the number of those that take longer than `list_ms`.
async fn slow_lists(client: &Client, project: &Value, tasks: usize, list_ms: f64) -> Result<u32, Fail> {
    let mut broken = 0;
    for (what, body) in [
        ("of a project", sdk_list(project, json!({}))),
        ("of an exact name", sdk_list(project, json!({"name": "^task\\-777$"}))),
        ("of a pattern", sdk_list(project, json!({"name": "77"}))),
        ("of a pattern that nothing has", sdk_list(project, json!({"name": "nobody.*x"}))),
        ("of a tag that many have", sdk_list(project, json!({"tags": ["common"]}))),
        ("of a tag that few have", sdk_list(project, json!({"tags": ["rare"]}))),
        ("not archived", sdk_list(project, json!({"system_tags": ["-archived"]}))),
        ("by a measured value", sdk_list(project, json!({"order_by": ["-last_metrics.loss.train.value"]}))),
    ] {
        let p99_ms = report(what, &mut times(client, "tasks.get_all", &body).await?);
        broken += u32::from(p99_ms > list_ms);
    }
    for (what, endpoint, body) in [
        ("the web page's newest tasks", "cantle.get_tasks", json!({"limit": 500})),
        // The page asks for this many at a time, until it has 10,000.
        (
            "the web page's tasks behind 9,500",
            "cantle.get_tasks",
            json!({"limit": 500, "older_than": nth_newest(client, 9_500.min(tasks / 2)).await?}),
        ),
        ("the web page's queues", "cantle.get_queues", json!({})),
    ] {
        let p99_ms = report(what, &mut times(client, endpoint, &body).await?);
        broken += u32::from(p99_ms > list_ms);
    }
    Ok(broken)
}

/// The times of `get_next_task`, next to other clients' lists.
async fn hand_out(client: &Arc<Client>, project: &Value, queue: &Value) -> Result<Vec<Duration>, Fail> {
    for n in 0..TAKEN {
        let task = json!({"name": format!("waiting {n}"), "type": "training"});
        let id = client.call_value("tasks.create", &task).await?["id"].clone();
        client.call_value("tasks.enqueue", &json!({"task": id, "queue": queue})).await?;
    }
    let beside: Vec<_> = (0..BESIDE)
        .map(|_| {
            let (client, body) = (Arc::clone(client), sdk_list(project, json!({})));
            tokio::spawn(async move {
                loop {
                    if client.call_value("tasks.get_all", &body).await.is_err() {
                        break;
                    }
                }
            })
        })
        .collect();
    let mut next = Vec::new();
    for _ in 0..TAKEN {
        let begin = Instant::now();
        let taken = client.call_value("queues.get_next_task", &json!({"queue": queue})).await?;
        next.push(begin.elapsed());
        if taken["entry"]["task"].as_str().is_none() {
            return Err("a task that waits was not handed out".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    beside.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(next)
}

async fn nth_newest(client: &Client, n: usize) -> Result<Value, Fail> {
    let page = json!({"page": n - 1, "page_size": 1, "only_fields": ["id"], "order_by": ["-created"]});
    Ok(client.call_value("tasks.get_all", &page).await?["tasks"][0]["id"].clone())
}

async fn times(client: &Client, endpoint: &str, body: &Value) -> Result<Vec<Duration>, Fail> {
    let mut times = Vec::new();
    for _ in 0..ASKED {
        let begin = Instant::now();
        client.call_value(endpoint, body).await?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

/// Prints the times, and returns the 99th percentile in milliseconds.
fn report(what: &str, times: &mut [Duration]) -> f64 {
    let (p50, p99) = (percentile(times, 50), percentile(times, 99));
    say(&format!("{what:40} p50 {p50:7.1} ms  p99 {p99:7.1} ms"));
    p99
}

/// Waiting tasks, in front of which others wait.
async fn wait_in(store: &Store, queue: &Value, count: usize) -> Result<(), Fail> {
    let queue = queue.as_str().ok_or("no queue")?;
    let now_us = 1_800_000_000_000_000;
    let ids: Vec<String> = (0..count).map(|n| format!("w{n:031x}")).collect();
    for ids in ids.chunks(Store::BATCH) {
        for id in ids {
            let new = NewTask {
                id: id.clone(),
                name: id.clone(),
                kind: "training".to_owned(),
                ..NewTask::default()
            };
            store.create_task(&new, now_us).await?;
        }
        store.enqueue_many(ids, queue, &Change { now_us, ..Change::default() }).await?;
    }
    Ok(())
}

/// Batches at once: those of SQLite wait for each other.
const FILLERS: usize = 8;

async fn fill(store: &Arc<Store>, project: &Value, count: usize) -> Result<(), Fail> {
    let mut filling = JoinSet::new();
    for first in (0..count).step_by(1000) {
        if filling.len() >= FILLERS {
            filling.join_next().await.ok_or("nobody")???;
        }
        let (store, project) = (Arc::clone(store), project.clone());
        filling
            .spawn(async move { fill_in(&store, &project, first..(first + 1000).min(count), count).await });
    }
    while let Some(filled) = filling.join_next().await {
        filled??;
    }
    Ok(())
}

/// These of all tasks.
async fn fill_in(store: &Store, project: &Value, part: Range<usize>, count: usize) -> Result<(), Fail> {
    let doc = json!({"script": {"diff": "x".repeat(1500)}, "hyperparams": {}});
    let doc: Map<String, Value> = serde_json::from_value(doc)?;
    let (mut scalars, mut new) = (Vec::new(), Vec::new());
    for n in part {
        let time = 1_700_000_000_000_000 + i64::try_from(n)? * 1_000_000;
        let tags = if n % 10_000 == 7 { vec!["rare".to_owned()] } else { vec!["common".to_owned()] };
        new.push((
            time,
            NewTask {
                id: format!("{n:032x}"),
                name: format!("task-{n}"),
                kind: "training".to_owned(),
                project: project.as_str().map(str::to_owned),
                tags,
                doc: doc.clone(),
                ..NewTask::default()
            },
        ));
        scalars.push(Scalar {
            task: format!("{n:032x}"),
            metric: "loss".to_owned(),
            variant: "train".to_owned(),
            iter: 1,
            timestamp_ms: time / 1000,
            value: f64::from(u32::try_from(n * 7919 % count)?),
        });
    }
    store.create_ended(&new, TaskStatus::Completed).await?;
    store.add_scalars(&scalars).await?;
    Ok(())
}
