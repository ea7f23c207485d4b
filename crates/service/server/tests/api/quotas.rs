//! Quotas over the wire: what is refused and with which code, and that a restart loses nothing that decisions depend
//! on.

use std::time::Duration;

use cantle_clearml::cantle::{ExplainTask, ReportTask};
use cantle_clearml::leases::{ReportSlices, SetQueuePreempt};
use cantle_clearml::quotas::{
    Evict, Fleet, GetFleet, GetProjects, GetQuotas, GiveBack, ProjectViews, SetQuota, Victim,
};
use cantle_clearml::tasks::{Create, Edit, GetById, Started, Stop};
use cantle_clearml::{StopRequest, TaskRequest, projects};
use cantle_model::{Cause, Milli, Preempt, ProjectQuota, Quota, Slice, TaskStatus};
use cantle_server::ServerConfig;
use serde_json::{Map, json};

use crate::common::{TestServer, gpu_view};

fn grant(project: &str, deserved: u64, limit: Option<u64>) -> SetQuota {
    let gpu = Quota { deserved: Some(deserved), limit, weight: 1 };
    SetQuota { project: project.into(), quota: Some(ProjectQuota { gpu, ..ProjectQuota::default() }) }
}

async fn project(server: &TestServer, name: &str) -> String {
    let create = projects::Create { name: name.into(), ..projects::Create::default() };
    server.client.call(&create).await.unwrap().id
}

/// A waiting task of a project.
async fn submit(server: &TestServer, queue: &str, project: &str, name: &str) -> String {
    let id = server.task(name).await;
    let fields = Map::from_iter([("project".to_owned(), json!(project))]);
    server.client.call(&Edit { task: id.clone(), force: false, fields }).await.unwrap();
    server.enqueue(&id, queue).await;
    id
}

fn claim(task: &str, milli: u32) -> ReportTask {
    let slice = Slice { gpu: "GPU-a".into(), milli: Milli(milli), memory_limit_bytes: 1 << 30, mig: None };
    let (task, node, lease) = (task.to_owned(), "n".to_owned(), format!("lease of {task}"));
    ReportTask { task, node, lease, slices: vec![slice], ..ReportTask::default() }
}

/// A task that holds half a GPU.
async fn run(server: &TestServer, queue: &str, project: &str, name: &str) -> String {
    let id = submit(server, queue, project, name).await;
    assert_eq!(server.take(queue).await.as_ref(), Some(&id));
    server.client.call(&claim(&id, 500)).await.unwrap();
    server.client.call(&Started { task: id.clone(), ..Started::default() }).await.unwrap();
    id
}

async fn node(server: &TestServer) {
    server.report_gpus("n", vec![gpu_view("GPU-a", "A100")]).await;
}

async fn fleet(server: &TestServer, queue: &str) -> Fleet {
    let request = GetFleet { node: "n".into(), queues: vec![queue.to_owned()] };
    server.client.call(&request).await.unwrap()
}

async fn views(server: &TestServer) -> ProjectViews {
    server.client.call(&GetProjects {}).await.unwrap()
}

#[tokio::test]
async fn what_cannot_be_granted_is_refused() {
    let server = TestServer::start().await;
    assert_eq!(server.refused(&grant("a", 2000, Some(1000))).await, (400, 12), "a limit below the quota");
    assert_eq!(server.refused(&grant(" ", 1000, None)).await, (400, 12), "no name");
    assert_eq!(
        server.refused(&SetQuota { project: "a".into(), quota: None }).await,
        (400, 401),
        "no such project"
    );
    let of = |project: &str| GetQuotas { project: Some(project.into()) };
    assert_eq!(server.refused(&of("a")).await, (400, 401), "what was refused has made nothing");
    for (body, what) in [
        (r#"{"project": "a", "quota": {}}"#, "no GPU part"),
        (r#"{"project": "a", "quota": {"gpu": {"deserved": -1}}}"#, "less than nothing"),
        (r#"{"project": "a", "quota": {"gpu": {"deserved": 0.5}}}"#, "not in thousandths"),
        (r#"{"project": "a", "quota": {"gpu": {"deserved": 1}, "min_run_ms": -5}}"#, "a time before now"),
        (r#"{"project": 7, "quota": {"gpu": {"deserved": 1}}}"#, "a number for a name"),
    ] {
        let (status, subcode, answer) = server.raw("cantle.set_quota", body).await;
        assert_eq!((status, subcode), (400, 12), "{what}: {answer}");
    }
    server.client.call(&grant("a", 1000, Some(2000))).await.unwrap();
    let granted = server.client.call(&of("a")).await.unwrap().quotas;
    assert_eq!(granted[0].quota.gpu, Quota { deserved: Some(1000), limit: Some(2000), weight: 1 });
    server.client.call(&SetQuota { project: "a".into(), quota: None }).await.unwrap();
    assert_eq!(server.client.call(&of("a")).await.unwrap().quotas, [], "the project stays");
}

#[tokio::test]
async fn a_claim_beyond_the_limit_and_an_eviction_out_of_date_are_refused() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let lent = project(&server, "lent").await;
    server.client.call(&grant("lent", 0, Some(1000))).await.unwrap();
    let victim = run(&server, &queue, &lent, "victim").await;
    let over = submit(&server, &queue, &lent, "over").await;
    server.take(&queue).await.unwrap();
    assert_eq!(server.refused(&claim(&over, 501)).await, (400, 9001), "501 + 500 of 1000");
    server.client.call(&claim(&over, 500)).await.unwrap();

    server.client.call(&grant("owner", 1000, None)).await.unwrap();
    let owner = project_id(&server, "owner").await;
    let owner = submit(&server, &queue, &owner, "for it").await;
    let seen = fleet(&server, &queue).await.evictions;
    let wish = |task: &str, lease: String, for_task: &str, evictions: i64| {
        let (task, for_task) = (task.to_owned(), for_task.to_owned());
        Evict {
            node: "n".into(),
            victims: vec![Victim { task, lease, for_task, cause: Cause::Reclaim }],
            evictions,
            can_suspend: true,
        }
    };
    let lease = |task: &str| format!("lease of {task}");
    let refused = [
        (wish(&victim, "another lease".into(), &owner, seen), "it does not run under that lease"),
        (wish(&owner, lease(&owner), &owner, seen), "it does not run"),
        (wish(&victim, lease(&victim), &over, seen), "that one does not wait"),
        (wish(&victim, lease(&victim), &owner, seen + 1), "decided on another state"),
    ];
    for (request, why) in refused {
        assert_eq!(server.refused(&request).await, (400, 110), "{why}");
    }
    assert_eq!(server.refused(&wish("nope", lease("nope"), &owner, seen)).await, (400, 101));
    server.client.call(&wish(&victim, lease(&victim), &owner, seen)).await.unwrap();
    let reported = server.client.call(&GetById { task: victim.clone() }).await.unwrap().task;
    assert_eq!(reported.status_message, StopRequest::Evict.as_str(), "its abort callback is called");
    assert_eq!(server.refused(&wish(&victim, lease(&victim), &owner, seen)).await, (400, 110), "once");
    let back = |lease: String| GiveBack { task: victim.clone(), lease, reason: "it stopped".into() };
    server.client.call(&back("another lease".into())).await.unwrap();
    assert_eq!(reported.status, Some(TaskStatus::InProgress));
    server.client.call(&back(lease(&victim))).await.unwrap();
    let back = server.client.call(&GetById { task: victim }).await.unwrap().task;
    assert_eq!((back.status, back.status_message.as_str()), (Some(TaskStatus::Queued), "it stopped"));
}

async fn project_id(server: &TestServer, name: &str) -> String {
    let views = server.client.call(&projects::GetAll::default()).await.unwrap().projects;
    views.into_iter().find(|view| view.name == name).unwrap().id
}

/// Agents decide from [`Fleet`], people from the views: both say the same before and after, in the middle of a reclaim.
#[tokio::test]
async fn a_restart_changes_no_decision() {
    let server = TestServer::start().await;
    node(&server).await;
    let queue = server.queue("q").await;
    let (lent, owner) = (project(&server, "lent/deep").await, project(&server, "owner").await);
    server.client.call(&grant("lent", 250, Some(3000))).await.unwrap();
    server.client.call(&grant("owner", 750, None)).await.unwrap();
    let runs = [run(&server, &queue, &lent, "r1").await, run(&server, &queue, &lent, "r2").await];
    let waits = submit(&server, &queue, &owner, "waits").await;
    let non_preemptible =
        TaskRequest { priority: 7, non_preemptible: true, cpu_milli: 500, ..TaskRequest::default() };
    let fields = Map::from_iter([("hyperparams".to_owned(), json!(non_preemptible.to_hyperparams()))]);
    let create = Create { name: "late".into(), kind: "training".into(), fields };
    let late = server.client.call(&create).await.unwrap().id;
    server.enqueue(&late, &queue).await;
    let victim = Victim {
        task: runs[0].clone(),
        lease: format!("lease of {}", runs[0]),
        for_task: waits.clone(),
        cause: Cause::Reclaim,
    };
    let evictions = fleet(&server, &queue).await.evictions;
    server
        .client
        .call(&Evict { node: "n".into(), victims: vec![victim], evictions, can_suspend: false })
        .await
        .unwrap();

    let why = ExplainTask { task: waits.clone() };
    let before =
        (fleet(&server, &queue).await, views(&server).await, server.client.call(&why).await.unwrap());
    assert_eq!(before.0.held.iter().filter(|held| held.stopping.is_some()).count(), 1, "{before:?}");
    assert_eq!(before.0.waiting.len(), 2);
    assert_eq!(before.1.projects.iter().map(|view| view.allocated_milli).max(), Some(1000));
    let server = server.restart().await;
    let after = (fleet(&server, &queue).await, views(&server).await, server.client.call(&why).await.unwrap());
    assert_eq!(before.0, after.0);
    assert_eq!(before.1.projects, after.1.projects);
    assert_eq!(before.2.reason, after.2.reason);

    // An eviction that has begun continues, and a task that a user stops meanwhile is not queued again.
    server.client.call(&Stop { task: runs[0].clone(), ..Stop::default() }).await.unwrap();
    let (task, lease) = (runs[0].clone(), format!("lease of {}", runs[0]));
    server.client.call(&GiveBack { task, lease, reason: "it stopped".into() }).await.unwrap();
    let stopped = server.client.call(&GetById { task: runs[0].clone() }).await.unwrap().task;
    assert_eq!(stopped.status, Some(TaskStatus::Stopped));
}

/// A server that counts past use, a few times a second.
fn counting(half_life_s: u64) -> ServerConfig {
    let (start_within, half_life) = (Duration::from_millis(200), Duration::from_secs(half_life_s));
    ServerConfig { start_within, usage_half_life: Some(half_life), ..ServerConfig::default() }
}

/// A task that holds `milli` and was in no queue: nothing puts it back when it does not start in time.
async fn hold(server: &TestServer, project: &str, name: &str, milli: u32) -> String {
    let id = server.task(name).await;
    let fields = Map::from_iter([("project".to_owned(), json!(project))]);
    server.client.call(&Edit { task: id.clone(), force: false, fields }).await.unwrap();
    server.client.call(&Started { task: id.clone(), ..Started::default() }).await.unwrap();
    server.client.call(&claim(&id, milli)).await.unwrap();
    id
}

async fn usage_ppm(server: &TestServer, project: &str) -> Option<u32> {
    views(server).await.projects.into_iter().find(|view| view.name == project).unwrap().usage_ppm
}

async fn until_used(server: &TestServer, project: &str, enough_ppm: u32) -> u32 {
    for _ in 0..600 {
        if let Some(used) = usage_ppm(server, project).await.filter(|used| *used >= enough_ppm) {
            return used;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{project} never came to {enough_ppm}");
}

#[tokio::test]
async fn past_use_counts_against_a_project() {
    let server = TestServer::start_with(tempfile::tempdir().unwrap(), counting(1)).await;
    node(&server).await;
    let queue = server.queue("q").await;
    let (greedy, modest) = (project(&server, "greedy/deep").await, project(&server, "modest").await);
    server.client.call(&grant("greedy", 0, None)).await.unwrap();
    server.client.call(&grant("modest", 0, None)).await.unwrap();
    hold(&server, &greedy, "held", 1000).await;
    submit(&server, &queue, &greedy, "more").await;
    submit(&server, &queue, &modest, "some").await;
    let used = until_used(&server, "greedy", 600_000).await;
    let reported = fleet(&server, &queue).await;
    assert!(reported.usage_ppm["greedy"] >= used && reported.usage_weight_percent == 100, "{reported:?}");
    assert_eq!(reported.usage_ppm["modest"], 0);
    let shares = views(&server).await.projects;
    let share = |name: &str| shares.iter().find(|view| view.name == name).unwrap().fair_share_milli;
    assert!(share("greedy") < 300 && share("modest") > 700, "{shares:?}");
}

#[tokio::test]
async fn past_use_survives_a_restart_and_can_be_switched_off() {
    let server = TestServer::start_with(tempfile::tempdir().unwrap(), counting(3600)).await;
    node(&server).await;
    let a = project(&server, "a").await;
    server.client.call(&grant("a", 0, None)).await.unwrap();
    let task = hold(&server, &a, "held", 1000).await;
    until_used(&server, "a", 100).await;
    let ended = ReportTask { exit_code: Some(0), ..claim(&task, 1000) };
    server.client.call(&ended).await.unwrap();
    let used = usage_ppm(&server, "a").await.unwrap();
    let server = server.restart_with(counting(3600)).await;
    let kept = usage_ppm(&server, "a").await.unwrap();
    assert!(kept > used / 2, "{kept} of {used}: nothing is held any more");
    let server = server.restart().await;
    assert_eq!(usage_ppm(&server, "a").await, None);
    let reported = fleet(&server, "q").await;
    assert!(reported.usage_ppm.is_empty() && reported.usage_weight_percent == 0, "{reported:?}");
}

#[tokio::test]
async fn a_request_that_cannot_be_read_counts_as_none_and_is_counted() {
    let counted = |metrics: &str| {
        let line =
            metrics.lines().find(|line| line.contains("cantle_fallbacks_total{kind=\"unreadable_request\"}"));
        line.unwrap().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    // Other tests of this program may count, too.
    let before = counted(&server.metrics().await);
    let two_of_one = json!({"section": "cantle", "name": "gpu", "value": "2"});
    let fields =
        json!({"name": "greedy", "type": "training", "hyperparams": {"cantle": {"gpu": two_of_one}}});
    let task = server.task_from(&fields).await;
    server.enqueue(&task, &queue).await;
    assert_eq!(server.take(&queue).await.as_ref(), Some(&task));
    server.client.call(&claim(&task, 500)).await.unwrap();
    assert!(counted(&server.metrics().await) > before);
}

/// The setting of the queue counts before that of the project; a project has that of the one above it.
#[tokio::test]
async fn a_task_makes_room_as_its_queue_or_its_project_says() {
    let server = TestServer::start().await;
    node(&server).await;
    let queue = server.queue("q").await;
    let lent = project(&server, "lent/deep").await;
    let owner = project(&server, "owner").await;
    server.client.call(&grant("owner", 1000, None)).await.unwrap();
    let victim = run(&server, &queue, &lent, "victim").await;
    let waits = submit(&server, &queue, &owner, "waits").await;
    let set_queue = async |preempt| {
        let request = SetQueuePreempt { queue: "q".into(), preempt };
        server.client.call(&request).await.unwrap();
    };
    let set_project = async |preempt| {
        let mut request = grant("lent", 0, None);
        request.quota.as_mut().unwrap().preempt = preempt;
        server.client.call(&request).await.unwrap();
    };
    let told = async || {
        let found = server.client.call(&GetById { task: victim.clone() }).await.unwrap().task;
        found.status_message
    };
    set_project(Some(Preempt::SuspendOrRequeue)).await;
    let (before, evictions) = (told().await, fleet(&server, &queue).await.evictions);
    let wish = Victim {
        task: victim.clone(),
        lease: format!("lease of {victim}"),
        for_task: waits.clone(),
        cause: Cause::Reclaim,
    };
    let wish = Evict { node: "n".into(), victims: vec![wish], evictions, can_suspend: true };
    server.client.call(&wish).await.unwrap();
    assert_eq!(told().await, before, "it is not asked to stop");
    let way = async || {
        let held = fleet(&server, &queue).await.held;
        let stopping = held.into_iter().find(|held| held.task == victim).unwrap().stopping.unwrap();
        assert_eq!(stopping.for_task.as_ref(), Some(&waits));
        stopping.preempt
    };
    assert_eq!(way().await, Preempt::SuspendOrRequeue);
    set_queue(Some(Preempt::Requeue)).await;
    assert_eq!(way().await, Preempt::Requeue);
    set_queue(None).await;
    set_project(None).await;
    assert_eq!(way().await, Preempt::Requeue, "neither has a setting");
    set_queue(Some(Preempt::SuspendOrRequeue)).await;
    assert_eq!(way().await, Preempt::SuspendOrRequeue);
    // The node cannot suspend it: now it hears that it is to stop.
    let slices = claim(&victim, 500).slices;
    let (task, lease) = (victim.clone(), format!("lease of {victim}"));
    let stays = ReportSlices { task, node: "n".into(), lease, slices, stays: true };
    server.client.call(&stays).await.unwrap();
    assert_eq!(told().await, StopRequest::Evict.as_str());
    let unknown = r#"{"queue": "q", "preempt": ["suspend"]}"#;
    let (status, _, answer) = server.raw("cantle.set_queue_preempt", unknown).await;
    assert_eq!(status, 400, "{answer}");
}
