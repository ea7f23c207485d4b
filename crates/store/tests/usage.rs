//! What accounts are made of: runs with their owner and wait, and the states of GPUs over time.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says by panicking that something is wrong")]

mod common;

use cantle_model::TaskStatus;
use cantle_store::{Change, GpuTimeRow, NewTask};
use serde_json::Map;

fn at(now_us: i64) -> Change {
    Change { now_us, ..Change::default() }
}

fn time(gpu: &str, from_us: i64, node: &str, state: &str) -> GpuTimeRow {
    let (gpu, node, model) = (gpu.to_owned(), node.to_owned(), "A100".to_owned());
    GpuTimeRow { gpu, from_us, to_us: None, node, model, state: state.to_owned() }
}

#[tokio::test]
async fn a_run_keeps_whose_it_was_and_how_long_it_waited() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.create_queue("q", "q", &Map::new(), 1).await.unwrap();
    let new = |id: &str| NewTask {
        id: id.into(),
        name: format!("name of {id}"),
        kind: "training".into(),
        owner: "ann".into(),
        ..NewTask::default()
    };
    for (id, now_us) in [("a", 10), ("b", 20), ("c", 30)] {
        store.submit(&new(id), "q", &at(now_us)).await.unwrap();
    }
    // The three ways out of a queue.
    store.take_next("q", None, 100).await.unwrap().unwrap();
    store.take_next("q", Some("c"), 100).await.unwrap().unwrap();
    assert_eq!(store.take_many("q", 5, 100).await.unwrap().len(), 1);
    for id in ["a", "b", "c"] {
        store.set_status(id, TaskStatus::InProgress, &at(110)).await.unwrap();
        store.set_status(id, TaskStatus::Completed, &at(200)).await.unwrap();
        store.delete_task(id, &at(300)).await.unwrap();
    }
    let runs = store.runs_between(150, 1000).await.unwrap();
    let seen: Vec<_> = runs
        .iter()
        .map(|run| (&*run.task, run.owner.as_deref(), run.name.as_deref(), run.queued_us))
        .collect();
    assert_eq!(
        seen,
        [
            ("a", Some("ann"), Some("name of a"), Some(10)),
            ("b", Some("ann"), Some("name of b"), Some(20)),
            ("c", Some("ann"), Some("name of c"), Some(30)),
        ]
    );
    for (from_us, to_us, count) in [(0, 100, 0), (0, 101, 3), (199, 200, 3), (200, 300, 0)] {
        assert_eq!(store.runs_between(from_us, to_us).await.unwrap().len(), count, "{from_us} to {to_us}");
    }
}

#[tokio::test]
async fn the_times_of_a_gpu_leave_no_gap() {
    let fresh = common::fresh().await;
    let store = fresh.open().await;
    store.begin_gpu_times(&[time("g", 100, "n", "here"), time("h", 100, "n", "here")]).await.unwrap();
    store.begin_gpu_times(&[time("g", 200, "n", "away")]).await.unwrap();
    // The clock was set back, and the GPU is in another node now.
    store.begin_gpu_times(&[time("g", 50, "m", "here")]).await.unwrap();
    let times = store.gpu_times(0, 1000).await.unwrap();
    let seen: Vec<_> =
        times.iter().map(|time| (&*time.gpu, time.from_us, time.to_us, &*time.node, &*time.state)).collect();
    assert_eq!(
        seen,
        [
            ("g", 100, Some(200), "n", "here"),
            ("g", 200, Some(201), "n", "away"),
            ("g", 201, None, "m", "here"),
            ("h", 100, None, "n", "here"),
        ]
    );
    let lasting = |times: Vec<GpuTimeRow>| times.into_iter().map(|time| time.gpu).collect::<Vec<_>>();
    assert_eq!(lasting(store.lasting_gpu_times(Some("n")).await.unwrap()), ["h"]);
    assert_eq!(lasting(store.lasting_gpu_times(None).await.unwrap()).len(), 2);
    assert_eq!(store.gpu_times(200, 201).await.unwrap().len(), 2);
}
