//! Measured values: in order, side by side, and over time.

use cantle_clearml::events::{ReportedEvent, SCALAR};
use cantle_store::WorkerReport;
use serde_json::{Value, json};

use crate::common::TestServer;

fn point(task: &str, metric: &str, iter: i64, value: f64) -> ReportedEvent {
    ReportedEvent {
        kind: SCALAR.into(),
        task: task.into(),
        timestamp: Some(1000 + iter),
        metric: Some(metric.into()),
        variant: Some("train".into()),
        iter: Some(iter),
        value: Some(value),
        ..ReportedEvent::default()
    }
}

async fn ask(server: &TestServer, endpoint: &str, body: Value) -> Value {
    server.client.call_value(endpoint, &body).await.unwrap()
}

/// MD5 of `loss` and of `train`, as ClearML's clients name a line.
const LOSS_TRAIN: &str = "81513effdf5790b79549208838404407.61b3a8faa9c1091806675c230a9abe64";

#[tokio::test]
async fn tasks_in_order_of_a_measured_value() {
    let server = TestServer::start().await;
    let (a, b, c) = (server.task("a").await, server.task("b").await, server.task("not measured").await);
    let points = [
        point(&a, "loss", 0, 9.0),
        point(&a, "loss", 1, 2.0),
        point(&b, "loss", 0, 1.0),
        point(&b, "loss", 1, 5.0),
    ];
    server.client.add_batch(&points).await.unwrap();
    let order = async |by: String| {
        let found = ask(&server, "tasks.get_all", json!({"order_by": [by], "only_fields": ["id"]})).await;
        let ids = found["tasks"].as_array().unwrap().iter();
        ids.map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (by, expected) in [
        (format!("last_metrics.{LOSS_TRAIN}.value"), [&a, &b, &c]),
        (format!("-last_metrics.{LOSS_TRAIN}.value"), [&b, &a, &c]),
        (format!("last_metrics.{LOSS_TRAIN}.min_value"), [&b, &a, &c]),
        ("-last_metrics.loss.train.max_value".to_owned(), [&a, &b, &c]),
    ] {
        assert_eq!(order(by.clone()).await.iter().collect::<Vec<_>>(), expected, "{by}");
    }
    let line = LOSS_TRAIN.replace('.', "/");
    let fields = json!({"id": [a], "only_fields": [format!("last_metrics.{LOSS_TRAIN}")]});
    let found = ask(&server, "tasks.get_all", fields).await;
    let value = found["tasks"][0].pointer(&format!("/last_metrics/{line}/min_value"));
    assert_eq!(value, Some(&json!(2.0)), "{found}");
    for bad in ["last_metrics", "last_metrics.x", "last_metrics.loss.train.median"] {
        let (status, ..) = server.raw("tasks.get_all", &json!({"order_by": [bad]}).to_string()).await;
        assert_eq!(status, 400, "{bad}");
    }
}

#[tokio::test]
async fn several_tasks_side_by_side() {
    let server = TestServer::start().await;
    let (a, b) = (server.task("a").await, server.task("b").await);
    let plot = |iter: i64| ReportedEvent {
        kind: "plot".into(),
        task: a.clone(),
        metric: Some("roc".into()),
        variant: Some("curve".into()),
        iter: Some(iter),
        ..ReportedEvent::default()
    };
    let events =
        [point(&a, "loss", 0, 3.0), point(&a, "loss", 1, 2.0), point(&b, "loss", 0, 7.0), plot(0), plot(1)];
    assert_eq!(server.client.add_batch(&events).await.unwrap().added, 5);
    let tasks = json!({"tasks": [a, b]});
    let graphs = ask(&server, "events.multi_task_scalar_metrics_iter_histogram", tasks.clone()).await;
    let lines = &graphs["metrics"]["loss"]["train"];
    assert_eq!(lines[&a], json!({"name": "a", "x": [0, 1], "y": [3.0, 2.0]}));
    assert_eq!(lines[&b]["y"], json!([7.0]));
    let plots = ask(&server, "events.get_multi_task_plots", tasks.clone()).await;
    let curve = plots["plots"]["roc"]["curve"][&a].as_object().unwrap();
    assert_eq!(curve.keys().collect::<Vec<_>>(), ["1"], "the last iteration, if not said otherwise");
    assert_eq!(curve["1"]["plots"][0]["iter"], 1);
    let metrics = ask(&server, "events.get_multi_task_metrics", tasks).await;
    let expected =
        json!([{"metric": "loss", "variants": ["train"]}, {"metric": "roc", "variants": ["curve"]}]);
    assert_eq!(metrics["metrics"], expected);
    let scalars = json!({"tasks": [a], "event_type": SCALAR});
    let metrics = ask(&server, "events.get_task_metrics", scalars).await;
    assert_eq!(metrics["metrics"], json!([{"task": a, "metrics": ["loss"]}]));
    let names = ask(&server, "events.get_scalar_metrics_and_variants", json!({"task": b})).await;
    assert_eq!(names["metrics"], json!({"loss": ["train"]}));
    let (status, subcode, _) = server.raw("events.get_multi_task_plots", r#"{"tasks": ["nope"]}"#).await;
    assert_eq!((status, subcode), (400, 101));
}

/// A minute of the year 2100, in which nothing else happens. The server deletes samples that are too old, at any moment of the test.
const T_US: i64 = 4_102_444_800_000_000;
const MINUTE_US: i64 = 60_000_000;

#[tokio::test]
async fn workers_and_queues_over_time() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let store = server.store().await;
    let report = |id: &str, task: Option<&str>, cpu: &str| WorkerReport {
        id: id.into(),
        task: task.map(str::to_owned),
        machine_stats: Some(format!(r#"{{"cpu_usage": {cpu}, "gpu_usage": [7]}}"#)),
        ..WorkerReport::default()
    };
    for (worker, task, cpu, minute) in [
        ("w1", Some("t"), "[10, 30]", 0),
        ("w1", None, "[50, 70]", 1),
        ("w2", None, "5", 1),
        ("w2", None, "6", 9),
    ] {
        store.report_worker(&report(worker, task, cpu), T_US + minute * MINUTE_US).await.unwrap();
    }
    // Two points of five minutes, the second one with the last report.
    let span = |more: Value| {
        let mut body =
            json!({"from_date": T_US / 1_000_000, "to_date": T_US / 1_000_000 + 600, "interval": 300});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let items =
        json!({"items": [{"key": "cpu_usage"}, {"key": "cpu_usage", "aggregation": "max"}, {"key": "no"}]});
    let stats = ask(&server, "workers.get_stats", span(items)).await;
    let first = T_US / 1000;
    let stats_of = |n: usize| &stats["workers"][n]["metrics"][0]["stats"];
    assert_eq!(stats["workers"][0]["worker"], "w1");
    let average = json!({"aggregation": "avg", "dates": [first], "values": [40.0]});
    assert_eq!(stats_of(0), &json!([average, {"aggregation": "max", "dates": [first], "values": [70.0]}]));
    assert_eq!(stats_of(1)[0]["values"], json!([5.0, 6.0]));
    assert_eq!(stats_of(1)[0]["dates"], json!([first, first + 300_000]));
    let activity = ask(&server, "workers.get_activity_report", span(json!({}))).await;
    assert_eq!(activity["total"]["counts"], json!([2, 1]));
    assert_eq!(activity["active"]["counts"], json!([1, 0]));
    let keys = ask(&server, "workers.get_metric_keys", json!({"worker_ids": ["w2"]})).await;
    let expected =
        json!([{"name": "cpu", "metric_keys": ["cpu_usage"]}, {"name": "gpu", "metric_keys": ["gpu_usage"]}]);
    assert_eq!(keys["categories"], expected);

    let id = server.task("t").await;
    server.enqueue(&id, &queue).await;
    let now =
        json!({"from_date": 0, "to_date": 9e9, "interval": 86400, "refresh": true, "queue_ids": [queue]});
    let waiting = ask(&server, "queues.get_queue_metrics", now).await;
    assert_eq!(waiting["queues"][0]["queue"], json!(queue));
    assert_eq!(waiting["queues"][0]["queue_lengths"].as_array().unwrap().last(), Some(&json!(1)));
    for (from, to, interval) in [(2.0, 1.0, 60), (-1.0, 1.0, 60), (0.0, 1.0, 0)] {
        let body = json!({"from_date": from, "to_date": to, "interval": interval}).to_string();
        for endpoint in ["queues.get_queue_metrics", "workers.get_activity_report"] {
            assert_eq!(server.raw(endpoint, &body).await.0, 400, "{endpoint} {body}");
        }
    }
}
