//! The store's own promises: one state per task, one place per queue, nothing forgotten.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test says by panicking that something is wrong"
)]

use cantle_model::TaskStatus;
use cantle_store::{Change, Claim, Happening, LogLine, NewTask, Scalar, Store, StoreError, may_follow};
use serde_json::Map;

struct Fixture {
    store: Store,
    dir: tempfile::TempDir,
}

const S: i64 = 1_000_000;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

async fn open() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("cantle.db")).await.unwrap();
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    Fixture { store, dir }
}

impl Fixture {
    async fn queued(&self, id: &str, now_us: i64) {
        let new = NewTask { id: id.into(), name: id.into(), kind: "training".into(), ..NewTask::default() };
        self.store.create_task(&new, now_us).await.unwrap();
        self.store.enqueue(id, "q", &at(now_us)).await.unwrap();
    }

    async fn order(&self) -> Vec<String> {
        self.store.queue("q").await.unwrap().entries.into_iter().map(|(task, _)| task).collect()
    }

    async fn status(&self, id: &str) -> TaskStatus {
        self.store.task(id).await.unwrap().index.status
    }
}

#[tokio::test]
async fn what_was_taken_and_never_started_comes_back_first() {
    let f = open().await;
    for id in ["a", "b", "c", "d"] {
        f.queued(id, 1).await;
    }
    for _ in 0..3 {
        f.store.take_next("q", None, 10 * S).await.unwrap().unwrap();
    }
    f.store.set_status("b", TaskStatus::InProgress, &at(11 * S)).await.unwrap();
    assert!(f.store.reclaim(10 * S, 12 * S).await.unwrap().is_empty(), "not yet");
    assert_eq!(f.store.reclaim(60 * S, 70 * S).await.unwrap().len(), 2);
    assert_eq!(f.order().await, ["a", "c", "d"], "in the order in which they were");
    assert!(f.store.reclaim(60 * S, 80 * S).await.unwrap().is_empty(), "once");
    assert_eq!(f.status("b").await, TaskStatus::InProgress);
}

#[tokio::test]
async fn a_claimed_task_is_nobody_elses() {
    let f = open().await;
    f.queued("a", 1).await;
    f.store.take_next("q", None, 2).await.unwrap().unwrap();
    let claim = |lease: &str| Claim {
        task: "a".into(),
        node: "n".into(),
        lease: lease.into(),
        slices: Vec::new(),
        exit_code: None,
        reason: None,
    };
    f.store.claim(&claim("one"), 3).await.unwrap();
    assert!(f.store.reclaim(60 * S, 70 * S).await.unwrap().is_empty());
    assert!(matches!(f.store.claim(&claim("two"), 4).await, Err(StoreError::Claimed { .. })));
}

#[tokio::test]
async fn a_task_waits_in_one_place_or_in_none() {
    let f = open().await;
    f.store.create_queue("other", "other", &Map::new(), 1).await.unwrap();
    f.queued("a", 1).await;
    assert!(matches!(f.store.enqueue("a", "other", &at(2)).await, Err(StoreError::AlreadyQueued { .. })));
    f.store.set_status("a", TaskStatus::InProgress, &at(3)).await.unwrap();
    assert!(f.order().await.is_empty(), "who runs does not wait");
    assert!(matches!(f.store.enqueue("a", "q", &at(4)).await, Err(StoreError::Status { .. })));
    f.store.set_status("a", TaskStatus::Failed, &at(5)).await.unwrap();
    f.store.enqueue("a", "other", &Change { force: true, ..at(6) }).await.unwrap();
    let again = f.store.task("a").await.unwrap();
    assert_eq!((again.index.started_us, again.index.completed_us), (None, None), "a new run");
    f.store.delete_task("a", &Change { force: true, ..at(7) }).await.unwrap();
    assert!(f.store.queue("other").await.unwrap().entries.is_empty());
}

#[tokio::test]
async fn events_are_ordered_also_within_a_microsecond_and_over_a_restart() {
    let f = open().await;
    let one = |n: i64| Happening { time_us: 5, kind: n.to_string(), ..Happening::default() };
    f.store.add_happenings((0..5).map(one).collect()).await.unwrap();
    f.store.close().await;
    let store = Store::open(&f.dir.path().join("cantle.db")).await.unwrap();
    store.add_happenings((5..9).map(one).collect()).await.unwrap();
    let all = store.happenings(None, Some(0), 100).await.unwrap();
    let kinds: Vec<_> = all.iter().map(|happening| happening.kind.as_str()).collect();
    assert_eq!(kinds, ["0", "1", "2", "3", "4", "5", "6", "7", "8"]);
    let last = store.happenings(None, None, 2).await.unwrap();
    assert_eq!(last[0].kind, "7", "the newest ones, oldest first");
    let rest = store.happenings(None, Some(all[6].id), 100).await.unwrap();
    assert_eq!(rest.len(), 2);
}

#[tokio::test]
async fn output_goes_with_its_task() {
    let f = open().await;
    f.queued("a", 1).await;
    let line = |n: i64| LogLine {
        task: "a".into(),
        timestamp_ms: 100 - n,
        msg: n.to_string(),
        ..LogLine::default()
    };
    f.store.add_logs(&(0..2500).map(line).collect::<Vec<_>>(), 7).await.unwrap();
    let page = f.store.logs_after("a", 0, 10_000).await.unwrap();
    assert!(page.iter().enumerate().all(|(n, line)| line.msg == n.to_string()), "in order of arrival");
    let newest = f.store.logs_by_time("a", None, true, 1).await.unwrap();
    assert_eq!(newest[0].msg, "0", "by time it is the other way round here");
    let point = |iter, value| Scalar {
        task: "a".into(),
        metric: "m".into(),
        variant: "v".into(),
        iter,
        timestamp_ms: 1,
        value,
    };
    f.store.add_scalars(&[point(1, 5.0), point(2, 1.0), point(2, 3.0)]).await.unwrap();
    f.store.add_scalars(&[point(1, 9.0)]).await.unwrap();
    let values: Vec<f64> = f.store.scalars("a").await.unwrap().iter().map(|scalar| scalar.value).collect();
    assert_eq!(values, [9.0, 3.0], "the last word for a point counts");
    let latest = f.store.latest_scalars("a").await.unwrap();
    assert_eq!((latest[0].last.value, latest[0].least, latest[0].greatest), (3.0, 1.0, 9.0));
    assert_eq!(f.store.task("a").await.unwrap().last_iteration, 2);
    f.store.reset("a", &at(9)).await.unwrap();
    assert_eq!(f.store.count_logs("a").await.unwrap() + f.store.count_scalars("a").await.unwrap(), 0);
    assert!(f.store.latest_scalars("a").await.unwrap().is_empty());
}

#[test]
fn the_ways_between_states() {
    use TaskStatus::{Completed, Created, Failed, InProgress, Published, Queued, Stopped};
    for (from, to, allowed) in [
        (Created, Queued, true),
        (Created, Completed, false),
        (Queued, InProgress, true),
        (Queued, Completed, false),
        (InProgress, Completed, true),
        (InProgress, Queued, false),
        (Stopped, Queued, true),
        (Failed, Created, true),
        (Published, Created, false),
        (Completed, Completed, true),
    ] {
        assert_eq!(may_follow(from, to), allowed, "{from} → {to}");
    }
}
