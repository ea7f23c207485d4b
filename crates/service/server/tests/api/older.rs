//! An agent of 0.1.0 with this server, by the requests that it sent then (`agent-0.1.0.jsonl`: a task that completes, one that fails
//! and one that is stopped), and servers and agents of the next version, which send fields that this one does not know.

use std::collections::BTreeMap;

use cantle_clearml::cantle::{GetTasks, ReportNode, ReportTask};
use cantle_clearml::leases::RenewLeases;
use cantle_clearml::queues::{Create, GetAll, GetNextTask};
use cantle_clearml::quotas::GetFleet;
use cantle_clearml::{Request, tasks, workers};
use cantle_model::TaskStatus;
use serde_json::{Value, json};

use crate::common::TestServer;

const RECORDED: &str = include_str!("agent-0.1.0.jsonl");

/// Adds an unknown member to every object, except to the hyperparameters, which are the user's.
fn newer(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.iter_mut().filter(|(name, _)| *name != "hyperparams").for_each(|(_, value)| newer(value));
            members.insert("from_the_next_version".to_owned(), json!({ "more": [1, "two"] }));
        }
        Value::Array(items) => items.iter_mut().for_each(newer),
        _ => {}
    }
}

/// Sends what was recorded; returns the answers by endpoint.
async fn replay(server: &TestServer, change: impl Fn(&mut Value)) -> BTreeMap<String, Vec<Value>> {
    let mut ids: BTreeMap<&str, String> = BTreeMap::new();
    let mut answers: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in RECORDED.lines() {
        let mut line = line.to_owned();
        for (name, id) in &ids {
            line = line.replace(name, id);
        }
        let mut request: Value = serde_json::from_str(&line).unwrap();
        let endpoint = request["endpoint"].as_str().unwrap().to_owned();
        let body = if let Some(lines) = request.get_mut("lines") {
            change(lines);
            lines.as_array().unwrap().iter().map(|line| format!("{line}\n")).collect::<String>()
        } else {
            // A filter that this server does not have is refused: to ignore it would list too much.
            if !endpoint.ends_with(".get_all") {
                change(&mut request["body"]);
            }
            request["body"].to_string()
        };
        let (status, _, answer) = server.raw(&endpoint, &body).await;
        assert_eq!(status, 200, "{endpoint} {body}\n{answer}");
        if endpoint == Create::ENDPOINT {
            ids.insert("$queue", answer["data"]["id"].as_str().unwrap().to_owned());
            for name in ["$ok", "$bad", "$stop"] {
                let task = server.task(name).await;
                server.enqueue(&task, &ids["$queue"]).await;
                ids.insert(name, task);
            }
        }
        answers.entry(endpoint).or_default().push(answer["data"].clone());
    }
    let request = GetTasks { limit: Some(10), ..GetTasks::default() };
    let ended = server.client.call(&request).await.unwrap().tasks;
    let of = |name: &str| {
        let task = ended.iter().find(|task| task.name == name).unwrap();
        (task.state, task.exit_code)
    };
    assert_eq!(of("$ok"), (TaskStatus::Completed, Some(0)));
    assert_eq!(of("$bad"), (TaskStatus::Failed, Some(3)));
    assert_eq!(of("$stop").0, TaskStatus::Stopped);
    let log = server.raw("events.get_task_log", &json!({ "task": ids["$ok"] }).to_string()).await.2;
    assert!(log.to_string().contains("hello"), "{log}");
    answers
}

#[tokio::test]
async fn an_agent_of_the_first_release_works_with_this_server() {
    let server = TestServer::start().await;
    replay(&server, |_| ()).await;
}

#[tokio::test]
async fn an_agent_of_the_next_release_works_with_this_server() {
    let server = TestServer::start().await;
    replay(&server, newer).await;
}

#[tokio::test]
async fn an_agent_of_this_release_reads_the_answers_of_the_next_server() {
    fn read<R: Request>(answers: &BTreeMap<String, Vec<Value>>) {
        for answer in &answers[R::ENDPOINT] {
            let mut answer = answer.clone();
            newer(&mut answer);
            let read = serde_json::from_value::<R::Response>(answer.clone());
            assert!(read.is_ok(), "{}: {answer}: {}", R::ENDPOINT, read.err().unwrap());
        }
    }
    let server = TestServer::start().await;
    let mut answers = replay(&server, |_| ()).await;
    let renew = json!({ "node": "node1", "leases": [{ "task": "t", "lease": "l" }] });
    let renewed = server.client.call_value(RenewLeases::ENDPOINT, &renew).await.unwrap();
    assert_eq!(renewed, json!({ "leases": [{ "held": false }] }));
    answers.insert(RenewLeases::ENDPOINT.to_owned(), vec![renewed]);
    read::<GetAll>(&answers);
    read::<GetNextTask>(&answers);
    read::<GetFleet>(&answers);
    read::<RenewLeases>(&answers);
    read::<ReportNode>(&answers);
    read::<ReportTask>(&answers);
    read::<tasks::GetAll>(&answers);
    read::<tasks::Started>(&answers);
    read::<tasks::Completed>(&answers);
    read::<tasks::Failed>(&answers);
    read::<tasks::Stopped>(&answers);
    read::<workers::Register>(&answers);
    read::<workers::StatusReport>(&answers);
}
