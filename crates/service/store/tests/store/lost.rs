//! A run is given to another node only when its own has ended it for certain.

use cantle_model::Measured;
use cantle_model::TaskStatus::{Completed, InProgress, Queued};
use cantle_store::{Change, NewTask, Renewal, Renewed, Store, TaskClaim, Terms};
use serde_json::Map;

use crate::common;

const SLACK_MS: i64 = 5000;

async fn open() -> (Store, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let new = NewTask { id: "t".into(), name: "t".into(), kind: "training".into(), ..NewTask::default() };
    store.submit(&new, "q", &Change { now_us: 1, ..Change::default() }).await.unwrap();
    (store, fresh)
}

fn claim(node: &str, lease: &str, exit_code: Option<i64>) -> TaskClaim {
    TaskClaim {
        task: "t".into(),
        node: node.into(),
        lease: lease.into(),
        run: None,
        slices: Vec::new(),
        terms: Terms::default(),
        exit_code,
        reason: None,
        measured: Measured::default(),
    }
}

async fn start(store: &Store, node: &str, lease: &str, now_us: i64) {
    store.take_next("q", None, now_us).await.unwrap().unwrap();
    store.claim(&claim(node, lease, None), now_us).await.unwrap();
    store.set_status("t", InProgress, &Change { now_us, ..Change::default() }).await.unwrap();
}

async fn renew(store: &Store, lease: &str, fence_ms: Option<i64>, now_s: i64) -> Renewed {
    let run = Renewal { task: "t".into(), lease: lease.into(), fence_ms };
    store.renew(&[run], s(now_s)).await.unwrap()[0]
}

const fn s(seconds: i64) -> i64 {
    seconds * 1_000_000
}

async fn lost(store: &Store, now_s: i64) -> Vec<(String, String)> {
    store.requeue_lost(SLACK_MS, s(now_s)).await.unwrap()
}

#[tokio::test]
async fn only_a_node_that_agreed_loses_its_run() {
    let (store, _dir) = open().await;
    start(&store, "n1", "l1", s(0)).await;
    assert_eq!(renew(&store, "l1", None, 1).await, Renewed { held: true, fence_ms: None });
    assert_eq!(lost(&store, 1_000_000).await, [], "the queue holds");
    store.set_requeue("q", Some(10_000)).await.unwrap();
    assert_eq!(lost(&store, 1_000_000).await, [], "the node does not know");
    // This answer names the fence; the node has agreed only with its next renewal.
    assert_eq!(renew(&store, "l1", None, 2).await, Renewed { held: true, fence_ms: Some(10_000) });
    assert_eq!(lost(&store, 1_000_000).await, []);
    renew(&store, "l1", Some(10_000), 4).await;
    assert_eq!(lost(&store, 4 + 15).await, [], "its time is not over");
    assert_eq!(lost(&store, 4 + 16).await, [("t".to_owned(), "n1".to_owned())]);
    let task = store.task("t").await.unwrap();
    assert_eq!((task.index.status, task.lease, task.node), (Queued, None, None));
    assert_eq!(store.queue("q").await.unwrap().entries.len(), 1);
    assert_eq!(lost(&store, 1_000_000).await, [], "once");
}

#[tokio::test]
async fn the_run_that_was_lost_holds_nothing_and_ends_nothing() {
    let (store, _dir) = open().await;
    store.set_requeue("q", Some(10_000)).await.unwrap();
    start(&store, "n1", "l1", s(0)).await;
    renew(&store, "l1", Some(10_000), 1).await;
    assert_eq!(lost(&store, 100).await.len(), 1);
    // While it waits, and while it runs elsewhere.
    assert!(!renew(&store, "l1", Some(10_000), 101).await.held);
    assert!(store.claim(&claim("n1", "l1", Some(0)), s(101)).await.is_err());
    assert_eq!(store.end_fenced("t", "l1", s(101)).await.unwrap(), None);
    start(&store, "n2", "l2", s(102)).await;
    assert!(!renew(&store, "l1", Some(10_000), 103).await.held);
    assert!(store.claim(&claim("n1", "l1", Some(0)), s(103)).await.is_err());
    assert_eq!(store.end_fenced("t", "l1", s(103)).await.unwrap(), None);
    assert!(renew(&store, "l2", None, 104).await.held);
    assert_eq!(store.task("t").await.unwrap().node.as_deref(), Some("n2"));
    // The old node's renewals do not affect the new run.
    assert_eq!(lost(&store, 1_000_000).await, []);
}

#[tokio::test]
async fn a_longer_time_counts_when_the_node_obeys_it_and_none_when_it_has_dropped_it() {
    let (store, _dir) = open().await;
    store.set_requeue("q", Some(10_000)).await.unwrap();
    start(&store, "n1", "l1", s(0)).await;
    renew(&store, "l1", Some(10_000), 1).await;
    store.set_requeue("q", None).await.unwrap();
    // The answer reports that there is none. The node obeys the old one until the server knows that it does not.
    assert_eq!(renew(&store, "l1", Some(10_000), 2).await, Renewed { held: true, fence_ms: None });
    assert_eq!(store.fences().await.unwrap()["t"].after_ms, 10_000);
    renew(&store, "l1", None, 4).await;
    assert_eq!(store.fences().await.unwrap().len(), 0);
    assert_eq!(lost(&store, 1_000_000).await, []);
}

#[tokio::test]
async fn what_a_node_has_ended_itself_is_queued_again_and_what_has_ended_stays() {
    let (store, _dir) = open().await;
    store.set_requeue("q", Some(10_000)).await.unwrap();
    start(&store, "n1", "l1", s(0)).await;
    renew(&store, "l1", Some(10_000), 1).await;
    assert_eq!(store.end_fenced("t", "l1", s(20)).await.unwrap().as_deref(), Some("n1"));
    assert_eq!(store.task("t").await.unwrap().index.status, Queued);
    start(&store, "n2", "l2", s(21)).await;
    renew(&store, "l2", Some(10_000), 22).await;
    store.claim(&claim("n2", "l2", Some(0)), s(23)).await.unwrap();
    assert_eq!(lost(&store, 1_000_000).await, [], "its end is known");
    store.set_status("t", Completed, &Change { now_us: s(24), ..Change::default() }).await.unwrap();
    assert_eq!(store.end_fenced("t", "l2", s(25)).await.unwrap(), None);
    assert_eq!(store.task("t").await.unwrap().index.status, Completed);
}
