//! Measures reports of usage: `usage_year STATE_DIR [RUNS] [GPUS] [DATABASE]` writes a year of runs into a new server's database, waits until the
//! server has made the sums of all days, asks for reports, and prints the times. With `CANTLE_BENCH_HOLD=1` it exits with 1 if a promise of
//! SPECIFICATION.md is broken. `make bench` runs it.

mod common;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cantle_clearml::Client;
use cantle_clearml::usage::{GetAdvice, GetUsage, UsageKey};
use cantle_server::CredentialsFile;
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool, SqlitePool, raw_sql};
use tokio::time::{Instant, sleep};

use common::{Fail, Served, is_judged, percentile, say};

const DAYS: i64 = 365;
const DAY_US: i64 = 86_400_000_000;
const ASKED: usize = 5;
/// Rows of a statement.
const ROWS: usize = 500;
const PROJECTS: usize = 50;
/// The promises of SPECIFICATION.md for a report of the year, and for one of a month.
const YEAR_MS: f64 = 1000.0;
const MONTH_MS: f64 = 300.0;

#[tokio::main]
async fn main() -> Result<ExitCode, Fail> {
    let mut args = std::env::args().skip(1);
    let state_dir: PathBuf =
        args.next().ok_or("usage: usage_year STATE_DIR [RUNS] [GPUS] [DATABASE]")?.into();
    let runs: usize = args.next().map_or(Ok(2_000_000), |count| count.parse())?;
    let gpus: usize = args.next().map_or(Ok(1000), |count| count.parse())?;
    let database = args.next();
    let served = Served::start(&state_dir, database.as_deref())?;
    let keys = CredentialsFile::read(&state_dir)?.ok_or("no credentials")?;
    let client = Client::new(&keys.url, keys.credentials())?;
    let address = database
        .clone()
        .unwrap_or_else(|| format!("sqlite:{}", state_dir.join("server/cantle.db").display()));
    let pool = Pool::connect(&address).await?;
    let today = jiff::Timestamp::now().as_microsecond().div_euclid(DAY_US);
    let from_us = (today - DAYS) * DAY_US;
    let begin = Instant::now();
    fill(&pool, &client, (runs, gpus), from_us, today * DAY_US).await?;
    pool.execute(if database.is_some() { "VACUUM (ANALYZE)" } else { "ANALYZE" }.to_owned()).await?;
    say(&format!("{runs} runs on {gpus} GPUs written in {:.0} s", begin.elapsed().as_secs_f64()));
    let mut broken = 0;
    let a_day = (day_of(from_us + 180 * DAY_US), day_of(from_us + 181 * DAY_US));
    broken +=
        report(&client, "of a day in the middle, from its runs", &a_day, &["project"], f64::MAX).await?;
    let begin = Instant::now();
    loop {
        let kept = pool.count("SELECT COUNT(*) FROM usage_days WHERE part IS NOT NULL").await?;
        if kept >= DAYS {
            break;
        }
        if begin.elapsed() > Duration::from_secs(1800) {
            return Err(format!("only {kept} days are kept after half an hour").into());
        }
        sleep(Duration::from_secs(1)).await;
    }
    say(&format!("the sums of {DAYS} days are made in {:.0} s", begin.elapsed().as_secs_f64()));
    let year = (day_of(from_us), day_of(today * DAY_US));
    let month = (day_of((today - 30) * DAY_US), day_of(today * DAY_US));
    for (keys, limit_ms) in [
        (&["project"][..], YEAR_MS),
        (&["user", "queue"], YEAR_MS),
        (&["project", "side"], YEAR_MS),
        (&["node"], YEAR_MS),
        (&["gpu"], YEAR_MS),
        (&["model", "pool", "month"], YEAR_MS),
        (&["label:team"], YEAR_MS),
        (&["day", "project"], YEAR_MS),
    ] {
        broken += report(&client, "of the year", &year, keys, limit_ms).await?;
    }
    for keys in [&["project"][..], &["day", "project"], &["day", "user"]] {
        broken += report(&client, "of a month", &month, keys, MONTH_MS).await?;
    }
    say(&format!("the server holds {} MiB", served.memory_kib()? >> 10));
    let begin = Instant::now();
    let (from, to) = month;
    let by = vec![UsageKey::Task];
    let unused = GetUsage { from: from.clone(), to: to.clone(), by, most_unused: Some(10), prices: None };
    client.call(&unused).await?;
    say(&format!(
        "the tasks of a month with most unused memory: {:.0} ms",
        begin.elapsed().as_secs_f64() * 1e3
    ));
    let begin = Instant::now();
    client.call(&GetAdvice { from, to }).await?;
    say(&format!("the advice of a month: {:.0} ms", begin.elapsed().as_secs_f64() * 1e3));
    say(&format!("the server holds {} MiB; {broken} promises broken", served.memory_kib()? >> 10));
    Ok(if is_judged() && broken > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The server's database.
enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Pool {
    async fn connect(address: &str) -> Result<Self, Fail> {
        match address.starts_with("sqlite:") {
            true => Ok(Self::Sqlite(SqlitePool::connect(address).await?)),
            false => Ok(Self::Postgres(PgPool::connect(address).await?)),
        }
    }

    async fn execute(&self, text: String) -> Result<(), Fail> {
        match self {
            Self::Sqlite(pool) => raw_sql(AssertSqlSafe(text)).execute(pool).await.map(|_| ())?,
            Self::Postgres(pool) => raw_sql(AssertSqlSafe(text)).execute(pool).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn count(&self, text: &'static str) -> Result<i64, Fail> {
        Ok(match self {
            Self::Sqlite(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
            Self::Postgres(pool) => sqlx::query_scalar(text).fetch_one(pool).await?,
        })
    }
}

fn day_of(at_us: i64) -> String {
    jiff::Timestamp::from_microsecond(at_us).map(|at| at.to_string()).unwrap_or_default()
}

/// Prints the times of a report; 1 if it takes longer than that.
async fn report(
    client: &Client,
    what: &str,
    (from, to): &(String, String),
    by: &[&str],
    limit_ms: f64,
) -> Result<u32, Fail> {
    let keys = by.iter().map(|key| key.parse()).collect::<Result<Vec<_>, _>>()?;
    let request = GetUsage { from: from.clone(), to: to.clone(), by: keys, ..GetUsage::default() };
    let (mut times, mut lines, mut open) = (Vec::new(), 0, 0);
    for _ in 0..ASKED {
        let begin = Instant::now();
        let usage = client.call(&request).await?;
        times.push(begin.elapsed());
        lines = usage.lines.len();
        open = usage.gpus.iter().filter(|gpu| !gpu.closes).count();
    }
    let (p50, most) = (percentile(&mut times, 50), percentile(&mut times, 99));
    let name = format!("{what} by {}", by.join(","));
    say(&format!("{name:50} {lines:7} lines  p50 {p50:7.0} ms  max {most:7.0} ms"));
    if open > 0 {
        return Err(format!("the accounts of {open} GPUs do not close").into());
    }
    Ok(u32::from(p50 > limit_ms))
}

/// Numbers that look random and are the same each time.
struct Mixed(u64);

impl Mixed {
    fn below(&mut self, limit: u64) -> u64 {
        let mut next = || {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            self.0 >> 33
        };
        // The upper bits are the mixed ones.
        ((next() << 31) | next()) % limit
    }
}

/// GPUs that are cut in quarters, each of which runs one task after the other.
async fn fill(
    pool: &Pool,
    client: &Client,
    (runs, gpus): (usize, usize),
    from_us: i64,
    to_us: i64,
) -> Result<(), Fail> {
    let mut projects = Vec::new();
    for n in 0..PROJECTS {
        let id = client.call_value("projects.create", &json!({"name": format!("p{n}")})).await?["id"].clone();
        projects.push(id.as_str().ok_or("no id")?.to_owned());
        if n % 5 == 0 {
            let quota = json!({"project": format!("p{n}"), "quota": {"gpu": {"deserved": gpus * 50}}});
            client.call_value("cantle.set_quota", &quota).await?;
        }
    }
    pool.execute(format!("UPDATE quota_times SET from_us = {from_us}")).await?;
    let uuid = |gpu: usize| format!("GPU-{gpu:08x}-0000-0000-0000-000000000000");
    let times = (0..gpus).map(|gpu| {
        let model = ["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"][gpu % 2];
        format!("('{}',{from_us},'node{}','{model}','lab','here')", uuid(gpu), gpu / 8)
    });
    let into = "INSERT INTO gpu_times (gpu, from_us, node, model, pools, state) VALUES ";
    insert(pool, into, times.collect()).await?;
    let (mut mixed, quarters) = (Mixed(7), gpus * 4);
    let mut free_us = vec![from_us; quarters];
    let mean_us = u64::try_from((to_us - from_us) * i64::try_from(quarters)? / i64::try_from(runs)?)?;
    for first in (0..runs).step_by(ROWS * 100) {
        let row = |n: usize| -> Result<String, Fail> {
            let (gpu, node) = (uuid(n % quarters / 4), n % quarters / 4 / 8);
            let length = i64::try_from(mean_us / 4 + mixed.below(mean_us * 3 / 2))?;
            let taken = free_us[n % quarters].min(to_us - 2);
            let ended = (taken + length).min(to_us - 1);
            free_us[n % quarters] = ended;
            let mut of = |count| mixed.below(count);
            let project = &projects[usize::try_from(of(PROJECTS as u64))?];
            let (queue, user, name, team) = (of(8), of(200), of(5000), of(12));
            let (queued, peak) = (taken - i64::try_from(of(600_000_000))?, of(10_000_000_000));
            let outcome = if of(50) == 0 { "queued" } else { "completed" };
            let slices = format!(r#"[{{"gpu":"{gpu}","milli":250,"memory_limit_bytes":10737418240}}]"#);
            Ok(format!(
                "('{n:032x}',1,'{project}','queue{queue}','user{user}','train-{name}','[\"team:t{team}\"]',{queued},{taken},{},{ended},\
                 'node{node}','{n:016x}','{slices}',250,0,'{outcome}',{peak},1)",
                taken + 1_000_000
            ))
        };
        let rows = (first..(first + ROWS * 100).min(runs)).map(row).collect::<Result<_, _>>()?;
        let into = "INSERT INTO runs (task, run, project, queue, owner, name, tags, queued_us, taken_us, started_us, ended_us, node, \
             lease, slices, milli, exit_code, outcome, peak_bytes, preemptible) VALUES ";
        insert(pool, into, rows).await?;
    }
    Ok(())
}

/// In one transaction.
async fn insert(pool: &Pool, into: &str, rows: Vec<String>) -> Result<(), Fail> {
    let statement = |rows: &[String]| format!("{into}{};", rows.join(","));
    let all: String = rows.chunks(ROWS).map(statement).collect();
    pool.execute(format!("BEGIN;{all}COMMIT")).await
}
