//! Arrays: a few tasks wait at a time, each index runs once, and the array ends with the last of them.

use std::sync::atomic::{AtomicU32, Ordering};

use cantle_model::TaskStatus::{self, Completed, Failed, InProgress, Queued, Stopped};
use cantle_store::{Change, NewTask, Store, StoreError, TaskFilter, Wishes};
use serde_json::{Map, Value};

use crate::common;

const S: i64 = 1_000_000;

async fn open() -> (Store, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "queue", &Map::new(), 1).await.unwrap();
    (store, fresh)
}

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

fn array(spec: &str) -> NewTask {
    let wishes = Wishes { array: Some(spec.parse().unwrap()), ..Wishes::default() };
    let doc = Map::from_iter([("hyperparams".to_owned(), Value::Null)]);
    NewTask { id: "a".into(), name: "train".into(), kind: "custom".into(), wishes, doc, ..NewTask::default() }
}

/// One step; returns how many tasks were made, and how the array ended.
async fn step(store: &Store, ids: &AtomicU32, now_us: i64) -> (u32, Option<(TaskStatus, String)>) {
    let id = || format!("e{:06}", ids.fetch_add(1, Ordering::Relaxed));
    let params = |doc: &mut Map<String, Value>, array: &str, index: u64| {
        doc.insert("hyperparams".to_owned(), Value::from(format!("{array} {index}")));
    };
    let steps = store.step_arrays(now_us, id, params).await.unwrap();
    assert!(steps.len() <= 1);
    steps.into_iter().next().map_or((0, None), |step| (step.made, step.ended))
}

/// Takes the next task; `None`: none waits.
async fn take(store: &Store, now_us: i64) -> Option<String> {
    let taken = store.take_next("q", None, now_us).await.unwrap()?;
    store.set_status(&taken.task, InProgress, &at(now_us)).await.unwrap();
    Some(taken.task)
}

async fn name(store: &Store, task: &str) -> String {
    store.task(task).await.unwrap().index.name
}

#[tokio::test]
async fn each_index_runs_once_and_no_more_at_once_than_asked_for() {
    let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
    store.submit(&array("3-9:3,20%2"), "q", &at(S)).await.unwrap();
    assert_eq!(store.queue("q").await.unwrap().entries.len(), 0, "no agent takes the array itself");
    let mut ran = Vec::new();
    for round in 1..=4 {
        step(&store, &ids, round * 10 * S).await;
        assert_eq!(step(&store, &ids, round * 10 * S).await, (0, None), "nothing has changed");
        let task = take(&store, round * 10 * S).await.unwrap();
        let row = store.task(&task).await.unwrap();
        assert_eq!(row.index.parent.as_deref(), Some("a"));
        ran.push((row.index.name, row.doc["hyperparams"].as_str().unwrap().to_owned()));
        let live = store.live_elements("a").await.unwrap().len();
        assert_eq!(live, if round == 4 { 1 } else { 2 }, "round {round}");
        store.set_status(&task, Completed, &at((round * 10 + 5) * S)).await.unwrap();
    }
    let expected = [("train[3]", "a 3"), ("train[6]", "a 6"), ("train[9]", "a 9"), ("train[20]", "a 20")];
    assert_eq!(ran, expected.map(|(name, params)| (name.to_owned(), params.to_owned())));
    assert_eq!(store.task("a").await.unwrap().index.status, Queued);
    assert_eq!(step(&store, &ids, 60 * S).await, (0, Some((Completed, "4 of 4 completed".to_owned()))));
    assert_eq!(store.task("a").await.unwrap().index.status, Completed);
    assert_eq!(step(&store, &ids, 70 * S).await, (0, None));
}

/// Whatever its size: 64 tasks wait, others are made as these start.
#[tokio::test]
async fn a_large_array_fills_no_queue() {
    let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
    store.submit(&array("0-99999"), "q", &at(S)).await.unwrap();
    assert_eq!(step(&store, &ids, 2 * S).await, (64, None));
    for second in 3..13 {
        take(&store, second * S).await.unwrap();
    }
    assert_eq!(step(&store, &ids, 20 * S).await, (10, None));
    let progress = store.arrays(&["a".to_owned()]).await.unwrap().remove("a").unwrap();
    assert_eq!(progress.line(), "0 of 100000 completed, 10 running, 99990 waiting");
    let folded = TaskFilter { is_folded: true, ..TaskFilter::default() };
    assert_eq!(store.tasks(&folded).await.unwrap().len(), 11, "the array, and what runs");
    let unfolded = TaskFilter { array: Some("a".into()), ..TaskFilter::default() };
    assert_eq!(store.tasks(&unfolded).await.unwrap().len(), 74);
}

#[tokio::test]
async fn an_array_ends_as_the_worst_of_its_tasks() {
    for (outcomes, state, line) in [
        ([Completed, Failed, Stopped], Failed, "1 of 3 completed, 1 failed, 1 stopped"),
        ([Completed, Stopped, Completed], Stopped, "2 of 3 completed, 1 stopped"),
    ] {
        let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
        store.submit(&array("0-2"), "q", &at(S)).await.unwrap();
        step(&store, &ids, 2 * S).await;
        for outcome in outcomes {
            let task = take(&store, 3 * S).await.unwrap();
            store.set_status(&task, outcome, &at(4 * S)).await.unwrap();
        }
        assert_eq!(step(&store, &ids, 5 * S).await, (0, Some((state, line.to_owned()))));
    }
}

/// A task of it that failed is queued again by hand, before the others have ended.
#[tokio::test]
async fn a_task_that_runs_again_is_waited_for() {
    let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
    store.submit(&array("0-1"), "q", &at(S)).await.unwrap();
    step(&store, &ids, 2 * S).await;
    let failed = take(&store, 3 * S).await.unwrap();
    store.set_status(&failed, Failed, &at(4 * S)).await.unwrap();
    step(&store, &ids, 5 * S).await;
    store.enqueue(&failed, "q", &Change { force: true, ..at(6 * S) }).await.unwrap();
    let other = take(&store, 7 * S).await.unwrap();
    assert_eq!(name(&store, &other).await, "train[1]");
    store.set_status(&other, Completed, &at(8 * S)).await.unwrap();
    step(&store, &ids, 9 * S).await;
    assert_eq!(step(&store, &ids, 10 * S).await.1, None, "one waits");
    assert_eq!(take(&store, 11 * S).await, Some(failed.clone()));
    store.set_status(&failed, Completed, &at(12 * S)).await.unwrap();
    let done = (Completed, "2 of 2 completed".to_owned());
    assert_eq!(step(&store, &ids, 13 * S).await, (0, Some(done)));
}

#[tokio::test]
async fn a_stopped_array_makes_no_more_and_starts_anew_when_it_is_queued_again() {
    let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
    store.submit(&array("0-9%1"), "q", &at(S)).await.unwrap();
    let twice = store.enqueue("a", "q", &at(S)).await;
    assert!(matches!(twice, Err(StoreError::AlreadyQueued { .. })), "{twice:?}");
    step(&store, &ids, 2 * S).await;
    let first = take(&store, 3 * S).await.unwrap();
    store.set_status("a", Stopped, &at(4 * S)).await.unwrap();
    assert_eq!(store.live_elements("a").await.unwrap(), std::slice::from_ref(&first));
    store.set_status(&first, Stopped, &at(4 * S)).await.unwrap();
    assert_eq!(step(&store, &ids, 5 * S).await, (0, None));
    let wishes = array("0-9%1").wishes;
    store.set_wishes(&[("a".to_owned(), wishes)]).await.unwrap();
    store.enqueue("a", "q", &at(6 * S)).await.unwrap();
    assert_eq!(step(&store, &ids, 7 * S).await, (1, None));
    let again = take(&store, 8 * S).await.unwrap();
    assert_eq!((name(&store, &again).await.as_str(), again == first), ("train[0]", false));
    store.delete_task("a", &Change { force: true, ..at(9 * S) }).await.unwrap();
    assert_eq!(store.arrays(&["a".to_owned()]).await.unwrap().len(), 0);
}

/// Its project was deleted meanwhile: nothing waits forever in silence.
#[tokio::test]
async fn an_array_whose_tasks_cannot_be_made_fails_with_the_reason() {
    let ((store, _dir), ids) = (open().await, AtomicU32::new(0));
    store.submit(&array("0-9"), "q", &at(S)).await.unwrap();
    let change = at(2 * S);
    store.clear_queue("q", &change).await.unwrap();
    store.delete_queue("q").await.unwrap();
    let (made, ended) = step(&store, &ids, 3 * S).await;
    let (state, why) = ended.unwrap();
    assert_eq!((made, state), (0, Failed));
    assert!(why.contains("its next task cannot be made"), "{why}");
    assert_eq!(store.task("a").await.unwrap().index.status, Failed);
}
