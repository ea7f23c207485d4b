//! The states of a task on the server, and every deviation.

use cantle_clearml::cantle::{
    ExplainTask, GetEvents, GetNodes, GetQueues, GetTasks, NodeQueue, ReportNode, ReportTask, WaitReport,
};
use cantle_clearml::events::{GetTaskLog, ReportedEvent};
use cantle_clearml::tasks::{
    Completed, Delete, Dequeue, Edit, Enqueue, Failed, GetAll, GetById, Ping, Reset, Started, Stop, Stopped,
    Task,
};
use cantle_clearml::workers::{self, StatusReport};
use cantle_clearml::{Listing, TaskRequest, projects, queues};
use cantle_model::TaskStatus;
use cantle_store::NodeRow;
use serde_json::{Map, json};

use crate::common::TestServer;

async fn task(server: &TestServer, id: &str) -> Task {
    server.client.call(&GetById { task: id.into() }).await.unwrap().task
}

async fn status(server: &TestServer, id: &str) -> TaskStatus {
    task(server, id).await.status.unwrap()
}

async fn start(server: &TestServer, id: &str) {
    let started = Started { task: id.into(), ..Started::default() };
    assert_eq!(server.client.call(&started).await.unwrap().updated, 1);
}

fn report(node: &str, queue: &str, waiting: Vec<WaitReport>) -> ReportNode {
    let queues = vec![NodeQueue { name: queue.into(), spec: "1".into() }];
    let worker = format!("{node}:dgpu0");
    ReportNode { node: node.into(), worker, queues, waiting, interval_ms: 2000, ..ReportNode::default() }
}

#[tokio::test]
async fn from_draft_to_done() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let project = projects::Create { name: "P".into(), ..projects::Create::default() };
    let project = server.client.call(&project).await.unwrap().id;
    let id = server.task("job").await;
    let fields = Map::from_iter([("project".to_owned(), json!(project))]);
    server.client.call(&Edit { task: id.clone(), force: false, fields }).await.unwrap();
    server.enqueue(&id, &queue).await;
    assert_eq!(server.take(&queue).await, Some(id.clone()));
    assert_eq!(server.take(&queue).await, None, "taken once");
    start(&server, &id).await;
    let lines: Vec<ReportedEvent> =
        (0..250).map(|n| ReportedEvent::log(&id, "node1:gpu0", 1_000_000 - n, format!("line {n}"))).collect();
    assert_eq!(server.client.add_batch(&lines).await.unwrap().added, 250);
    let done = Completed { task: id.clone(), status_reason: Some("done".into()), ..Completed::default() };
    server.client.call(&done).await.unwrap();

    let record = task(&server, &id).await;
    assert_eq!(record.status, Some(TaskStatus::Completed));
    assert!(record.started.is_some() && record.completed.is_some());
    let request = TaskRequest::from_hyperparams(&record.hyperparams).unwrap().unwrap();
    assert_eq!(request.command, ["true"]);
    let views =
        server.client.call(&GetTasks { project: Some("P".into()), ..GetTasks::default() }).await.unwrap();
    assert_eq!(views.tasks.len(), 1);
    assert_eq!(views.tasks[0].queue.as_deref(), Some("q"), "names, not ids");
    assert_eq!(views.tasks[0].project.as_deref(), Some("P"));

    let mut seen = Vec::new();
    let mut after = 0;
    loop {
        let page = GetTaskLog {
            task: id.clone(),
            after: Some(after),
            batch_size: Some(100),
            ..GetTaskLog::default()
        };
        let page = server.client.call(&page).await.unwrap();
        if page.events.is_empty() {
            break;
        }
        after = page.position;
        seen.extend(page.events);
    }
    let text: Vec<_> = seen.into_iter().filter_map(|event| event.msg).collect();
    assert_eq!(text, (0..250).map(|n| format!("line {n}")).collect::<Vec<_>>(), "in order of arrival");

    let events = server.client.call(&GetEvents { task: Some(id), ..GetEvents::default() }).await.unwrap();
    let kinds: Vec<_> = events.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["enqueue", "start", "end"]);
}

#[tokio::test]
async fn the_newest_tasks_lead_to_the_older_ones() {
    let server = TestServer::start().await;
    let mut made = Vec::new();
    for n in 0..7 {
        made.push(server.task(&format!("t{n}")).await);
    }
    let mut seen: Vec<String> = Vec::new();
    loop {
        let request = GetTasks { limit: Some(3), older_than: seen.last().cloned(), ..GetTasks::default() };
        let page = server.client.call(&request).await.unwrap().tasks;
        if page.is_empty() {
            break;
        }
        seen.extend(page.into_iter().map(|task| task.id));
        // Tasks that arrive meanwhile are newer.
        server.task("late").await;
    }
    seen.reverse();
    assert_eq!(seen, made);
    let (status, _, answer) = server.raw("cantle.get_tasks", r#"{"older_than": "nobody"}"#).await;
    assert_eq!((status, answer["meta"]["result_subcode"].as_u64()), (400, Some(101)), "{answer}");
}

#[tokio::test]
async fn queues_keep_their_order() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c", "d"] {
        ids.push(server.task(name).await);
        server.enqueue(&ids[ids.len() - 1], &queue).await;
    }
    let front = queues::MoveTaskToFront { queue: queue.clone(), task: ids[2].clone() };
    assert_eq!(server.client.call(&front).await.unwrap().position, 0);
    let back = queues::MoveTaskToBack { queue: queue.clone(), task: ids[0].clone() };
    assert_eq!(server.client.call(&back).await.unwrap().position, 3);
    let down = queues::MoveTaskBackward { queue: queue.clone(), task: ids[2].clone(), count: Some(1) };
    assert_eq!(server.client.call(&down).await.unwrap().position, 1);
    let up = queues::MoveTaskForward { queue: queue.clone(), task: ids[3].clone(), count: Some(99) };
    assert_eq!(server.client.call(&up).await.unwrap().position, 0);
    for expected in [3, 1, 2, 0] {
        assert_eq!(server.take(&queue).await.as_deref(), Some(ids[expected].as_str()));
    }
    let gone = queues::MoveTaskToFront { queue, task: ids[0].clone() };
    assert_eq!(server.refused(&gone).await, (400, 703));
}

#[tokio::test]
async fn only_the_task_that_was_decided_upon_is_taken() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let (first, second) = (server.task("1").await, server.task("2").await);
    server.enqueue(&first, &queue).await;
    server.enqueue(&second, &queue).await;
    let only = |task: &str| queues::GetNextTask {
        queue: queue.clone(),
        task: Some(task.into()),
        ..queues::GetNextTask::default()
    };
    assert_eq!(
        server.client.call(&only(&second)).await.unwrap().entry.unwrap().task,
        second,
        "past the first"
    );
    assert!(server.client.call(&only(&second)).await.unwrap().entry.is_none(), "it is taken");
    assert_eq!(server.client.call(&only(&first)).await.unwrap().entry.unwrap().task, first);
}

#[tokio::test]
async fn refusals_have_the_documented_codes() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let id = server.task("t").await;
    let enqueue = |task: &str, queue: &str| Enqueue {
        task: task.into(),
        queue: Some(queue.into()),
        ..Enqueue::default()
    };
    assert_eq!(server.refused(&GetById { task: "nope".into() }).await, (400, 101));
    assert_eq!(server.refused(&queues::GetById { queue: "nope".into() }).await, (400, 701));
    assert_eq!(server.refused(&projects::GetById { project: "nope".into() }).await, (400, 401));
    assert_eq!(server.refused(&queues::GetDefault {}).await, (400, 707));
    assert_eq!(server.refused(&enqueue("nope", &queue)).await, (400, 101));
    assert_eq!(server.refused(&enqueue(&id, "nope")).await, (400, 701));
    server.enqueue(&id, &queue).await;
    assert_eq!(server.refused(&enqueue(&id, &queue)).await, (400, 706));
    let delete = queues::Delete { queue: queue.clone(), force: false };
    assert_eq!(server.refused(&delete).await, (400, 702));
    let twice = queues::Create { name: "q".into(), ..queues::Create::default() };
    assert_eq!(server.refused(&twice).await, (400, 801));
    assert_eq!(server.refused(&queues::Create::default()).await, (400, 12));
    let remove = queues::RemoveTask { queue: "other".into(), task: id.clone() };
    assert_eq!(server.refused(&remove).await, (400, 703));
    start(&server, &id).await;
    assert_eq!(server.refused(&Delete { task: id.clone(), ..Delete::default() }).await, (400, 110));
    let project = Map::from_iter([("project".to_owned(), json!("nope"))]);
    assert_eq!(server.refused(&Edit { task: id.clone(), force: true, fields: project }).await, (400, 401));
    assert_eq!(server.refused(&Edit { task: id, force: false, fields: Map::new() }).await, (400, 110));
    let bad = GetAll { list: Listing::named("("), ..GetAll::default() };
    assert_eq!(server.refused(&bad).await, (400, 21));
}

#[tokio::test]
async fn who_is_asked_to_stop_and_who_is_stopped() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let stop = |task: &str| Stop { task: task.into(), ..Stop::default() };

    let waiting = server.task("waiting").await;
    server.enqueue(&waiting, &queue).await;
    server.client.call(&stop(&waiting)).await.unwrap();
    assert_eq!(status(&server, &waiting).await, TaskStatus::Stopped);
    assert_eq!(server.take(&queue).await, None);

    let nobodys = server.task("nobody's").await;
    start(&server, &nobodys).await;
    server.client.call(&stop(&nobodys)).await.unwrap();
    assert_eq!(status(&server, &nobodys).await, TaskStatus::Stopped);

    let workers = server.task("a worker's").await;
    start(&server, &workers).await;
    let alive = StatusReport { worker: "w".into(), task: Some(workers.clone()), ..StatusReport::default() };
    server.client.call(&alive).await.unwrap();
    let answer = server.client.call(&stop(&workers)).await.unwrap();
    assert_eq!(answer.fields["status_message"], "stopping");
    assert_eq!(status(&server, &workers).await, TaskStatus::InProgress);
    let update = serde_json::json!({"task": workers, "status_message": "runs on w"});
    server.client.call_value("tasks.update", &update).await.unwrap();
    assert_eq!(
        task(&server, &workers).await.status_message,
        "stopping",
        "a request to stop is not overwritten"
    );
    let stopped = Stopped { task: workers.clone(), ..Stopped::default() };
    server.client.call(&stopped).await.unwrap();
    assert_eq!(status(&server, &workers).await, TaskStatus::Stopped);

    let nodes = server.task("a node's").await;
    server.client.call(&report("n", "q", Vec::new())).await.unwrap();
    let claim =
        ReportTask { task: nodes.clone(), node: "n".into(), lease: "l".into(), ..ReportTask::default() };
    server.enqueue(&nodes, &queue).await;
    server.take(&queue).await.unwrap();
    server.client.call(&claim).await.unwrap();
    start(&server, &nodes).await;
    server.client.call(&stop(&nodes)).await.unwrap();
    assert_eq!(task(&server, &nodes).await.status_message, "stopping");

    let ended = server.task("ended").await;
    start(&server, &ended).await;
    let failed = Failed { task: ended.clone(), ..Failed::default() };
    server.client.call(&failed).await.unwrap();
    assert_eq!(server.client.call(&stop(&ended)).await.unwrap().updated, 0);
    assert_eq!(status(&server, &ended).await, TaskStatus::Failed, "how it ended stays");
}

#[tokio::test]
async fn a_task_has_one_lease() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let id = server.task("t").await;
    server.enqueue(&id, &queue).await;
    server.take(&queue).await.unwrap();
    let claim = |lease: &str, exit_code: Option<i32>| ReportTask {
        task: id.clone(),
        node: "n".into(),
        lease: lease.into(),
        exit_code,
        ..ReportTask::default()
    };
    server.client.call(&claim("one", None)).await.unwrap();
    server.client.call(&claim("one", None)).await.unwrap();
    assert_eq!(server.refused(&claim("two", None)).await, (400, 110));
    start(&server, &id).await;
    assert_eq!(server.refused(&claim("two", None)).await, (400, 110));
    server.client.call(&claim("one", Some(3))).await.unwrap();
    let failed = Failed { task: id.clone(), ..Failed::default() };
    server.client.call(&failed).await.unwrap();
    let view = server.client.call(&GetTasks { id: vec![id.clone()], ..GetTasks::default() }).await.unwrap();
    assert_eq!((view.tasks[0].exit_code, view.tasks[0].node.as_deref()), (Some(3), Some("n")));

    let again = Reset { task: id.clone(), ..Reset::default() };
    server.client.call(&again).await.unwrap();
    server.enqueue(&id, &queue).await;
    server.client.call(&claim("two", None)).await.unwrap();
    assert_eq!(server.refused(&claim("one", Some(0))).await, (400, 110), "the old lease has no say any more");
}

#[tokio::test]
async fn each_waiting_task_has_a_reason() {
    let server = TestServer::start().await;
    let queue = server.queue("single_gpu").await;
    let (first, second) = (server.task("1").await, server.task("2").await);
    server.enqueue(&first, &queue).await;
    server.enqueue(&second, &queue).await;
    let why = async |task: &str| server.client.call(&ExplainTask { task: task.into() }).await.unwrap();
    assert_eq!(
        why(&first).await.reason,
        "no agent serves queue single_gpu; start one with: cantle daemon --queue single_gpu"
    );
    let stock = workers::Register {
        worker: "node1:gpu0".into(),
        queues: vec![queue.clone()],
        ..workers::Register::default()
    };
    server.client.call(&stock).await.unwrap();
    assert_eq!(why(&first).await.reason, "next in queue single_gpu; ClearML agent node1:gpu0 serves it");
    server.client.call(&report("n1", "single_gpu", Vec::new())).await.unwrap();
    assert_eq!(why(&first).await.reason, "next in queue single_gpu; n1 has not looked at it yet");
    let reason = "needs 1 GPU, free 0.25 of GPU 2";
    let waiting = vec![WaitReport { task: first.clone(), reason: reason.into(), remedy: None }];
    server.client.call(&report("n1", "single_gpu", waiting)).await.unwrap();
    let answer = why(&first).await;
    assert_eq!((answer.reason.as_str(), answer.position), (reason, Some(0)));
    assert_eq!(answer.nodes[0].reason.as_deref(), Some(reason));
    assert_eq!(why(&second).await.reason, "behind 1 other in queue single_gpu");
    let views = server.client.call(&GetTasks::default()).await.unwrap();
    assert_eq!(views.tasks[0].id, second, "newest first");
    assert_eq!(views.tasks[1].reason.as_deref(), Some(reason));
    let queues = server.client.call(&GetQueues {}).await.unwrap().queues;
    assert_eq!((queues[0].waiting, queues[0].running), (2, 0));
    assert_eq!(queues[0].nodes, ["n1"]);
    let nodes = server.client.call(&GetNodes {}).await.unwrap().nodes;
    assert!(nodes[0].alive && nodes[0].queues[0].spec == "1");
}

#[tokio::test]
async fn nothing_is_lost_in_a_restart() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let id = server.task("t").await;
    server.enqueue(&id, &queue).await;
    let server = server.restart().await;
    assert_eq!(status(&server, &id).await, TaskStatus::Queued);
    assert_eq!(server.take(&queue).await, Some(id));
}

#[tokio::test]
async fn dequeue_reset_delete() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let id = server.task("t").await;
    server.enqueue(&id, &queue).await;
    let dequeue = Dequeue { task: id.clone(), ..Dequeue::default() };
    assert_eq!(server.client.call(&dequeue).await.unwrap().dequeued, 1);
    assert_eq!(status(&server, &id).await, TaskStatus::Created);
    assert_eq!(server.client.call(&dequeue).await.unwrap().dequeued, 0, "agents ask twice");
    start(&server, &id).await;
    server.client.call(&Ping { task: id.clone() }).await.unwrap();
    server.client.add_batch(&[ReportedEvent::log(&id, "w", 1, "x".into())]).await.unwrap();
    assert_eq!(server.refused(&Reset { task: id.clone(), ..Reset::default() }).await, (400, 110));
    server.client.call(&Reset { task: id.clone(), force: true, ..Reset::default() }).await.unwrap();
    let log = GetTaskLog { task: id.clone(), ..GetTaskLog::default() };
    assert_eq!(server.client.call(&log).await.unwrap().total, 0);
    assert!(server.client.call(&Delete { task: id.clone(), ..Delete::default() }).await.unwrap().deleted);
    assert_eq!(server.refused(&GetById { task: id }).await, (400, 101));
}

#[tokio::test]
async fn a_node_that_fell_silent_is_named() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let id = server.task("t").await;
    server.enqueue(&id, &queue).await;
    server.take(&queue).await.unwrap();
    server.client.call(&report("n1", "q", Vec::new())).await.unwrap();
    let claim =
        ReportTask { task: id.clone(), node: "n1".into(), lease: "l".into(), ..ReportTask::default() };
    server.client.call(&claim).await.unwrap();
    start(&server, &id).await;
    let why = async || server.client.call(&ExplainTask { task: id.clone() }).await.unwrap().reason;
    assert_eq!(why().await, "runs on n1");
    let store = server.store().await;
    let long_ago = NodeRow { last_seen_us: 1_000_000, ..store.nodes().await.unwrap().remove(0) };
    store.report_node(&long_ago).await.unwrap();
    assert_eq!(
        why().await,
        "n1, which holds it, is silent since 1970-01-01T00:00:01.000000+00:00; if it is gone: cantle requeue"
    );
}
