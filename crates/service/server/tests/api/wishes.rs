//! Time limits and dependencies, as the server's callers see them: each way into a queue has the same answer.

use std::time::Duration;

use cantle_clearml::cantle::{ExplainTask, GetQueues, GetTasks};
use cantle_clearml::quotas::SetQuota;
use cantle_clearml::times::{ExtendTask, SetQueueTimes, ShortenTask};
use cantle_clearml::users::{GetUsers, SetUser};
use cantle_clearml::{Client, Credentials};
use cantle_model::{ProjectQuota, TimeLimit, UserLimits};
use serde_json::{Value, json};

use crate::common::TestServer;

fn task(asked: &[(&str, &str)]) -> Value {
    let param = |(name, value): &(&str, &str)| {
        ((*name).to_owned(), json!({"section": "cantle", "name": name, "value": value}))
    };
    let params: serde_json::Map<String, Value> = asked.iter().map(param).collect();
    json!({"name": "t", "type": "training", "hyperparams": {"cantle": params}})
}

fn id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{:032x}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Brings such a task into the queue in each way; the ids, or the refusal, which has to be the same for all.
async fn enter(
    server: &TestServer,
    queue: &str,
    asked: &[(&str, &str)],
) -> Result<Vec<String>, (u64, String)> {
    enter_all(server, queue, &task(asked)).await
}

/// The same for a task with a project.
async fn enter_all(server: &TestServer, queue: &str, task: &Value) -> Result<Vec<String>, (u64, String)> {
    let (submitted, mut ids, mut said) = (id(), Vec::new(), Vec::new());
    let made = [server.task_from(task).await, server.task_from(task).await];
    let many = server.task_from(task).await;
    let ways = [
        ("cantle.submit_task", &submitted, json!({"id": submitted, "queue": queue, "task": task})),
        ("tasks.enqueue", &made[0], json!({"task": made[0], "queue": queue})),
        ("queues.add_task", &made[1], json!({"task": made[1], "queue": queue})),
    ];
    for (endpoint, task, body) in ways {
        let (code, subcode, answer) = server.raw(endpoint, &body.to_string()).await;
        let text = answer["meta"]["result_msg"].as_str().unwrap().to_owned();
        said.push((code != 200).then_some((subcode, text)));
        ids.push(task.clone());
    }
    let answer =
        server.client.call_value("tasks.enqueue_many", &json!({"ids": [many], "queue": queue})).await;
    let error = answer.unwrap()["failed"][0]["error"].clone();
    let text = error["msg"].as_str().map(str::to_owned);
    said.push(text.map(|text| (error["codes"][1].as_u64().unwrap(), text)));
    ids.push(many);
    assert!(said.windows(2).all(|pair| pair[0] == pair[1]), "{said:?}");
    said.pop().unwrap().map_or(Ok(ids), Err)
}

async fn limit(client: &Client, task: &str) -> Option<String> {
    let request = GetTasks { id: vec![task.to_owned()], ..GetTasks::default() };
    let limit = client.call(&request).await.unwrap().tasks[0].time_limit_s;
    let of_clearml = client.call_value("tasks.get_by_id", &json!({"task": task})).await.unwrap();
    let of_clearml = of_clearml["task"].get("cantle_time_limit_s").cloned();
    assert_eq!(of_clearml, limit.map(|limit| json!(limit)), "agents read it there");
    limit.map(|limit| limit.to_string())
}

fn times(queue: &str, max: Option<&str>, default: Option<&str>) -> SetQueueTimes {
    let seconds = |text: &str| text.parse::<TimeLimit>().map_or(0, TimeLimit::seconds);
    SetQueueTimes {
        queue: queue.to_owned(),
        max_time_s: max.map(seconds),
        default_time_s: default.map(seconds),
        ..SetQueueTimes::default()
    }
}

#[tokio::test]
async fn a_queue_limits_the_time_of_its_tasks() {
    let server = TestServer::start().await;
    let queue = server.queue("short").await;
    let client = &server.client;
    for task in enter(&server, &queue, &[]).await.unwrap() {
        assert_eq!(limit(client, &task).await, None, "no queue has a limit by itself");
    }
    client.call(&times("short", Some("2h"), None)).await.unwrap();
    for (asked, expected) in
        [(&[][..], "2h"), (&[("time", "90m")][..], "1h30m"), (&[("time", "2h")][..], "2h")]
    {
        for task in enter(&server, &queue, asked).await.unwrap() {
            assert_eq!(limit(client, &task).await.as_deref(), Some(expected), "{asked:?}");
        }
    }
    let (code, text) = enter(&server, &queue, &[("time", "3h")]).await.unwrap_err();
    assert_eq!((code, text.as_str()), (9006, "queue short gives tasks at most 2h; this task asks for 3h"));
    let (_, text) = enter(&server, &queue, &[("time", "soon")]).await.unwrap_err();
    assert!(text.contains("parameter cantle/time is \"soon\"; write a run time such as 2h"), "{text}");

    client.call(&times("short", None, Some("1h"))).await.unwrap();
    let shown = client.call(&GetQueues {}).await.unwrap().queues;
    let shown = shown.iter().find(|queue| queue.name == "short").unwrap();
    assert_eq!((shown.max_time_s, shown.default_time_s), ("2h".parse().ok(), "1h".parse().ok()));
    let task = enter(&server, &queue, &[]).await.unwrap().pop().unwrap();
    assert_eq!(limit(client, &task).await.as_deref(), Some("1h"));
    for (wrong, says) in [
        (times("short", None, Some("3h")), "queue short would give tasks 3h by default, and at most 2h"),
        (times("long", Some("1h"), None), "no queue \"long\""),
        (SetQueueTimes { max_time_s: Some(u64::MAX), ..times("short", None, None) }, "is not between 0 and"),
    ] {
        let refused = client.call(&wrong).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    client.call(&times("short", Some("none"), Some("none"))).await.unwrap();
    let task = enter(&server, &queue, &[]).await.unwrap().pop().unwrap();
    assert_eq!(limit(client, &task).await, None);
}

#[tokio::test]
async fn projects_and_users_limit_the_time_of_their_tasks() {
    let server = TestServer::start().await;
    let queue = server.queue("long").await;
    let client = &server.client;
    client.call(&times("long", Some("2d"), Some("1d"))).await.unwrap();
    let set_project = async |project: &str, time: Option<&str>| {
        let max_time_s = time.map(|text| text.parse().unwrap());
        let quota = Some(ProjectQuota { max_time_s, ..ProjectQuota::default() });
        client.call(&SetQuota { project: project.to_owned(), quota }).await.unwrap();
    };
    set_project("team", Some("8h")).await;
    set_project("team/vision", Some("12h")).await;
    let project = client.call_value("projects.get_all", &json!({"name": "^team/vision$"})).await.unwrap();
    let in_vision = |asked: &[(&str, &str)]| {
        let mut task = task(asked);
        task["project"] = project["projects"][0]["id"].clone();
        task
    };
    let refusal = async |task: &Value| enter_all(&server, &queue, task).await.unwrap_err();
    // The shortest of the limits is also the time of a task that asks for none.
    for (asked, expected) in [(&[][..], "8h"), (&[("time", "8h")][..], "8h"), (&[("time", "1h")][..], "1h")] {
        for task in enter_all(&server, &queue, &in_vision(asked)).await.unwrap() {
            assert_eq!(limit(client, &task).await.as_deref(), Some(expected), "{asked:?}");
        }
    }
    let (code, text) = refusal(&in_vision(&[("time", "9h")])).await;
    assert_eq!((code, text.as_str()), (9006, "tasks of project team run at most 8h; this task asks for 9h"));
    let (_, text) = refusal(&in_vision(&[("time", "3d")])).await;
    assert_eq!(text, "queue long gives tasks at most 2d; this task asks for 3d");
    set_project("team", None).await;
    let (_, text) = refusal(&in_vision(&[("time", "13h")])).await;
    assert_eq!(text, "tasks of project team/vision run at most 12h; this task asks for 13h");
    let other = enter(&server, &queue, &[("time", "2d")]).await.unwrap().pop().unwrap();
    assert_eq!(limit(client, &other).await.as_deref(), Some("2d"), "other projects are free");

    let own = client.call(&GetUsers {}).await.unwrap().users.remove(0);
    let limits = UserLimits { time_s: "2h".parse().ok(), ..own.limits };
    client.call(&SetUser { user: own.name.clone(), limits }).await.unwrap();
    let (_, text) = refusal(&in_vision(&[("time", "3h")])).await;
    assert_eq!(text, format!("tasks of user {} run at most 2h; this task asks for 3h", own.name));
    let task = enter(&server, &queue, &[]).await.unwrap().pop().unwrap();
    assert_eq!(limit(client, &task).await.as_deref(), Some("2h"));
    let shown = client.call(&GetUsers {}).await.unwrap().users.remove(0).limits;
    assert_eq!(shown, limits);
    client.call(&SetUser { user: own.name, limits: own.limits }).await.unwrap();
    assert_eq!(limit(client, &enter(&server, &queue, &[]).await.unwrap()[0]).await.as_deref(), Some("1d"));
}

#[tokio::test]
async fn managers_extend_and_owners_shorten() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let task = enter(&server, &queue, &[("time", "2h")]).await.unwrap().pop().unwrap();
    let by = |hours: u64| ExtendTask { task: task.clone(), by_s: hours * 3600, idle: false };
    let less = |hours: u64| ShortenTask { task: task.clone(), by_s: hours * 3600, idle: false };
    let client = &server.client;
    assert_eq!(client.call(&by(1)).await.unwrap().time_limit_s.to_string(), "3h");
    assert_eq!(client.call(&less(2)).await.unwrap().time_limit_s.to_string(), "1h");
    let refused = client.call(&less(1)).await.unwrap_err().to_string();
    assert_eq!(refused, format!("task {task} may run 1h: from 1s to 366d have to be left"));
    let refused = client
        .call(&ExtendTask { task: task.clone(), by_s: u64::MAX, idle: false })
        .await
        .unwrap_err()
        .to_string();
    assert!(refused.contains("from 1s to 366d have to be left"), "{refused}");
    let (task, by) = (enter(&server, &queue, &[]).await.unwrap().pop().unwrap(), 60);
    let refused =
        client.call(&ExtendTask { task: task.clone(), by_s: by, idle: false }).await.unwrap_err().to_string();
    assert_eq!(refused, format!("task {task} has no time limit"));
}

async fn idle_limit(client: &Client, task: &str) -> Option<String> {
    let request = GetTasks { id: vec![task.to_owned()], ..GetTasks::default() };
    let limit = client.call(&request).await.unwrap().tasks[0].idle_limit_s;
    let of_clearml = client.call_value("tasks.get_by_id", &json!({"task": task})).await.unwrap();
    let of_clearml = of_clearml["task"].get("cantle_idle_limit_s").cloned();
    assert_eq!(of_clearml, limit.map(|limit| json!(limit)), "agents read it there");
    limit.map(|limit| limit.to_string())
}

#[tokio::test]
async fn a_queue_limits_how_long_its_tasks_are_idle() {
    let server = TestServer::start().await;
    let queue = server.queue("short").await;
    let client = &server.client;
    for task in enter(&server, &queue, &[("time", "2h")]).await.unwrap() {
        assert_eq!(idle_limit(client, &task).await, None, "no queue has one by itself");
    }
    let of = |max: Option<u64>, default: Option<u64>| SetQueueTimes {
        queue: "short".to_owned(),
        max_idle_s: max,
        default_idle_s: default,
        ..SetQueueTimes::default()
    };
    client.call(&of(Some(3600), None)).await.unwrap();
    for (asked, expected) in
        [(&[][..], "1h"), (&[("idle", "90s")][..], "1m30s"), (&[("idle", "1h")][..], "1h")]
    {
        for task in enter(&server, &queue, asked).await.unwrap() {
            assert_eq!(idle_limit(client, &task).await.as_deref(), Some(expected), "{asked:?}");
        }
    }
    let (code, text) = enter(&server, &queue, &[("idle", "2h")]).await.unwrap_err();
    let says = "queue short lets tasks be idle for at most 1h; this task asks for 2h";
    assert_eq!((code, text.as_str()), (9006, says));
    let (_, text) = enter(&server, &queue, &[("idle", "10s")]).await.unwrap_err();
    assert!(
        text.contains("parameter cantle/idle is \"10s\"; write an idle time such as 2h, at least 1m"),
        "{text}"
    );

    client.call(&of(None, Some(600))).await.unwrap();
    let shown = client.call(&GetQueues {}).await.unwrap().queues;
    let shown = shown.iter().find(|queue| queue.name == "short").unwrap();
    assert_eq!((shown.max_idle_s, shown.default_idle_s), ("1h".parse().ok(), "10m".parse().ok()));
    assert_eq!((shown.max_time_s, shown.default_time_s), (None, None));
    let task = enter(&server, &queue, &[]).await.unwrap().pop().unwrap();
    assert_eq!(idle_limit(client, &task).await.as_deref(), Some("10m"));
    for (wrong, says) in [
        (of(None, Some(7200)), "queue short would let tasks be idle for 2h by default, and for at most 1h"),
        (of(Some(10), None), "max_idle_s: 10 is neither 0 nor between 60 and"),
        (of(None, Some(u64::MAX)), "default_idle_s: 18446744073709551615 is neither 0 nor between 60 and"),
    ] {
        let refused = client.call(&wrong).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
    // It is changed apart from the time limit, which this task does not have.
    let more = ExtendTask { task: task.clone(), by_s: 600, idle: true };
    assert_eq!(client.call(&more).await.unwrap().time_limit_s.to_string(), "20m");
    let less = ShortenTask { task: task.clone(), by_s: 900, idle: true };
    assert_eq!(client.call(&less).await.unwrap().time_limit_s.to_string(), "5m");
    assert_eq!(idle_limit(client, &task).await.as_deref(), Some("5m"));
    let refused = client.call(&ExtendTask { idle: false, ..more }).await.unwrap_err().to_string();
    assert_eq!(refused, format!("task {task} has no time limit"));
    client.call(&of(Some(0), Some(0))).await.unwrap();
    let task = enter(&server, &queue, &[]).await.unwrap().pop().unwrap();
    assert_eq!(idle_limit(client, &task).await, None);
}

async fn reason(client: &Client, task: &str) -> String {
    client.call(&ExplainTask { task: task.to_owned() }).await.unwrap().reason
}

#[tokio::test]
async fn a_task_waits_for_another_and_says_so() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let client = &server.client;
    let first = server.task("train-1").await;
    server.enqueue(&first, &queue).await;
    let after = format!("ok:{first}");
    let waiting = enter(&server, &queue, &[("after", &after)]).await.unwrap();
    assert_eq!(server.take(&queue).await.as_deref(), Some(first.as_str()));
    assert_eq!(server.take(&queue).await, None, "a stock agent gets none of the others");
    let body = json!({"task": first, "status_reason": "", "force": true});
    client.call_value("tasks.started", &body).await.unwrap();
    for task in &waiting {
        assert_eq!(reason(client, task).await, "after train-1 (running)");
    }
    client.call_value("tasks.completed", &body).await.unwrap();
    let mut taken = Vec::new();
    for _ in 0..200 {
        taken.extend(server.take(&queue).await);
        if taken.len() == waiting.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    taken.sort();
    let mut expected = waiting.clone();
    expected.sort();
    assert_eq!(taken, expected);
    // A task that has ended already is not waited for, or refused.
    let late = enter(&server, &queue, &[("after", &after)]).await.unwrap();
    assert!(reason(client, &late[0]).await.starts_with("no agent serves queue q"));
    let never = format!("fail:{first}");
    let refused = enter(&server, &queue, &[("after", &never)]).await.unwrap_err();
    assert_eq!(refused, (9007, "after fail:train-1, which is completed already".to_owned()));
}

#[tokio::test]
async fn what_can_never_start_is_refused() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let refused = async |asked: &str| enter(&server, &queue, &[("after", asked)]).await.unwrap_err().1;
    let nobody = "f".repeat(32);
    assert_eq!(refused(&format!("ok:{nobody}")).await, format!("Invalid task id: id={nobody}"));
    assert!(refused("okay:x").await.contains("write ok:TASK, any:TASK or fail:TASK"));
    let first = server.task("a").await;
    assert!(refused(&format!("ok:{first},any:{first}")).await.contains("is named twice"));
    let own = id();
    let body = json!({"id": own, "queue": queue, "task": task(&[("after", &format!("any:{own}"))])});
    let (_, code, answer) = server.raw("cantle.submit_task", &body.to_string()).await;
    assert_eq!(
        (code, answer["meta"]["result_msg"].as_str().unwrap()),
        (9007, "a task cannot wait for itself")
    );

    // Round in a circle: `second` waits for `first`, which is changed to wait for `second`.
    let second = server.task_from(&task(&[("after", &format!("ok:{first}"))])).await;
    server.enqueue(&second, &queue).await;
    assert_eq!(reason(&server.client, &second).await, "after a (a draft; it has to be enqueued)");
    let param = json!({"section": "cantle", "name": "after", "value": format!("any:{second}")});
    let edit = json!({"task": first, "hyperparams": [param]});
    server.client.call_value("tasks.edit_hyper_params", &edit).await.unwrap();
    let body = json!({"task": first, "queue": queue}).to_string();
    let (_, code, answer) = server.raw("tasks.enqueue", &body).await;
    let text = answer["meta"]["result_msg"].as_str().unwrap();
    assert_eq!((code, text), (9007, "the tasks would wait for each other, and never start"));
}

#[tokio::test]
async fn a_dependency_that_the_caller_may_not_see_does_not_exist() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let secret = server.task("secret").await;
    server.enqueue(&secret, &queue).await;
    let user = json!({"name": "mia", "role": "member", "project": "open"});
    server.client.call_value("projects.create", &json!({"name": "open"})).await.unwrap();
    let keys = server.client.call_value("cantle.add_user", &user).await.unwrap();
    let text = |name: &str| keys[name].as_str().unwrap().to_owned();
    let keys = Credentials { access_key: text("access_key"), secret_key: text("secret_key") };
    let mia = Client::new(server.client.url(), keys).unwrap();
    let project = mia.call_value("projects.get_all", &json!({"name": "open"})).await.unwrap();
    let project = project["projects"][0]["id"].clone();
    for other in [secret, "e".repeat(32)] {
        let mut task = task(&[("after", &format!("any:{other}"))]);
        task["project"] = project.clone();
        let answer =
            mia.call_value("cantle.submit_task", &json!({"id": id(), "queue": queue, "task": task})).await;
        let text = answer.unwrap_err().to_string();
        assert!(text.contains(&format!("Invalid task id: id={other}")), "{text}");
    }
}

#[tokio::test]
async fn waiting_survives_a_restart_of_the_server() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let first = server.task("a").await;
    server.enqueue(&first, &queue).await;
    let waiting = server.task_from(&task(&[("after", &format!("any:{first}")), ("time", "1h")])).await;
    server.enqueue(&waiting, &queue).await;
    let server = server.restart().await;
    assert_eq!(reason(&server.client, &waiting).await, "after a (queued)");
    assert_eq!(limit(&server.client, &waiting).await.as_deref(), Some("1h"));
    server.client.call_value("tasks.delete", &json!({"task": first, "force": true})).await.unwrap();
    for _ in 0..200 {
        if reason(&server.client, &waiting).await == format!("after any:{first}, which was deleted") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{}", reason(&server.client, &waiting).await);
}
