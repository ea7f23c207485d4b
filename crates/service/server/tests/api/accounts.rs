//! Accounts over the wire: which side of a quota runs were on, what projects lent, and pools and labels.

use std::time::Duration;

use cantle_clearml::cantle::{DirectSlice, GpuView, ReportNode, SliceView};
use cantle_clearml::pools::SetPool;
use cantle_clearml::quotas::{GetProjects, SetQuota};
use cantle_clearml::usage::{GetUsage, Usage, UsageKey, UsageKind, UsageLine};
use cantle_clearml::{Client, Credentials};
use cantle_model::{ProjectQuota, Quota};
use serde_json::json;

use crate::common::{TestServer, gpu_view};

async fn node(server: &TestServer, gpus: &[&str]) {
    server
        .report_gpus(
            "n",
            (0..).zip(gpus).map(|(index, uuid)| GpuView { index, ..gpu_view(uuid, "A100") }).collect(),
        )
        .await;
}

async fn quota(server: &TestServer, project: &str, milli: u64) {
    let gpu = Quota { deserved: Some(milli), ..Quota::NONE };
    let quota = (milli > 0).then(|| ProjectQuota { gpu, ..ProjectQuota::default() });
    server.client.call(&SetQuota { project: project.into(), quota }).await.unwrap();
}

/// A task of this project with these tags, that holds such a share.
async fn runs(
    server: &TestServer,
    queue: &str,
    project: &str,
    tags: &[&str],
    (gpu, milli): (&str, u32),
) -> String {
    let call = |endpoint: &'static str, body| async move {
        server.client.call_value(endpoint, &body).await.unwrap()
    };
    let found = call("projects.get_all", json!({"name": format!("^{project}$")})).await;
    let new = json!({"name": "t", "type": "training", "project": found["projects"][0]["id"], "tags": tags});
    let task = call("tasks.create", new).await["id"].as_str().unwrap().to_owned();
    call("tasks.enqueue", json!({"task": task, "queue": queue})).await;
    call("queues.get_next_task", json!({"queue": queue})).await;
    let slice = json!({"gpu": gpu, "milli": milli, "memory_limit_bytes": 1 << 30});
    call(
        "cantle.report_task",
        json!({"task": task, "node": "n", "lease": format!("of {task}"), "slices": [slice]}),
    )
    .await;
    call("tasks.started", json!({"task": task})).await;
    task
}

async fn ends(server: &TestServer, task: &str) {
    let report = json!({"task": task, "node": "n", "lease": format!("of {task}"), "exit_code": 0});
    server.client.call_value("cantle.report_task", &report).await.unwrap();
    server.client.call_value("tasks.completed", &json!({"task": task})).await.unwrap();
}

async fn usage(server: &TestServer, by: &[&str]) -> Usage {
    let by = by.iter().map(|key| key.parse().unwrap()).collect();
    let (from, to) = ("2020-01-01T00:00:00Z".to_owned(), "2100-01-01T00:00:00Z".to_owned());
    server.client.call(&GetUsage { from, to, by, ..GetUsage::default() }).await.unwrap()
}

fn line<'a>(usage: &'a Usage, keys: &[&str]) -> &'a UsageLine {
    let found = usage.lines.iter().find(|line| line.keys == keys);
    found.unwrap_or_else(|| panic!("{keys:?} is not in {:#?}", usage.lines))
}

#[tokio::test]
async fn a_run_that_changes_its_side_has_two_lines() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, &["GPU-a", "GPU-b"]).await;
    quota(&server, "vision", 500).await;
    quota(&server, "speech", 1500).await;
    let first = runs(&server, &queue, "vision", &[], ("GPU-a", 500)).await;
    let second = runs(&server, &queue, "vision", &[], ("GPU-a", 500)).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    ends(&server, &first).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    ends(&server, &second).await;

    let found = usage(&server, &["task", "side"]).await;
    let had = |task: &str, side| line(&found, &[task, side]).gpu_seconds;
    assert!(
        had(&first, "guaranteed") >= 0.025
            && had(&second, "borrowed") >= 0.025
            && had(&second, "guaranteed") >= 0.025
    );
    assert!(!found.lines.iter().any(|line| line.keys == [&*first, "borrowed"]), "it never borrowed");
    let whole = usage(&server, &["task"]).await;
    let all = line(&whole, &[&second]);
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    assert!(
        close(all.guaranteed_gpu_seconds, had(&second, "guaranteed"))
            && close(all.borrowed_gpu_seconds, had(&second, "borrowed"))
    );
    assert!(close(all.gpu_seconds, all.guaranteed_gpu_seconds + all.borrowed_gpu_seconds));
    assert_eq!(all.lent_gpu_seconds, None, "a task lends nothing");

    // All that was borrowed is of the quota of the other project: both together are guaranteed all GPUs.
    let projects = usage(&server, &["project"]).await;
    let (vision, speech) = (line(&projects, &["vision"]), line(&projects, &["speech"]));
    assert!(close(speech.lent_gpu_seconds.unwrap(), vision.borrowed_gpu_seconds), "{speech:?} {vision:?}");
    assert_eq!((speech.gpu_seconds, vision.lent_gpu_seconds), (0.0, Some(0.0)));
    assert!(whole.gpus.iter().all(|gpu| gpu.closes));
}

#[tokio::test]
async fn a_suspended_run_holds_no_gpu() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, &["GPU-a", "GPU-b"]).await;
    quota(&server, "vision", 1000).await;
    let task = runs(&server, &queue, "vision", &[], ("GPU-a", 500)).await;
    let holds = async |slices: &[(&str, u32)]| {
        let slice =
            |(gpu, milli): &(&str, u32)| json!({"gpu": gpu, "milli": milli, "memory_limit_bytes": 1 << 30});
        let slices: Vec<_> = slices.iter().map(slice).collect();
        let report = json!({"task": task, "node": "n", "lease": format!("of {task}"), "slices": slices});
        server.client.call_value("cantle.report_slices", &report).await.unwrap();
        let projects = server.client.call(&GetProjects {}).await.unwrap();
        projects.projects.iter().find(|project| project.name == "vision").unwrap().allocated_milli
    };
    tokio::time::sleep(Duration::from_millis(40)).await;
    assert_eq!(holds(&[]).await, 0);
    let before = usage(&server, &["task", "gpu"]).await;
    let on_a = line(&before, &[&task, "GPU-a"]).gpu_seconds;
    assert!(on_a >= 0.02);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(holds(&[("GPU-b", 250)]).await, 250);
    tokio::time::sleep(Duration::from_millis(40)).await;
    ends(&server, &task).await;
    let after = usage(&server, &["task", "gpu"]).await;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    assert!(
        close(line(&after, &[&task, "GPU-a"]).gpu_seconds, on_a),
        "it had this GPU before it was suspended only"
    );
    let on_b = line(&after, &[&task, "GPU-b"]);
    assert!(on_b.gpu_seconds >= 0.01 && close(on_b.gpu_seconds, on_b.guaranteed_gpu_seconds), "{on_b:?}");
    assert!(after.gpus.iter().all(|gpu| gpu.closes && gpu.late_seconds == 0.0));
    let whole = usage(&server, &["task"]).await;
    assert!(close(line(&whole, &[&task]).gpu_seconds, on_a + on_b.gpu_seconds));
}

#[tokio::test]
async fn a_changed_quota_does_not_change_what_was() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, &["GPU-a"]).await;
    quota(&server, "vision", 1000).await;
    let task = runs(&server, &queue, "vision", &[], ("GPU-a", 1000)).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    quota(&server, "vision", 250).await;
    let guaranteed = |usage: &Usage| line(usage, &[&task]).guaranteed_gpu_seconds;
    let before = guaranteed(&usage(&server, &["task"]).await);
    assert!(before >= 0.03);
    tokio::time::sleep(Duration::from_millis(200)).await;
    quota(&server, "vision", 0).await;
    let then = usage(&server, &["task"]).await;
    assert!(guaranteed(&then) - before >= 0.05, "a quarter of 0.2 s");
    assert!(line(&then, &[&task]).borrowed_gpu_seconds >= 0.15);
    tokio::time::sleep(Duration::from_millis(30)).await;
    let last = usage(&server, &["task"]).await;
    assert!(guaranteed(&last) - guaranteed(&then) < 0.01, "nothing is guaranteed any more");
    // A project that is deleted keeps what it had.
    ends(&server, &task).await;
    server.client.call_value("tasks.delete", &json!({"task": task})).await.unwrap();
    let id = server.client.call_value("projects.get_all", &json!({"name": "^vision$"})).await.unwrap();
    let delete = json!({"project": id["projects"][0]["id"], "force": true});
    server.client.call_value("projects.delete", &delete).await.unwrap();
    assert!(guaranteed(&usage(&server, &["task"]).await) >= guaranteed(&then));
}

#[tokio::test]
async fn time_is_added_up_by_pool_and_label() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, &["GPU-a", "GPU-b"]).await;
    quota(&server, "vision", 100).await;
    let task = runs(&server, &queue, "vision", &["team:nlp", "urgent"], ("GPU-a", 500)).await;
    let other = runs(&server, &queue, "vision", &["team=ocr"], ("GPU-b", 250)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let early = usage(&server, &["pool", "gpu"]).await;
    assert!(early.lines.iter().all(|line| line.keys[0].is_empty()), "there is no pool yet");
    for pool in ["lab", "fast"] {
        let pool = SetPool { pool: pool.into(), nodes: Vec::new(), models: vec!["A*".into()] };
        server.client.call(&pool).await.unwrap();
    }
    // The GPUs are in them from the next report on.
    node(&server, &["GPU-a", "GPU-b"]).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    // Tags that change later are those of the next run.
    server
        .client
        .call_value("tasks.edit", &json!({"task": other, "tags": ["team=new"], "force": true}))
        .await
        .unwrap();
    ends(&server, &task).await;
    ends(&server, &other).await;

    let pools = usage(&server, &["pool"]).await;
    let of = |keys: &[&str]| -> f64 {
        pools.lines.iter().filter(|line| line.keys == keys).map(|line| line.gpu_seconds).sum()
    };
    let all: f64 = pools.gpus.iter().map(|gpu| gpu.recorded_seconds).sum();
    assert!(of(&["fast,lab"]) >= 0.04 && of(&[""]) >= 0.04, "{:?}", pools.lines);
    assert!((of(&["fast,lab"]) + of(&[""]) - all).abs() < 1e-6);

    let labels = usage(&server, &["label:team"]).await;
    assert!(line(&labels, &["nlp"]).gpu_seconds >= 0.02 && line(&labels, &["ocr"]).gpu_seconds >= 0.01);
    assert!(!labels.lines.iter().any(|line| line.keys == ["new"]));
    let none = usage(&server, &["label:urgent"]).await;
    let allocated: Vec<_> = none.lines.iter().filter(|line| line.kind == UsageKind::Allocated).collect();
    assert!(allocated.len() == 1 && allocated[0].keys == [""], "a tag without a value is no label");
    assert_eq!("label:team".parse(), Ok(UsageKey::Label("team".into())));
    let wrong = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-02-01T00:00:00Z", "by": ["team"]});
    let error = server.client.call_value("cantle.get_usage", &wrong).await.unwrap_err().to_string();
    assert!(error.contains("\"team\" is none of project, user"), "{error}");
}

#[tokio::test]
async fn what_is_forgotten_changes_no_sum() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, &["GPU-a"]).await;
    quota(&server, "vision", 100).await;
    let ended = runs(&server, &queue, "vision", &["team:nlp"], ("GPU-a", 250)).await;
    let lasts = runs(&server, &queue, "vision", &["team:nlp"], ("GPU-a", 500)).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    ends(&server, &ended).await;
    let of =
        |usage: &Usage, task: &str| usage.lines.iter().find(|line| line.keys[0] == task).unwrap().clone();
    let keys = ["task", "user", "label:team"];
    let before = usage(&server, &keys).await;
    let (user, had) = (of(&before, &ended).keys[1].clone(), of(&before, &ended).gpu_seconds);
    assert!(!user.is_empty() && had > 0.0);

    let forget =
        async |user: &str| server.client.call_value("cantle.forget_user", &json!({"user": user})).await;
    assert_eq!(forget(&user).await.unwrap(), json!({"runs": 1, "lasting": 1}));
    assert!(forget("nobody").await.unwrap_err().to_string().contains("nobody"));
    let after = usage(&server, &keys).await;
    assert_eq!(
        of(&after, &ended),
        UsageLine { keys: vec![ended.clone(), String::new(), "nlp".into()], ..of(&before, &ended) }
    );
    assert_eq!(of(&after, &lasts).keys[1], user, "it lasts");

    // A deleted task keeps its name in the accounts, unless it is to be forgotten.
    ends(&server, &lasts).await;
    for (task, body) in
        [(&ended, json!({"task": ended, "cantle_forget_name": true})), (&lasts, json!({"task": lasts}))]
    {
        server
            .client
            .call_value("tasks.delete", &body)
            .await
            .unwrap_or_else(|error| panic!("{task}: {error}"));
    }
    let last = usage(&server, &keys).await;
    assert_eq!((of(&last, &ended).name, of(&last, &lasts).name), (None, Some("t".to_owned())));
    assert_eq!((of(&last, &ended).keys[2].as_str(), of(&last, &lasts).keys[2].as_str()), ("", "nlp"));
    assert!((of(&last, &ended).gpu_seconds - had).abs() < 1e-9 && last.gpus[0].closes);
}

/// A GPU with a slice of no task, which was taken some seconds ago.
fn with_direct(lease: &str) -> GpuView {
    let slice = SliceView {
        task: "run-17".into(),
        lease: lease.into(),
        milli: 500,
        memory_limit_bytes: 20 << 30,
        memory_used_bytes: 0,
        mig: None,
        enforcement: None,
        enforced_by: Vec::new(),
        processes: Vec::new(),
        compute: None,
        direct: Some(DirectSlice {
            name: "python3".into(),
            since_ms: Some(jiff::Timestamp::now().as_millisecond() - 50),
            owner: "unix:ann".into(),
        }),
    };
    GpuView { slices: vec![slice], ..gpu_view("GPU-a", "A100") }
}

#[tokio::test]
async fn a_slice_of_no_task_has_its_line_and_its_account() {
    let server = TestServer::start().await;
    node(&server, &["GPU-a"]).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.report_gpus("n", vec![with_direct("lease-1")]).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    node(&server, &["GPU-a"]).await;
    let by_task = usage(&server, &["task"]).await;
    let had = line(&by_task, &["lease-1"]);
    assert_eq!((had.name.as_deref(), had.runs), (Some("python3"), 1));
    // Half of the time from when it was taken, not from when it was reported.
    assert!(had.gpu_seconds >= 0.05, "{had:?}");
    assert!(by_task.gpus.iter().all(|gpu| gpu.closes && gpu.late_seconds == 0.0), "{:?}", by_task.gpus);
    let by_user = usage(&server, &["user"]).await;
    assert_eq!(line(&by_user, &["unix:ann"]).runs, 1);
    let later = usage(&server, &["task"]).await;
    assert_eq!(line(&later, &["lease-1"]).gpu_seconds.to_bits(), had.gpu_seconds.to_bits(), "it has ended");

    // A member sees that it was there, and not what it was.
    server.client.call_value("projects.create", &json!({"name": "own"})).await.unwrap();
    let new = json!({"name": "ann", "role": "member", "project": "own"});
    let ann = server.client.call_value("cantle.add_user", &new).await.unwrap();
    let text = |field: &str| ann[field].as_str().unwrap().to_owned();
    let keys = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
    let ann = Client::new(server.client.url(), keys).unwrap();
    let (from, to) = ("2020-01-01T00:00:00Z".to_owned(), "2100-01-01T00:00:00Z".to_owned());
    let hers =
        ann.call(&GetUsage { from, to, by: vec![UsageKey::Task], ..GetUsage::default() }).await.unwrap();
    assert_eq!(line(&hers, &["(others)"]).name, None);
    server.report_gpus("n", vec![with_direct("lease-2")]).await;
    let seen = ann.call_value("cantle.get_nodes", &json!({})).await.unwrap();
    let slice = &seen["nodes"][0]["gpus"][0]["slices"][0];
    assert!(slice["milli"] == 500 && slice["task"] == "" && slice.get("direct").is_none(), "{slice}");
}

#[tokio::test]
async fn a_slice_of_no_task_ends_with_the_last_report_of_its_node() {
    let server = TestServer::start().await;
    let report = ReportNode {
        node: "n".into(),
        worker: "n:dgpu0".into(),
        gpus: vec![with_direct("lease-1")],
        interval_ms: 1,
        ..ReportNode::default()
    };
    server.client.call(&report).await.unwrap();
    let mut had = f64::MAX;
    for _ in 0..300 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = line(&usage(&server, &["task"]).await, &["lease-1"]).gpu_seconds;
        if now.to_bits() == had.to_bits() {
            assert!(now < 0.5, "{now} s of half a GPU");
            return;
        }
        had = now;
    }
    panic!("it goes on: {had} s");
}
