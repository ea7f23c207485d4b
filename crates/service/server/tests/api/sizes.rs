//! A queue whose slices have a size takes no task that asks for another one: the task would get the queue's size, and its user
//! would learn that an hour later.

use cantle_clearml::cantle::{NodeQueue, ReportNode};
use serde_json::{Value, json};

use crate::common::TestServer;

const OTHER_SIZE: u32 = 9005;

async fn serve(server: &TestServer, node: &str, queues: &[(&str, &str)]) {
    let queues = queues.iter().map(|(name, spec)| NodeQueue { name: (*name).into(), spec: (*spec).into() });
    let (node, worker) = (node.to_owned(), format!("{node}:gpu"));
    let report =
        ReportNode { node, worker, queues: queues.collect(), interval_ms: 600_000, ..ReportNode::default() };
    server.client.call(&report).await.unwrap();
}

fn task(asked: &[(&str, &str)]) -> Value {
    let param = |(name, value): &(&str, &str)| {
        ((*name).to_owned(), json!({"section": "cantle", "name": name, "value": value}))
    };
    let params: serde_json::Map<String, Value> = asked.iter().map(param).collect();
    json!({"name": "t", "type": "training", "hyperparams": {"cantle": params}})
}

/// The refusal of each way into a queue; `None`: it is taken.
async fn refusal(server: &TestServer, queue: &str, asked: &[(&str, &str)]) -> Option<String> {
    let submit = json!({"id": format!("{:032x}", rand()), "queue": queue, "task": task(asked)});
    let made = server.task_from(&task(asked)).await;
    let many = server.task_from(&task(asked)).await;
    let added = server.task_from(&task(asked)).await;
    let ways = [
        ("cantle.submit_task", submit),
        ("tasks.enqueue", json!({"task": made, "queue": queue})),
        ("queues.add_task", json!({"task": added, "queue": queue})),
    ];
    let mut said = Vec::new();
    for (endpoint, body) in ways {
        let (code, subcode, answer) = server.raw(endpoint, &body.to_string()).await;
        assert!(code == 200 || subcode == u64::from(OTHER_SIZE), "{endpoint}: {answer}");
        let text = answer["meta"]["result_msg"].as_str().unwrap().to_owned();
        said.push((code != 200).then_some(text));
    }
    let answer =
        server.client.call_value("tasks.enqueue_many", &json!({"ids": [many], "queue": queue})).await;
    let failed = answer.unwrap()["failed"][0]["error"]["msg"].as_str().map(str::to_owned);
    said.push(failed);
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "{said:?}");
    said.pop().unwrap()
}

fn rand() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[tokio::test]
async fn a_queue_says_what_it_gives() {
    let server = TestServer::start().await;
    let mut ids = Vec::new();
    for name in ["half", "two", "few", "none", "own", "both"] {
        ids.push((name, server.queue(name).await));
    }
    let specs =
        [("half", "0.5"), ("two", "2"), ("few", "1-3"), ("none", "none"), ("own", "task"), ("both", "0.5")];
    serve(&server, "n1", &specs).await;
    serve(&server, "n2", &[("both", "task")]).await;
    let wishes: [&[(&str, &str)]; 8] = [
        &[],
        &[("gpu", "0.5")],
        &[("gpu", "1")],
        &[("gpus", "2")],
        &[("gpu_memory", "39Gi")],
        &[("mig_profile", "1g.5gb")],
        &[("compute", "fair")],
        &[("isolation", "shared")],
    ];
    let gives = |queue: &str| -> (&str, &[usize]) {
        match queue {
            "half" => ("each task 0.5 GPU", &[0, 1, 6, 7]),
            "two" => ("each task 2 GPUs", &[0, 3, 6, 7]),
            "few" => ("each task 1 to 3 GPUs", &[0, 6, 7]),
            "none" => ("tasks no GPU", &[0]),
            _ => ("", &[0, 1, 2, 3, 4, 5, 6, 7]),
        }
    };
    for (name, id) in &ids {
        let (gives, taken) = gives(name);
        for (n, asked) in wishes.iter().enumerate() {
            let said = refusal(&server, id, asked).await;
            assert_eq!(said.is_none(), taken.contains(&n), "{name} {asked:?}: {said:?}");
            if let Some(said) = said {
                assert!(said.contains(&format!("queue {name} gives {gives}")), "{said}");
            }
        }
    }
}

#[tokio::test]
async fn a_queue_that_nobody_serves_takes_everything() {
    let server = TestServer::start().await;
    let queue = server.queue("half").await;
    assert_eq!(refusal(&server, &queue, &[("gpus", "3")]).await, None);
}
