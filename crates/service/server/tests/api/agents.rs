//! Agents with keys of their own: one that serves a part of its machine's GPUs, and one whose keys are replaced while it works.

use std::sync::{Arc, Mutex};

use cantle_clearml::{Client, Credentials, KeySource, WireError};
use serde_json::{Value, json};

use crate::common::TestServer;

async fn account(server: &TestServer, name: &str, node: &str) -> Credentials {
    let new = json!({"name": name, "role": "agent", "node": node});
    pair(&server.client.call_value("cantle.add_user", &new).await.unwrap())
}

fn pair(made: &Value) -> Credentials {
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    Credentials { access_key: text("access_key"), secret_key: text("secret_key") }
}

fn client(server: &TestServer, keys: &Credentials) -> Client {
    Client::new(server.client.url(), keys.clone()).unwrap()
}

/// A task that this agent took and started.
async fn started(server: &TestServer, agent: &Client, node: &str, name: &str) -> String {
    let queue = server.queue(name).await;
    let task = server.task(name).await;
    server.enqueue(&task, &queue).await;
    agent.call_value("queues.get_next_task", &json!({"queue": queue})).await.unwrap();
    let claim = json!({"task": task, "node": node, "lease": name, "slices": []});
    agent.call_value("cantle.report_task", &claim).await.unwrap();
    agent.call_value("tasks.started", &json!({"task": task})).await.unwrap();
    task
}

/// `cantle daemon --gpus 0,1` calls its node `n1:dgpu0,1`: it is the node of the account `n1`.
#[tokio::test]
async fn an_agent_of_a_part_of_its_machine_has_the_rights_of_the_machine() {
    let server = TestServer::start().await;
    let agent = client(&server, &account(&server, "agent-1", "n1").await);
    let other = client(&server, &account(&server, "agent-10", "n10").await);
    let part = "n1:dgpu0,1";
    let task = started(&server, &agent, part, "part").await;
    let log = json!({"type": "log", "task": task, "msg": "m", "level": "info", "worker": part});
    assert_eq!(agent.call_value("events.add", &log).await.unwrap()["added"], 1);
    let seen = agent.call_value("tasks.get_all", &json!({"id": [task]})).await.unwrap();
    assert_eq!(seen["tasks"].as_array().unwrap().len(), 1);
    let end = json!({"task": task, "node": part, "lease": "part", "slices": [], "exit_code": 0});
    agent.call_value("cantle.report_task", &end).await.unwrap();
    agent.call_value("tasks.completed", &json!({"task": task})).await.unwrap();
    // The negative control: a node whose name begins like this one.
    assert!(other.call_value("events.add", &log).await.is_err());
    let seen = other.call_value("tasks.get_all", &json!({"id": [task]})).await.unwrap();
    assert_eq!(seen["tasks"], json!([]));
}

/// Two pairs are valid at a time; the agent goes over to the new one before the old one is withdrawn, and no call of it fails.
#[tokio::test]
async fn keys_of_an_agent_are_replaced_while_it_works() {
    let server = TestServer::start().await;
    let first = account(&server, "agent-1", "n1").await;
    let file = Arc::new(Mutex::new(Ok(first.clone())));
    let source = {
        let file = Arc::clone(&file);
        KeySource::new(move || file.lock().unwrap().clone())
    };
    let agent = client(&server, &first).renewed_from(Some(source));
    let without = client(&server, &first);
    let task = started(&server, &agent, "n1", "long").await;
    let works = async |agent: &Client| {
        let log = json!({"type": "log", "task": task, "msg": "m", "level": "info", "worker": "n1"});
        agent.call_value("events.add", &log).await
    };
    works(&without).await.unwrap();

    // A file that cannot be read, and keys that the server does not know, change nothing.
    *file.lock().unwrap() = Err("half written".to_owned());
    works(&agent).await.unwrap();
    let wrong = Credentials { access_key: "X".into(), secret_key: "Y".into() };
    *file.lock().unwrap() = Ok(wrong);
    works(&agent).await.unwrap();

    let made = server.client.call_value("cantle.add_key", &json!({"user": "agent-1"})).await.unwrap();
    let second = pair(&made);
    *file.lock().unwrap() = Ok(second.clone());
    works(&agent).await.unwrap();
    works(&without).await.expect("the old pair is still good");
    server.client.call_value("cantle.revoke_key", &json!({"access_key": first.access_key})).await.unwrap();
    works(&agent).await.unwrap();
    assert!(matches!(works(&without).await, Err(WireError::Unauthorized { .. })), "the negative control");

    // Too early: the agent is refused until it finds the next pair.
    let made = server.client.call_value("cantle.add_key", &json!({"user": "agent-1"})).await.unwrap();
    server.client.call_value("cantle.revoke_key", &json!({"access_key": second.access_key})).await.unwrap();
    assert!(works(&agent).await.is_err());
    *file.lock().unwrap() = Ok(pair(&made));
    works(&agent).await.unwrap();
    agent.call_value("tasks.completed", &json!({"task": task})).await.unwrap();
}
