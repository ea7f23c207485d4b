//! Calls for many tasks, and a call that waits for one.

use cantle_clearml::batch::{CompleteTasks, TakeTasks, TaskRun, WaitForTasks};
use cantle_clearml::queues::GetNextTask;
use cantle_model::TaskStatus;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

use crate::common::TestServer;

#[tokio::test]
async fn many_tasks_are_enqueued_taken_and_completed_at_once() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let mut ids = Vec::new();
    for n in 0..3 {
        ids.push(server.task(&format!("t{n}")).await);
    }
    let call = async |ids: &[String]| {
        let many = json!({"ids": ids, "queue": queue});
        server.client.call_value("tasks.enqueue_many", &many).await.unwrap()
    };
    let answer = call(&ids[..2]).await;
    assert_eq!(
        (answer["succeeded"][1]["queued"].as_u64(), answer["failed"].as_array().unwrap().len()),
        (Some(1), 0)
    );
    // One waits already: the others are enqueued all the same.
    let answer = call(&ids).await;
    assert_eq!(answer["succeeded"][0]["id"], json!(ids[2]));
    assert_eq!(answer["failed"].as_array().unwrap().len(), 2);
    let take = TakeTasks { queue: queue.clone(), count: 9 };
    let taken = server.client.call(&take).await.unwrap().entries;
    assert_eq!(taken.iter().map(|entry| &entry.task).collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
    let runs: Vec<TaskRun> =
        taken.into_iter().map(|entry| TaskRun { task: entry.task, run: entry.run.unwrap() }).collect();
    let mut wrong = runs.clone();
    wrong[2].run = 2;
    server.refused(&CompleteTasks { runs: wrong, force: true }).await;
    assert_eq!(server.store().await.task(&ids[0]).await.unwrap().index.status, TaskStatus::Queued);
    server.client.call(&CompleteTasks { runs, force: true }).await.unwrap();
    for id in &ids {
        assert_eq!(server.store().await.task(id).await.unwrap().index.status, TaskStatus::Completed);
    }
}

#[tokio::test]
async fn a_call_waits_at_queues_that_exist() {
    let server = TestServer::start().await;
    let (queue, task) = (server.queue("q").await, server.task("t").await);
    let wait = |queues: &[&str], wait_ms| {
        let queues = queues.iter().map(|&queue| queue.to_owned()).collect();
        WaitForTasks { queues, wait_ms }
    };
    assert!(!server.client.call(&wait(&[&queue], 50)).await.unwrap().rung);
    let long = wait(&[&queue], 10_000);
    let (answer, ()) = tokio::join!(server.client.call(&long), server.enqueue(&task, &queue));
    assert!(answer.unwrap().rung);
    assert_eq!(server.refused(&wait(&[&queue, "no-such"], 10_000)).await.0, 400, "each name would be kept");
}

/// They watch a clock: `cargo xtask test clock` runs them.
mod clock {
    use super::*;

    #[tokio::test]
    #[ignore = "clock"]
    async fn a_call_waits_until_a_task_comes_or_its_time_is_over() {
        let server = TestServer::start().await;
        let (queue, task) = (server.queue("q").await, server.task("t").await);
        let next =
            |wait_ms| GetNextTask { queue: queue.clone(), wait_ms: Some(wait_ms), ..GetNextTask::default() };
        let begin = Instant::now();
        assert!(server.client.call(&next(300)).await.unwrap().entry.is_none());
        assert!(begin.elapsed() >= Duration::from_millis(300));
        let (short, long) = (next(1), next(10_000));
        let begin = Instant::now();
        let (found, ()) = tokio::join!(server.client.call(&long), async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            server.enqueue(&task, &queue).await;
        });
        assert_eq!(found.unwrap().entry.unwrap().task, task);
        assert!(begin.elapsed() < Duration::from_secs(9), "it was rung for");
        assert!(server.client.call(&short).await.unwrap().entry.is_none());
    }
}
