//! Many callers at one queue at once: each gets another task, from the front, and none is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_store::{Change, NewTask, Store, StoreError, Taken};
use serde_json::Map;
use tokio::task::JoinSet;

use crate::common;

async fn with_tasks(count: usize) -> (Arc<Store>, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for n in 0..count {
        let id = format!("t{n:02}");
        let new = NewTask { id: id.clone(), name: id, kind: "training".into(), ..NewTask::default() };
        store.submit(&new, "q", &Change { now_us: 2, ..Change::default() }).await.unwrap();
    }
    (Arc::new(store), fresh)
}

/// Callers that come before the first of them has an answer.
fn callers(store: &Arc<Store>, count: usize) -> JoinSet<Result<Option<Taken>, StoreError>> {
    (0..count)
        .map(|_| {
            let store = Arc::clone(store);
            async move { store.take_next("q", None, 3).await }
        })
        .collect()
}

fn ids(range: std::ops::Range<usize>) -> BTreeSet<String> {
    range.map(|n| format!("t{n:02}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_once_get_different_tasks_from_the_front() {
    let (store, _fresh) = with_tasks(40).await;
    for (count, expected) in [(1, 0..1), (7, 1..8), (23, 8..31), (20, 31..40)] {
        let answers = callers(&store, count).join_all().await;
        let taken: Vec<Taken> = answers.into_iter().filter_map(Result::unwrap).collect();
        assert!(taken.iter().all(|taken| taken.run == 1 && taken.added_us == 2), "{taken:?}");
        let found: BTreeSet<String> = taken.iter().map(|taken| taken.task.clone()).collect();
        assert_eq!((taken.len(), found), (expected.len(), ids(expected)));
    }
    assert!(store.queue("q").await.unwrap().entries.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_go_away_take_nothing_from_the_others() {
    let (store, _fresh) = with_tasks(30).await;
    let mut left = callers(&store, 30);
    let gone = callers(&store, 30);
    tokio::task::yield_now().await;
    drop(gone);
    let mut found = BTreeSet::new();
    while let Some(answer) = left.join_next().await {
        found.extend(answer.unwrap().unwrap().map(|taken| taken.task));
    }
    // A task that was taken for a caller that was gone by then comes back.
    store.reclaim(4, 5).await.unwrap();
    let (mut again, mut runs) = (0, 0);
    while let Some(taken) = store.take_next("q", None, 6).await.unwrap() {
        found.insert(taken.task);
        again += 1;
        runs += taken.run;
    }
    assert_eq!(found, ids(0..30), "{again} came later");
    assert!(runs >= again);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_caller_at_a_queue_that_does_not_exist_gets_an_error() {
    let (store, _fresh) = with_tasks(0).await;
    let asked: JoinSet<_> = (0..9)
        .map(|_| {
            let store = Arc::clone(&store);
            async move { store.take_next("p", None, 3).await }
        })
        .collect();
    for answer in asked.join_all().await {
        assert!(matches!(answer, Err(StoreError::NoQueue(ref queue)) if queue == "p"), "{answer:?}");
    }
}
