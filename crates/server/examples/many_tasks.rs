//! How quickly lists are answered when there are many tasks: `many_tasks STATE_DIR [TASKS]` fills a new server with ended
//! tasks through its own store, asks as ClearML's SDK does, and prints the times. `make bench` runs it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::Client;
use cantle_model::TaskStatus;
use cantle_server::{Server, ServerConfig};
use cantle_store::{NewTask, Scalar, Store};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

type Fail = Box<dyn std::error::Error + Send + Sync>;

const ASKED: usize = 40;
const BESIDE: usize = 16;

#[tokio::main]
async fn main() -> Result<(), Fail> {
    let mut args = std::env::args().skip(1);
    let state_dir: PathBuf = args.next().ok_or("usage: many_tasks STATE_DIR [TASKS]")?.into();
    let tasks: usize = args.next().map_or(Ok(100_000), |count| count.parse())?;
    let config = ServerConfig { state_dir: state_dir.clone(), ..ServerConfig::default() };
    let server = Server::bind(&config).await?;
    let client = Arc::new(Client::new(server.url(), server.credentials())?);
    tokio::spawn(server.serve(std::future::pending()));
    let project = client.call_value("projects.create", &json!({"name": "p"})).await?["id"].clone();
    let queue = client.call_value("queues.create", &json!({"name": "q"})).await?["id"].clone();
    fill(&state_dir, &project, tasks).await?;
    let sdk = |more: Value| {
        let mut body = json!({
            "project": [project], "only_fields": ["id", "name", "last_update", "system_tags"], "page": 0,
            "page_size": 500, "order_by": ["-last_update"],
        });
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        body
    };
    for (what, body) in [
        ("of a project", sdk(json!({}))),
        ("of an exact name", sdk(json!({"name": "^task\\-777$"}))),
        ("of a pattern", sdk(json!({"name": "77"}))),
        ("of a pattern that nothing has", sdk(json!({"name": "nobody.*x"}))),
        ("of a tag that many have", sdk(json!({"tags": ["common"]}))),
        ("of a tag that few have", sdk(json!({"tags": ["rare"]}))),
        ("not archived", sdk(json!({"system_tags": ["-archived"]}))),
        ("by a measured value", sdk(json!({"order_by": ["-last_metrics.loss.train.value"]}))),
    ] {
        report(what, &mut times(&client, &body, ASKED).await?);
    }
    let beside: Vec<_> = (0..BESIDE)
        .map(|_| {
            let (client, body) = (Arc::clone(&client), sdk(json!({})));
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
    for _ in 0..200 {
        let begin = Instant::now();
        client.call_value("queues.get_next_task", &json!({"queue": queue})).await?;
        next.push(begin.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    beside.iter().for_each(tokio::task::JoinHandle::abort);
    report("queues.get_next_task beside 16 clients", &mut next);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let memory = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    say(&format!("{tasks} tasks; server and clients in one process: {}", memory.trim()));
    Ok(())
}

async fn times(client: &Client, body: &Value, count: usize) -> Result<Vec<Duration>, Fail> {
    let mut times = Vec::new();
    for _ in 0..count {
        let begin = Instant::now();
        client.call_value("tasks.get_all", body).await?;
        times.push(begin.elapsed());
    }
    Ok(times)
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().saturating_sub(1)));
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    say(&format!("{what:40} p50 {:7.1} ms  p99 {:7.1} ms", ms(at(50)), ms(at(99))));
}

async fn fill(state_dir: &std::path::Path, project: &Value, count: usize) -> Result<(), Fail> {
    let store = Store::open(&state_dir.join("server/cantle.db")).await?;
    let doc = json!({"script": {"diff": "x".repeat(1500)}, "hyperparams": {}});
    let doc: Map<String, Value> = serde_json::from_value(doc)?;
    for first in (0..count).step_by(1000) {
        let mut scalars = Vec::new();
        let mut new = Vec::new();
        for n in first..(first + 1000).min(count) {
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
    }
    store.close().await;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "this program's answer")]
fn say(line: &str) {
    println!("{line}");
}
