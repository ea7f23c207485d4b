//! Many tasks at a time: the same as one after the other, all or none; and waiting agents are woken.

use std::time::Duration;

use cantle_model::TaskStatus;
use cantle_store::{Change, NamedRun, NewTask, Store, StoreError};
use serde_json::Map;

use crate::common;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

async fn open() -> (Store, common::Fresh) {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    for n in 0..6 {
        let new = NewTask {
            id: format!("t{n}"),
            name: format!("t{n}"),
            kind: "training".into(),
            ..NewTask::default()
        };
        store.create_task(&new, 1).await.unwrap();
    }
    (store, fresh)
}

fn ids(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("t{n}")).collect()
}

async fn status(store: &Store, task: &str) -> TaskStatus {
    store.task(task).await.unwrap().index.status
}

#[tokio::test]
async fn a_batch_does_what_one_call_for_each_task_does() {
    let (one, _dir) = open().await;
    let (many, _other) = open().await;
    for task in ids(0..4) {
        one.enqueue(&task, "q", &at(10)).await.unwrap();
    }
    many.enqueue_many(&ids(0..4), "q", &at(10)).await.unwrap();
    let mut taken = Vec::new();
    while taken.len() < 3 {
        taken.push(one.take_next("q", None, 20).await.unwrap().unwrap());
    }
    assert_eq!(many.take_many("q", 3, 20).await.unwrap(), taken);
    let change = Change { force: true, reason: "done".into(), ..at(30) };
    for found in &taken {
        let change = Change { run: Some(found.run), ..change.clone() };
        one.set_status(&found.task, TaskStatus::Completed, &change).await.unwrap();
    }
    let runs: Vec<NamedRun> =
        taken.iter().map(|found| NamedRun { task: found.task.clone(), run: found.run }).collect();
    // Clients repeat calls.
    for _ in 0..2 {
        many.end_many(&runs, TaskStatus::Completed, &change).await.unwrap();
    }
    // One of them again.
    let again = Change { force: true, ..at(40) };
    one.enqueue("t1", "q", &again).await.unwrap();
    many.enqueue_many(&["t1".to_owned()], "q", &again).await.unwrap();
    for task in ids(0..4) {
        let record = async |store: &Store| format!("{:?}", store.task(&task).await.unwrap());
        assert_eq!(record(&one).await, record(&many).await);
        assert_eq!(one.runs(&task).await.unwrap(), many.runs(&task).await.unwrap());
    }
    assert_eq!(one.queue("q").await.unwrap().entries, many.queue("q").await.unwrap().entries);
    let said = async |store: &Store| {
        let events = store.events(None, Some(0), 100).await.unwrap().into_iter();
        events
            .map(|event| (event.time_us, event.kind, event.task, event.queue, event.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&one).await, said(&many).await);
}

#[tokio::test]
async fn a_batch_is_refused_as_a_whole() {
    let (store, _dir) = open().await;
    store.enqueue_many(&ids(0..2), "q", &at(10)).await.unwrap();
    let refused = store.enqueue_many(&ids(1..4), "q", &at(11)).await.unwrap_err();
    assert!(matches!(refused, StoreError::AlreadyQueued { ref task, .. } if task == "t1"), "{refused}");
    let unknown = ["t2".to_owned(), "nobody".to_owned()];
    let refused = store.enqueue_many(&unknown, "q", &at(11)).await.unwrap_err();
    assert!(matches!(refused, StoreError::NoTask(ref task) if task == "nobody"), "{refused}");
    assert!(matches!(store.enqueue_many(&ids(2..3), "p", &at(11)).await, Err(StoreError::NoQueue(_))));
    assert_eq!(store.queue("q").await.unwrap().entries, [("t0".to_owned(), 10), ("t1".to_owned(), 10)]);
    assert_eq!(status(&store, "t2").await, TaskStatus::Created);
    assert!(matches!(store.take_many("p", 2, 20).await, Err(StoreError::NoQueue(_))));
    // The second one was taken again meanwhile.
    let taken = store.take_many("q", 9, 20).await.unwrap();
    store.enqueue("t1", "q", &at(21)).await.unwrap();
    assert!(store.take_many("q", 9, 22).await.unwrap().iter().all(|found| found.run == 2));
    let runs: Vec<NamedRun> =
        taken.into_iter().map(|found| NamedRun { task: found.task, run: found.run }).collect();
    let change = Change { force: true, ..at(30) };
    let refused = store.end_many(&runs, TaskStatus::Completed, &change).await.unwrap_err();
    assert!(
        matches!(refused, StoreError::StaleRun { ref task, run: 1, newest: 2 } if task == "t1"),
        "{refused}"
    );
    assert_eq!(status(&store, "t0").await, TaskStatus::Queued);
}

#[tokio::test]
async fn a_limit_counts_the_whole_batch() {
    let (store, fresh) = open().await;
    fresh.meddle("INSERT INTO users (id, name, created_us, most_queued) VALUES ('u', 'u', 1, 3)").await;
    fresh.meddle("UPDATE tasks SET owner = 'u'").await;
    let wish = Change { is_wish: true, ..at(10) };
    assert!(matches!(store.enqueue_many(&ids(0..4), "q", &wish).await, Err(StoreError::OverQueued { .. })));
    store.enqueue_many(&ids(0..3), "q", &wish).await.unwrap();
    assert!(matches!(store.enqueue_many(&ids(3..4), "q", &wish).await, Err(StoreError::OverQueued { .. })));
}

#[tokio::test]
async fn who_waits_at_a_queue_is_rung_for_by_another_server_too() {
    let (store, fresh) = open().await;
    let waits = async |at: &Store| {
        tokio::time::timeout(Duration::from_secs(60), at.woken(&["q".to_owned()])).await.is_ok()
    };
    let (rung, ()) = tokio::join!(waits(&store), async { store.enqueue("t0", "q", &at(10)).await.unwrap() });
    assert!(rung);
    if !store.is_shared() {
        return;
    }
    let other = fresh.open().await;
    let carried = async {
        tokio::select! {
            () = async { tokio::join!(store.carry_wakeups(), other.carry_wakeups()); } => {}
            found = async {
                // Until both listen, a ring is lost: as when PostgreSQL is away.
                for n in 0..300 {
                    store.take_many("q", 9, 20 + n).await.unwrap();
                    store.enqueue("t0", "q", &at(20 + n)).await.unwrap();
                    if tokio::time::timeout(Duration::from_millis(200), other.woken(&["q".to_owned()])).await.is_ok() {
                        return;
                    }
                }
                panic!("no ring in a minute");
            } => found,
        }
    };
    carried.await;
}
