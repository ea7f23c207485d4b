//! Pools in the database: no claim takes a GPU that its project may not use, or more of a pool than its quota.

use std::collections::BTreeMap;

use cantle_model::{Measured, Milli, Pool, PoolQuota, ProjectQuota, Quota, Slice};
use cantle_store::{Change, NewTask, NodeRow, Store, StoreError, TaskClaim, Terms};
use serde_json::{Map, json};

use crate::common;

const FOR_GOOD: Terms = Terms { cpu_milli: 0, memory_bytes: 0, preemptible: false, quota_milli: None };

struct Fixture {
    store: Store,
    _fresh: common::Fresh,
}

/// The node `big` has the A100 `GPU-a`, the node `small` the T4 `GPU-t`; each is a pool of its model.
async fn open() -> Fixture {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for (node, uuid, model) in [("big", "GPU-a", "A100"), ("small", "GPU-t", "T4")] {
        let report = json!({ "node": node, "gpus": [{ "uuid": uuid, "model": model, "index": 0 }] });
        let (node, report) = (node.to_owned(), report.to_string());
        store.report_node(&NodeRow { node, last_seen_us: 1, interval_ms: 1000, report }).await.unwrap();
    }
    for (name, model) in [("fast", "A*"), ("slow", "T?")] {
        let pool = Pool { name: name.to_owned(), nodes: Vec::new(), models: vec![model.to_owned()] };
        store.set_pool(&pool, "root", 1).await.unwrap();
    }
    for name in ["a", "a/b"] {
        common::make_project(&store, name, name).await;
    }
    Fixture { store, _fresh: fresh }
}

fn quota(pools: &[&str], by_pool: &[(&str, u64, Option<u64>)]) -> ProjectQuota {
    let gpu = Quota { deserved: Some(4000), ..Quota::NONE };
    let part = |&(pool, deserved, limit): &(&str, u64, Option<u64>)| {
        (pool.to_owned(), PoolQuota { deserved, limit })
    };
    let pools = pools.iter().map(|&pool| pool.to_owned()).collect();
    ProjectQuota { gpu, pools, by_pool: by_pool.iter().map(part).collect(), ..ProjectQuota::default() }
}

impl Fixture {
    async fn grant(&self, project: &str, quota: &ProjectQuota) {
        self.store.set_quota(project, Some(quota), "root", 1).await.unwrap();
    }

    /// A new task of a project that claims half of a GPU.
    async fn claim(&self, task: &str, project: &str, node: &str, terms: Terms) -> Result<(), StoreError> {
        let (id, kind) = (task.to_owned(), "training".to_owned());
        let new =
            NewTask { id, name: task.into(), project: Some(project.into()), kind, ..NewTask::default() };
        self.store.create_task(&new, 1).await.unwrap();
        let change = Change { now_us: 1, ..Change::default() };
        self.store.enqueue(task, "q", &change).await.unwrap();
        self.store.take_next("q", Some(task), 2).await.unwrap().unwrap();
        let gpu = if node == "big" { "GPU-a" } else { "GPU-t" };
        let slice = Slice { gpu: gpu.into(), milli: Milli(500), memory_limit_bytes: 1 << 30, mig: None };
        let claim = TaskClaim {
            task: task.into(),
            node: node.into(),
            lease: format!("lease of {task}"),
            run: None,
            slices: vec![slice],
            terms,
            exit_code: None,
            reason: None,
            measured: Measured::default(),
        };
        self.store.claim(&claim, 3).await
    }

    async fn refusal(&self, task: &str, project: &str, node: &str, terms: Terms) -> String {
        self.claim(task, project, node, terms).await.unwrap_err().to_string()
    }
}

#[tokio::test]
async fn a_claim_outside_the_pools_of_a_project_above_is_refused() {
    let f = open().await;
    f.grant("a", &quota(&["slow"], &[])).await;
    f.claim("1", "a/b", "small", Terms::default()).await.unwrap();
    assert_eq!(
        f.refusal("2", "a/b", "big", Terms::default()).await,
        "project a may use the pool slow; a GPU of node big (model \"A100\") is in none of them, so task 2 cannot have it"
    );
    // The one below cannot extend it.
    f.grant("a/b", &quota(&["fast", "slow"], &[])).await;
    assert!(f.claim("3", "a/b", "big", Terms::default()).await.is_err());
    f.store.set_quota("a", None, "root", 2).await.unwrap();
    f.claim("4", "a/b", "big", Terms::default()).await.unwrap();
    assert!(f.refusal("5", "a/b", "unknown", Terms::default()).await.contains("(model \"\")"));
}

#[tokio::test]
async fn a_claim_beyond_the_limit_of_a_pool_is_refused() {
    let f = open().await;
    f.grant("a", &quota(&[], &[("fast", 500, Some(1000))])).await;
    f.claim("1", "a", "big", FOR_GOOD).await.unwrap();
    assert_eq!(
        f.refusal("2", "a/b", "big", FOR_GOOD).await,
        "project a holds 0.5 GPUs of its quota of 0.5 GPUs of pool fast; task 2 needs 0.5 GPUs more"
    );
    f.claim("3", "a/b", "big", Terms::default()).await.unwrap();
    assert_eq!(
        f.refusal("4", "a", "big", Terms::default()).await,
        "project a holds 1 GPU of its limit of 1 GPU of pool fast; task 4 needs 0.5 GPUs more"
    );
    f.claim("5", "a", "small", FOR_GOOD).await.unwrap();
    let sums = f.store.fleet("small", &[], true).await.unwrap().elsewhere;
    let in_fast: u64 = sums.iter().filter_map(|sum| sum.pool_milli.get("fast")).sum();
    assert_eq!((in_fast, sums.iter().any(|sum| sum.pool_milli.contains_key("slow"))), (1000, false));
    let sums = f.store.fleet("small", &[], false).await.unwrap().elsewhere;
    assert!(sums.iter().all(|sum| sum.pool_milli == BTreeMap::new()), "no call requested it");
}

#[tokio::test]
async fn a_pool_that_a_quota_names_stays() {
    let f = open().await;
    f.grant("a/b", &quota(&["slow"], &[])).await;
    f.grant("a", &quota(&[], &[("fast", 0, Some(1))])).await;
    for (pool, project) in [("slow", "a/b"), ("fast", "a")] {
        let refused = f.store.delete_pool(pool, "root", 2).await.unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("pool {pool} is in use by the quota of project {project}; change the quota first")
        );
    }
    f.store.set_quota("a", None, "root", 2).await.unwrap();
    f.store.delete_pool("fast", "root", 3).await.unwrap();
    let refused = f.store.set_quota("a", Some(&quota(&["fast"], &[])), "root", 4).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no pool \"fast\"; there are slow");
    assert!(matches!(f.store.delete_pool("fast", "root", 5).await, Err(StoreError::NoPool { .. })));
    let changed = Pool { name: "slow".into(), nodes: vec!["big".into()], models: Vec::new() };
    f.store.set_pool(&changed, "root", 6).await.unwrap();
    assert_eq!(f.store.pools().await.unwrap(), [changed]);
    f.claim("1", "a/b", "big", Terms::default()).await.unwrap();
}
