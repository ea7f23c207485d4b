//! Lists over large documents: they are read in parts, and what is too long or too large is refused with a way out.

use serde_json::{Value, json};

use crate::common::TestServer;

const MIB: usize = 1 << 20;

/// A comment of this many bytes, which ends in a word.
fn comment(bytes: usize, word: &str) -> String {
    format!("{}{word}", "x".repeat(bytes - word.len()))
}

async fn large_tasks(server: &TestServer, count: usize, bytes: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..count {
        let text = comment(bytes, &format!("word{n}"));
        ids.push(
            server.task_from(&json!({"name": format!("t{n}"), "type": "training", "comment": text})).await,
        );
    }
    ids
}

async fn names(server: &TestServer, body: Value) -> Result<Vec<String>, String> {
    let answer =
        server.client.call_value("tasks.get_all_ex", &body).await.map_err(|error| error.to_string())?;
    let name = |task: &Value| task["name"].as_str().unwrap().to_owned();
    Ok(answer["tasks"].as_array().unwrap().iter().map(name).collect())
}

#[tokio::test]
async fn a_document_has_a_limit_however_it_grows() {
    let server = TestServer::start().await;
    let half = "x".repeat(2 * MIB + 1000);
    let task = server.task_from(&json!({"name": "t", "type": "training", "comment": half})).await;
    let grow = [
        ("tasks.create", json!({"name": "n", "type": "training", "comment": "x".repeat(5 * MIB)})),
        ("tasks.create", json!({"name": "n", "type": "training", "tags": ["x".repeat(5 * MIB)]})),
        ("tasks.edit", json!({"task": task, "script": {"diff": half}})),
        ("tasks.update", json!({"task": task, "comment": "x".repeat(5 * MIB)})),
        ("tasks.edit_runtime", json!({"task": task, "add_or_update": {"a": half}})),
        (
            "tasks.add_or_update_artifacts",
            json!({"task": task, "artifacts": [{"key": "a", "type": "x", "uri": half}]}),
        ),
        ("models.create", json!({"name": "n", "uri": "x", "design": {"design": "x".repeat(5 * MIB)}})),
    ];
    for (endpoint, body) in grow {
        let refused = server.client.call_value(endpoint, &body).await.unwrap_err().to_string();
        assert!(refused.contains("at most 4194304 bytes"), "{endpoint}: {refused}");
    }
    let long = json!({"name": "x".repeat(65 << 10), "type": "training"});
    let refused = server.client.call_value("tasks.create", &long).await.unwrap_err().to_string();
    assert!(refused.contains("name: 66560 bytes; at most 65536"), "{refused}");
    // The negative control: what is short still goes in.
    server.client.call_value("tasks.update", &json!({"task": task, "comment": "short"})).await.unwrap();
    server.client.call_value("tasks.edit", &json!({"task": task, "script": {"diff": half}})).await.unwrap();
}

#[tokio::test]
async fn conditions_are_tested_in_all_parts() {
    let server = TestServer::start().await;
    large_tasks(&server, 5, 3 * MIB / 2).await;
    let pattern =
        |word: &str| json!({"_any_": {"pattern": word, "fields": ["comment"]}, "only_fields": ["name"]});
    assert_eq!(names(&server, pattern("word3$")).await.unwrap(), ["t3"]);
    assert_eq!(names(&server, pattern("word[24]$")).await.unwrap(), ["t4", "t2"]);
    assert_eq!(names(&server, pattern("word9$")).await.unwrap(), [""; 0]);
    // Pages of what passes, over the bounds of the parts.
    let mut page = pattern("word");
    (page["page"], page["page_size"]) = (json!(1), json!(2));
    assert_eq!(names(&server, page).await.unwrap(), ["t2", "t1"]);
    let all = names(&server, json!({"page_size": 500})).await.unwrap();
    assert_eq!(all, ["t4", "t3", "t2", "t1", "t0"]);
}

#[tokio::test]
async fn an_answer_that_would_be_too_long_is_refused_with_a_way_out() {
    let server = TestServer::start().await;
    large_tasks(&server, 9, 4 * MIB - 1000).await;
    let refused = names(&server, json!({})).await.unwrap_err();
    assert!(refused.contains("32 MiB") && refused.contains("only_fields"), "{refused}");
    assert_eq!(names(&server, json!({"only_fields": ["name"]})).await.unwrap().len(), 9);
    assert_eq!(names(&server, json!({"page_size": 2})).await.unwrap().len(), 2);
}

#[tokio::test]
async fn models_are_listed_in_parts_in_their_order() {
    let server = TestServer::start().await;
    for n in 0..4 {
        let design = json!({"design": comment(3 * MIB / 2, &format!("word{n}"))});
        let body = json!({"name": format!("m{n}"), "uri": "http://x/", "comment": format!("c{n}"), "design": design});
        server.client.call_value("models.create", &body).await.unwrap();
    }
    let list = async |body: Value| {
        let answer = server.client.call_value("models.get_all", &body).await.unwrap();
        let models = answer["models"].as_array().unwrap().clone();
        models.iter().map(|model| model["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list(json!({"only_fields": ["name"]})).await, ["m3", "m2", "m1", "m0"]);
    assert_eq!(list(json!({"comment": "c[13]", "order_by": ["name"]})).await, ["m1", "m3"]);
}

#[tokio::test]
async fn a_task_is_found_by_its_name_or_the_beginning_of_its_id() {
    let server = TestServer::start().await;
    let one = server.task("train").await;
    let two = server.task(&one[..6]).await;
    let find = async |word: &str| {
        let answer = server.client.call_value("cantle.get_tasks", &json!({"find": word})).await.unwrap();
        let tasks = answer["tasks"].as_array().unwrap().clone();
        tasks.iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(find("train").await, std::slice::from_ref(&one));
    assert_eq!(find(&one[..8]).await, std::slice::from_ref(&one));
    // The name of one is the beginning of the id of the other: both are meant.
    assert_eq!(find(&one[..6]).await, [two.clone(), one.clone()]);
    for word in ["trai", "", "zzzz", &one[..3], "%", "0123456789abcdef"] {
        assert_eq!(find(word).await, [""; 0], "{word}");
    }
    let mine = server.client.call_value("cantle.get_tasks", &json!({"mine": true})).await.unwrap();
    assert_eq!(mine["tasks"].as_array().unwrap().len(), 2);
}
