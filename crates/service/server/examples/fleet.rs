//! Measures how many tasks a server hands out: `fleet STATE_DIR [CYCLES] [DATABASE]` starts a server on SQLite, or on the
//! database of this URL. It measures the commits of that database alone; tasks that are enqueued, taken and completed one
//! by one and in batches; and the time from enqueueing to taking at 500 tasks per second with 50 waiting callers. With
//! `CANTLE_BENCH_HOLD=1` it exits with 1 if a promise of SPECIFICATION.md is broken. `make bench` runs it; the machine's
//! load is part of the result.

mod common;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cantle_clearml::Client;
use cantle_server::CredentialsFile;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use common::{Fail, Served, is_judged, percentile, say};

/// Callers at once, as many as a server has connections to PostgreSQL.
const CALLERS: usize = 16;
const BATCH: usize = 500;
const AGENTS: usize = 50;
const PER_SECOND: u64 = 500;
const FLOOR: Duration = Duration::from_secs(3);

/// The promises of SPECIFICATION.md, per second and in milliseconds. SQLite: the part of its own floor.
const ONE_BY_ONE: f64 = 1000.0;
const BATCHED: f64 = 5000.0;
const PICKUP_MS: f64 = 25.0;
const OF_FLOOR: f64 = 0.6;

#[tokio::main]
async fn main() -> Result<ExitCode, Fail> {
    let mut args = std::env::args().skip(1);
    let state_dir: PathBuf = args.next().ok_or("usage: fleet STATE_DIR [CYCLES] [DATABASE]")?.into();
    let cycles: usize = args.next().map_or(Ok(20_000), |count| count.parse())?;
    let database = args.next();
    let name = if database.is_some() { "PostgreSQL" } else { "SQLite" };
    let floor = match &database {
        Some(url) => postgres_floor(url).await?,
        None => sqlite_floor(&state_dir).await?,
    };
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or("?");
    say(&format!("{name}: {floor:.0} single-row commits per second alone (load {load})"));
    let served = Served::start(&state_dir, database.as_deref())?;
    let keys = CredentialsFile::read(&state_dir)?.ok_or("no credentials")?;
    let client = Arc::new(Client::new(&keys.url, keys.credentials())?);
    let queue = client.call_value("queues.create", &json!({"name": "q"})).await?["id"].clone();
    let one = one_by_one(&client, &queue, cycles).await?;
    say(&format!("{name}: {one:.0} tasks per second enqueued, taken and completed, one by one over HTTP"));
    let batched = in_batches(&client, &queue, cycles).await?;
    say(&format!("{name}: {batched:.0} tasks per second in batches of {BATCH}"));
    let mut times = pickup(&client, &queue, cycles / 2).await?;
    let p95 = percentile(&mut times, 95);
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    say(&format!(
        "{name}: enqueued to taken at {PER_SECOND}/s with {AGENTS} callers: p50 {p50:.1} ms  p95 {p95:.1} ms  p99 {p99:.1} ms; \
         the server holds {} MiB",
        served.memory_kib()? >> 10
    ));
    let promised = if database.is_some() { ONE_BY_ONE } else { floor * OF_FLOOR / 3.0 };
    let kept =
        [one >= promised, database.is_none() || batched >= BATCHED, database.is_none() || p95 <= PICKUP_MS];
    let broken = kept.into_iter().filter(|kept| !kept).count();
    say(&format!("{name}: {broken} promises broken"));
    Ok(if is_judged() && broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Transactions of one row each, on disk when they return.
async fn sqlite_floor(state_dir: &std::path::Path) -> Result<f64, Fail> {
    let options = SqliteConnectOptions::new().filename(state_dir.join("floor.db")).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    sqlx::query("CREATE TABLE floor (n INTEGER)").execute(&pool).await?;
    let begin = Instant::now();
    let mut commits = 0.0;
    while begin.elapsed() < FLOOR {
        sqlx::query("INSERT INTO floor VALUES (1)").execute(&pool).await?;
        commits += 1.0;
    }
    let per_second = commits / begin.elapsed().as_secs_f64();
    pool.close().await;
    Ok(per_second)
}

async fn postgres_floor(url: &str) -> Result<f64, Fail> {
    let pool = sqlx::PgPool::connect(url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS floor (n BIGINT)").execute(&pool).await?;
    let commits = Arc::new(AtomicUsize::new(0));
    let begin = Instant::now();
    let mut writers = JoinSet::new();
    for _ in 0..CALLERS / 2 {
        let (pool, commits) = (pool.clone(), Arc::clone(&commits));
        writers.spawn(async move {
            while begin.elapsed() < FLOOR {
                sqlx::query("INSERT INTO floor VALUES (1)").execute(&pool).await?;
                commits.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, sqlx::Error>(())
        });
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    let per_second =
        f64::from(u32::try_from(commits.load(Ordering::Relaxed))?) / begin.elapsed().as_secs_f64();
    sqlx::query("DROP TABLE floor").execute(&pool).await?;
    pool.close().await;
    Ok(per_second)
}

/// Drafts, which are not part of what is measured.
async fn drafts(client: &Arc<Client>, count: usize) -> Result<Vec<Value>, Fail> {
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let client = Arc::clone(client);
        callers.spawn(async move {
            let mut made = Vec::new();
            for n in 0..count.div_ceil(CALLERS) {
                let task = json!({"name": format!("draft {n}"), "type": "training"});
                made.push(client.call_value("tasks.create", &task).await?["id"].clone());
            }
            Ok::<_, Fail>(made)
        });
    }
    let mut all = Vec::new();
    while let Some(made) = callers.join_next().await {
        all.extend(made??);
    }
    Ok(all)
}

async fn complete(client: &Client, entry: &Value) -> Result<(), Fail> {
    let done = json!({"task": entry["task"], "run": entry["run"], "force": true});
    client.call_value("tasks.completed", &done).await?;
    Ok(())
}

async fn one_by_one(client: &Arc<Client>, queue: &Value, cycles: usize) -> Result<f64, Fail> {
    let tasks = drafts(client, cycles).await?;
    let begin = Instant::now();
    let mut callers = JoinSet::new();
    for part in tasks.chunks(tasks.len().div_ceil(CALLERS)) {
        let (client, queue, part) = (Arc::clone(client), queue.clone(), part.to_vec());
        callers.spawn(async move {
            for task in part {
                client.call_value("tasks.enqueue", &json!({"task": task, "queue": queue})).await?;
                let taken = client.call_value("queues.get_next_task", &json!({"queue": queue})).await?;
                complete(&client, &taken["entry"]).await?;
            }
            Ok::<_, Fail>(())
        });
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    per_second(tasks.len(), begin)
}

async fn in_batches(client: &Arc<Client>, queue: &Value, cycles: usize) -> Result<f64, Fail> {
    let tasks = drafts(client, cycles).await?;
    let begin = Instant::now();
    let mut callers = JoinSet::new();
    for part in tasks.chunks(BATCH) {
        let (client, queue, part) = (Arc::clone(client), queue.clone(), part.to_vec());
        callers.spawn(async move {
            client.call_value("tasks.enqueue_many", &json!({"ids": part, "queue": queue})).await?;
            // Takes as many tasks as it queued, of any caller. While others take tasks, one call may get fewer than
            // there are.
            let mut left = part.len();
            while left > 0 {
                let take = json!({"queue": queue, "count": left});
                let taken = client.call_value("cantle.take_tasks", &take).await?;
                let runs = &taken["entries"];
                left -= runs.as_array().ok_or("no entries")?.len();
                client.call_value("cantle.complete_tasks", &json!({"runs": runs, "force": true})).await?;
            }
            Ok::<_, Fail>(())
        });
        if callers.len() >= CALLERS / 4 {
            callers.join_next().await.ok_or("nobody")???;
        }
    }
    while let Some(done) = callers.join_next().await {
        done??;
    }
    per_second(tasks.len(), begin)
}

fn per_second(tasks: usize, begin: Instant) -> Result<f64, Fail> {
    Ok(f64::from(u32::try_from(tasks)?) / begin.elapsed().as_secs_f64())
}

/// From before each enqueue to after the answer that hands the task out.
async fn pickup(client: &Arc<Client>, queue: &Value, count: usize) -> Result<Vec<Duration>, Fail> {
    let tasks = drafts(client, count).await?;
    let begun: Arc<std::sync::Mutex<std::collections::BTreeMap<String, Instant>>> = Arc::default();
    let left = Arc::new(AtomicUsize::new(tasks.len()));
    let mut agents = JoinSet::new();
    for _ in 0..AGENTS {
        let (client, queue) = (Arc::clone(client), queue.clone());
        let (begun, left) = (Arc::clone(&begun), Arc::clone(&left));
        agents.spawn(async move {
            let mut times = Vec::new();
            while left.load(Ordering::Relaxed) > 0 {
                let next = json!({"queue": queue, "wait_ms": 1000});
                let taken = client.call_value("queues.get_next_task", &next).await?;
                let Some(task) = taken["entry"]["task"].as_str() else { continue };
                let at = begun.lock().map_err(|_| "poisoned")?.get(task).copied();
                times.push(at.ok_or("a task that nobody enqueued")?.elapsed());
                left.fetch_sub(1, Ordering::Relaxed);
                complete(&client, &taken["entry"]).await?;
            }
            Ok::<_, Fail>(times)
        });
    }
    let mut ticks = interval(Duration::from_micros(1_000_000 / PER_SECOND));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut submitting = JoinSet::new();
    for task in tasks {
        ticks.tick().await;
        let (client, queue, begun) = (Arc::clone(client), queue.clone(), Arc::clone(&begun));
        submitting.spawn(async move {
            let id = task.as_str().unwrap_or_default().to_owned();
            begun.lock().map_err(|_| "poisoned")?.insert(id, Instant::now());
            client.call_value("tasks.enqueue", &json!({"task": task, "queue": queue})).await?;
            Ok::<_, Fail>(())
        });
    }
    while let Some(done) = submitting.join_next().await {
        done??;
    }
    let mut times = Vec::new();
    while let Some(of_agent) = agents.join_next().await {
        times.extend(of_agent??);
    }
    Ok(times)
}
