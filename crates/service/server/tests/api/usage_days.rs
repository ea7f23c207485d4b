//! Days that are over are kept, and a report from them equals one from the runs.

use std::time::Duration;

use cantle_clearml::usage::{GetUsage, Usage, UsageKey};
use cantle_model::{GpuUuid, Measured, Milli, ProjectQuota, Quota, Slice, TaskStatus};
use cantle_server::ServerConfig;
use cantle_store::{Change, DAY_US, GpuTimeRow, NewTask, Store, TaskClaim, Terms, UsageForm};
use cantle_usage::UsagePart;
use serde_json::json;

use crate::common::TestServer;

const FORM: UsageForm = UsageForm(UsagePart::FORM);
const HOUR_US: i64 = DAY_US / 24;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

/// A task of this project that had this share from then to then.
async fn ran(store: &Store, id: &str, project: &str, queue: &str, milli: u32, (from_us, to_us): (i64, i64)) {
    let new = NewTask {
        id: id.into(),
        name: format!("train {id}"),
        kind: "training".into(),
        project: Some(project.into()),
        owner: "ann".into(),
        tags: vec![format!("team:{}", milli % 7)],
        ..NewTask::default()
    };
    store.submit(&new, queue, &at(from_us - 60_000_000)).await.unwrap();
    store.take_next(queue, None, from_us).await.unwrap().unwrap();
    let gpu = GpuUuid(if milli < 500 { "GPU-a" } else { "GPU-b" }.to_owned());
    let slice = Slice { gpu, milli: Milli(milli), memory_limit_bytes: u64::from(milli) << 20, mig: None };
    let claim = |exit_code| TaskClaim {
        task: id.into(),
        node: "n".into(),
        lease: id.into(),
        run: None,
        slices: vec![slice.clone()],
        exit_code,
        reason: None,
        measured: Measured { peak_bytes: Some(100 << 20), gpu_time_us: None },
        terms: Terms { preemptible: true, ..Terms::default() },
    };
    store.claim(&claim(None), from_us).await.unwrap();
    store.set_status(id, TaskStatus::InProgress, &at(from_us)).await.unwrap();
    store.claim(&claim(Some(0)), to_us).await.unwrap();
    store.set_status(id, TaskStatus::Completed, &at(to_us)).await.unwrap();
}

pub(crate) async fn usage(server: &TestServer, (from_us, to_us): (i64, i64), by: &[&str]) -> Usage {
    let by: Vec<UsageKey> = by.iter().map(|key| key.parse().unwrap()).collect();
    let [from, to] = [from_us, to_us].map(|us| jiff::Timestamp::from_microsecond(us).unwrap().to_string());
    server.client.call(&GetUsage { from, to, by, ..GetUsage::default() }).await.unwrap()
}

/// Until the server has made all of these days.
async fn wait_until_kept(server: &TestServer, store: &Store, first: i64, end: i64) {
    for _ in 0..200 {
        // As if they had been marked long ago.
        server.meddle("UPDATE usage_days SET marked_us = 1 WHERE part IS NULL").await;
        if store.kept_usage_days(FORM, first, end).await.unwrap().into_iter().eq(first..end) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the days from {first} to {end} were not kept");
}

const REPORTS: [&[&str]; 7] = [
    &["project"],
    &["task", "gpu"],
    &["day", "side"],
    &["user", "queue"],
    &["label:team", "month"],
    &["node", "pool"],
    &["model"],
];

/// Two GPUs from the first day on, a quota from the fourth, and six runs.
pub(crate) async fn fill(store: &Store, project: &str, queue: &str, first: i64) {
    let time = |gpu: &str| GpuTimeRow {
        gpu: gpu.into(),
        from_us: first * DAY_US + HOUR_US,
        to_us: None,
        node: "n".into(),
        model: "A100".into(),
        pools: "lab".into(),
        state: "here".into(),
    };
    store.begin_gpu_times(&[time("GPU-a"), time("GPU-b")]).await.unwrap();
    let quota = ProjectQuota { gpu: Quota { deserved: Some(400), ..Quota::NONE }, ..ProjectQuota::default() };
    store.set_quota("vision", Some(&quota), "ann", (first + 3) * DAY_US + 5).await.unwrap();
    for (number, (milli, from_h, hours)) in
        [(250, 5, 3), (300, 20, 30), (700, 30, 100), (125, 31, 200), (600, 140, 1), (480, 239, 10)]
            .into_iter()
            .enumerate()
    {
        let from_us = first * DAY_US + from_h * HOUR_US;
        let held = (from_us, from_us + hours * HOUR_US);
        ran(store, &format!("{number:032x}"), project, queue, milli, held).await;
    }
}

#[tokio::test]
async fn kept_days_change_no_report() {
    let config = ServerConfig { start_within: Duration::from_millis(200), ..ServerConfig::default() };
    let server = TestServer::start_with(tempfile::tempdir().unwrap(), config).await;
    let (queue, store) = (server.queue("q").await, server.store().await);
    let project = server.client.call_value("projects.create", &json!({"name": "vision"})).await.unwrap();
    let project = project["id"].as_str().unwrap();
    let today = jiff::Timestamp::now().as_microsecond().div_euclid(DAY_US);
    let (first, end) = (today - 12, today - 1);
    fill(&store, project, &queue, first).await;
    // Whole days, and a time that begins and ends within a day.
    let spans = [
        (first * DAY_US, end * DAY_US),
        (first * DAY_US + 7 * HOUR_US + 11, (end - 2) * DAY_US + 13 * HOUR_US + 3),
    ];
    let all = async || {
        let mut all = Vec::new();
        for span in spans {
            for by in REPORTS {
                let usage = usage(&server, span, by).await;
                assert!(usage.gpus.iter().all(|gpu| gpu.closes), "{by:?}: {:#?}", usage.gpus);
                all.push((usage.lines, usage.gpus));
            }
        }
        all
    };
    let from_runs = all().await;
    assert!(
        from_runs[0].0.iter().any(|line| line.runs == 6 && line.guaranteed_gpu_seconds > 0.0),
        "{from_runs:#?}"
    );
    assert_eq!(store.kept_usage_days(FORM, first, today).await.unwrap(), Vec::<i64>::new());
    wait_until_kept(&server, &store, first, end).await;
    let from_days = all().await;
    for (kept, read) in from_days.iter().zip(&from_runs) {
        assert_eq!(kept, read);
    }

    // A name that is forgotten is in no report any more: the days of its run are made again.
    let task = format!("{:032x}", 2);
    let delete = json!({"task": task, "cantle_forget_name": true});
    server.client.call_value("tasks.delete", &delete).await.unwrap();
    let kept = store.kept_usage_days(FORM, first, end).await.unwrap();
    assert!((first + 1..first + 6).all(|day| !kept.contains(&day)), "{kept:?}");
    let named = async || {
        let report = usage(&server, spans[0], &["task"]).await;
        report.lines.into_iter().find(|line| line.keys[0] == task).unwrap().name
    };
    assert_eq!(named().await, None);
    wait_until_kept(&server, &store, first, end).await;
    assert_eq!(named().await, None);
    let other = usage(&server, spans[0], &["task"]).await.lines;
    assert!(other.iter().any(|line| line.name.as_deref() == Some("train 00000000000000000000000000000003")));
}
