//! Pools over the wire: what is refused and with which code, what agents get, and why a task waits.

use cantle_clearml::cantle::{ExplainTask, GpuView};
use cantle_clearml::pools::{DeletePool, GetPools, SetPool};
use cantle_clearml::projects;
use cantle_clearml::quotas::{GetFleet, GetProjects, SetQuota};
use cantle_clearml::tasks::Edit;
use cantle_model::{Pool, PoolQuota, ProjectQuota};
use serde_json::{Map, json};

use crate::common::{TestServer, gpu_view};

fn of_model(pool: &str, model: &str) -> SetPool {
    SetPool { pool: pool.into(), nodes: Vec::new(), models: vec![model.into()] }
}

async fn node(server: &TestServer, name: &str, model: &str) {
    let gpu = GpuView { allocated_milli: 250, ..gpu_view(&format!("GPU-{name}"), model) };
    server.report_gpus(name, vec![gpu]).await;
}

fn restricted(project: &str, pools: &[&str]) -> SetQuota {
    let pools = pools.iter().map(|&pool| pool.to_owned()).collect();
    SetQuota { project: project.into(), quota: Some(ProjectQuota { pools, ..ProjectQuota::default() }) }
}

#[tokio::test]
async fn pools_are_defined_listed_and_deleted() {
    let server = TestServer::start().await;
    node(&server, "one", "A100").await;
    node(&server, "two", "T4").await;
    let set =
        SetPool { pool: "p".into(), nodes: vec!["o*".into(), "nine".into()], models: vec!["H1*".into()] };
    let found = server.client.call(&set).await.unwrap();
    assert_eq!((found.gpus, found.unmatched), (0, vec!["nine".to_owned(), "H1*".to_owned()]));
    let found = server.client.call(&of_model("p", "A*")).await.unwrap();
    assert_eq!((found.gpus, found.unmatched.len()), (1, 0), "defined again");
    server.client.call(&restricted("x", &["p"])).await.unwrap();
    let [view] = server.client.call(&GetPools {}).await.unwrap().pools.try_into().unwrap();
    assert_eq!(view.pool, Pool { name: "p".into(), nodes: Vec::new(), models: vec!["A*".into()] });
    assert_eq!((view.gpus, view.allocated_milli, view.projects), (1, 250, vec!["x".to_owned()]));

    let pool = |pool: &str| DeletePool { pool: pool.into() };
    assert_eq!(server.refused(&pool("p")).await, (400, 9004), "in use");
    assert_eq!(server.refused(&pool("q")).await, (400, 9003), "not there");
    assert_eq!(server.refused(&restricted("new", &["p", "q"])).await, (400, 9003), "one is not there");
    assert_eq!(
        server.client.call(&GetProjects {}).await.unwrap().projects.len(),
        1,
        "no project was made for it"
    );
    for (name, model) in [("", "x"), ("a b", "x"), ("none", "x"), ("a", "")] {
        assert_eq!(server.refused(&of_model(name, model)).await, (400, 12), "\"{name}\" \"{model}\"");
    }
    assert_eq!(server.refused(&SetPool { pool: "a".into(), ..SetPool::default() }).await, (400, 12));
    for (quota, what) in [
        (
            r#"{"gpu": {"deserved": 1}, "by_pool": {"p": {"deserved": 2, "limit": 1}}}"#,
            "limit below the quota",
        ),
        (r#"{"gpu": {"deserved": 1}, "by_pool": {"p": {"deserved": -1}}}"#, "less than nothing"),
        (
            r#"{"gpu": {"deserved": 1}, "by_pool": {"p": {}}, "pools": ["other"]}"#,
            "not a pool that it may use",
        ),
    ] {
        let body = format!(r#"{{"project": "x", "quota": {quota}}}"#);
        assert_eq!(server.raw("cantle.set_quota", &body).await.1, 12, "{what}");
    }
    server.client.call(&SetQuota { project: "x".into(), quota: None }).await.unwrap();
    server.client.call(&pool("p")).await.unwrap();
    assert!(server.client.call(&GetPools {}).await.unwrap().pools.is_empty());
}

#[tokio::test]
async fn agents_get_the_pools_that_quotas_name_and_people_a_reason() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    node(&server, "one", "A100").await;
    server.client.call(&of_model("named", "T4")).await.unwrap();
    server.client.call(&of_model("unnamed", "*")).await.unwrap();
    let fleet = || GetFleet { node: "one".into(), queues: vec![queue.clone()] };
    assert!(server.client.call(&fleet()).await.unwrap().pools.is_empty(), "no quota names any");
    server.client.call(&restricted("x", &["named"])).await.unwrap();
    let names = |pools: Vec<Pool>| pools.into_iter().map(|pool| pool.name).collect::<Vec<_>>();
    assert_eq!(names(server.client.call(&fleet()).await.unwrap().pools), ["named"]);

    let create = projects::Create { name: "x/sub".into(), ..projects::Create::default() };
    let project = server.client.call(&create).await.unwrap().id;
    let task = server.task("t").await;
    let fields = Map::from_iter([("project".to_owned(), json!(project))]);
    server.client.call(&Edit { task: task.clone(), force: false, fields }).await.unwrap();
    server.enqueue(&task, &queue).await;
    let explain = ExplainTask { task };
    let reason = server.client.call(&explain).await.unwrap().reason;
    assert_eq!(reason, "project x may use the pool named; no agent of queue q has a GPU of these");
    node(&server, "two", "T4").await;
    let reason = server.client.call(&explain).await.unwrap().reason;
    assert_eq!(reason, "next in queue q; two has not looked at it yet");
}

#[tokio::test]
async fn a_quota_of_a_pool_is_shown_with_what_is_held() {
    let server = TestServer::start().await;
    server.client.call(&of_model("p", "*")).await.unwrap();
    let part = PoolQuota { deserved: 2000, limit: Some(3000) };
    let quota = ProjectQuota { by_pool: [("p".to_owned(), part)].into(), ..ProjectQuota::default() };
    server.client.call(&SetQuota { project: "x".into(), quota: Some(quota) }).await.unwrap();
    let [view] = server.client.call(&GetProjects {}).await.unwrap().projects.try_into().unwrap();
    assert_eq!(view.deserved_milli, 2000, "what is guaranteed of a pool is guaranteed");
    assert_eq!((view.by_pool["p"].quota, view.by_pool["p"].allocated_milli), (part, 0));
}
