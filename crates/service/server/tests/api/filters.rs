//! Every parameter that ClearML documents for its lists: it filters, or the request is refused with the parameter's name. A
//! list that ignores a condition makes programs delete everything.

use serde_json::{Value, json};

use crate::common::TestServer;

/// The parameters that ClearML's API (2.31) documents for each list, with a value that nothing on the test's server
/// matches. `-` marks what is no condition: it must be taken as given.
const DOCUMENTED: &str = r#"
tasks     id                              ["nobody"]
tasks     name                            "nobody"
tasks     user                            ["nobody"]
tasks     project                         ["nobody"]
tasks     type                            ["testing"]
tasks     tags                            ["nobody"]
tasks     system_tags                     ["nobody"]
tasks     status                          ["published"]
tasks     parent                          "nobody"
tasks     status_changed                  ["<2001-01-01"]
tasks     last_update                     ["<2001-01-01"]
tasks     last_change                     ["<2001-01-01"]
tasks     created                         ["2001-01-01", "2002-01-01"]
tasks     started                         ["2001-01-01", "2002-01-01"]
tasks     active_duration                 [1, 2]
tasks     last_iteration                  [100, 200]
tasks     last_metrics.a.b.value          [1, 2]
tasks     hyperparams.Args.lr.value       ["nobody"]
tasks     execution.queue                 ["nobody"]
tasks     models.input.model              ["nobody"]
tasks     runtime.x                       "nobody"
tasks     comment                         "nobody"
tasks     report                          "nobody"
tasks     search_text                     "nobody"
tasks     filters                         {"tags": {"any": {"include": ["nobody"]}}}
tasks     _any_                           {"fields": ["name", "comment"], "pattern": "nobody"}
tasks     _all_                           {"fields": ["name", "comment"], "pattern": "nobody"}
tasks     _or_                            {"fields": ["last_update"], "datetime": ["<2001-01-01"]}
tasks     _and_                           {"fields": ["name"], "pattern": "nobody"}
tasks   - page_size                       1
tasks   - order_by                        ["-last_update"]
tasks   - only_fields                     ["name"]
tasks   - search_hidden                   true
tasks   - include_subprojects             true
tasks   - allow_public                    true
tasks   - method                          "get"
projects- method                          "get"
queues  - method                          "get"
models  - method                          "get"
tasks   - scroll_id                       {"size": 1}
models    id                              ["nobody"]
models    name                            "nobody"
models    user                            ["nobody"]
models    ready                           true
models    tags                            ["nobody"]
models    system_tags                     ["nobody"]
models    project                         ["nobody"]
models    task                            ["nobody"]
models    task                            "nobody"
models    search_text                     "nobody"
models    framework                       ["nobody"]
models    uri                             ["nobody"]
models    parent                          ["nobody"]
models    comment                         "nobody"
models    metadata.a.value                ["nobody"]
models    created                         ["2001-01-01", "2002-01-01"]
models    last_update                     ["<2001-01-01"]
models    last_change                     ["<2001-01-01"]
models    last_iteration                  [100, 200]
models    filters                         {"tags": {"all": {"include": ["nobody"]}}}
models    _any_                           {"fields": ["name"], "pattern": "nobody"}
models    _all_                           {"fields": ["name"], "pattern": "nobody"}
models    include_stats                   true
models  - page_size                       1
models  - order_by                        ["-created"]
models  - only_fields                     ["name"]
models  - allow_public                    true
projects  id                              ["nobody"]
projects  name                            "nobody"
projects  basename                        "nobody"
projects  description                     "nobody"
projects  tags                            ["nobody"]
projects  system_tags                     ["nobody"]
projects  parent                          ["nobody"]
projects  path                            ["nobody"]
projects  last_update                     ["2001-01-01", "2002-01-01"]
projects  search_text                     "nobody"
projects  filters                         {"tags": {"any": {"include": ["nobody"]}}}
projects  _any_                           {"fields": ["name"], "pattern": "nobody"}
projects  _all_                           {"fields": ["name"], "pattern": "nobody"}
projects  include_stats                   true
projects  include_stats_filter            {"system_tags": ["nobody"]}
projects  include_dataset_stats           true
projects  check_own_contents              true
projects  active_users                    ["nobody"]
projects  children_type                   "report"
projects  children_tags                   ["nobody"]
projects  children_tags_filter            {"any": {"include": ["nobody"]}}
projects  stats_for_state                 "archived"
projects- shallow_search                  true
projects- page_size                       1
projects- order_by                        ["-name"]
projects- only_fields                     ["name"]
projects- search_hidden                   true
projects- allow_public                    true
projects- non_public                      true
queues    id                              ["nobody"]
queues    name                            "nobody"
queues    tags                            ["nobody"]
queues    system_tags                     ["nobody"]
queues    metadata.a.value                ["nobody"]
queues    search_text                     "nobody"
queues    filters                         {"tags": {"any": {"include": ["nobody"]}}}
queues  - max_task_entries                0
queues  - page_size                       1
queues  - order_by                        ["-name"]
queues  - only_fields                     ["name"]
queues  - search_hidden                   true
tasks     unheard_of                      1
models    unheard_of                      1
projects  unheard_of                      1
queues    unheard_of                      1
"#;

/// A server with one object of each kind, all of them with something in every field.
async fn server() -> TestServer {
    let server = TestServer::start().await;
    let project = json!({"name": "p", "description": "d", "tags": ["t"]});
    let project = server.client.call_value("projects.create", &project).await.unwrap()["id"].clone();
    let task = server
        .task_from(&json!({
            "name": "somebody", "type": "training", "project": project, "tags": ["t"], "system_tags": ["s"],
            "comment": "c", "hyperparams": {"Args": {"lr": {"section": "Args", "name": "lr", "value": "0.1"}}},
            "runtime": {"x": "y"}, "active_duration": 7,
        }))
        .await;
    let queue = server.queue("q").await;
    server.enqueue(&task, &queue).await;
    let model = json!({"name": "m", "task": task, "project": project, "uri": "file:///m", "framework": "f", "tags": ["t"]});
    server.client.call_value("models.create", &model).await.unwrap();
    server
}

#[tokio::test]
async fn no_documented_parameter_is_ignored() {
    let server = server().await;
    let mut seen = 0;
    for line in DOCUMENTED.trim().lines() {
        let (service, rest) = line.split_at(10);
        let plain = service.contains('-');
        let service = service.trim_end_matches([' ', '-']);
        let (field, value) = rest.trim().split_once(' ').unwrap();
        let value: Value = serde_json::from_str(value.trim()).unwrap();
        let body =
            if field == "scroll_id" { json!({"scroll_id": "", "size": 1}) } else { json!({field: value}) };
        for endpoint in ["get_all", "get_all_ex"] {
            let (status, _, envelope) = server.raw(&format!("{service}.{endpoint}"), &body.to_string()).await;
            let found = envelope["data"][service].as_array().map(Vec::len);
            let told = envelope["meta"]["result_msg"].as_str().unwrap();
            match (plain, status) {
                (true, 200) => assert_eq!(found, Some(1), "{service}.{endpoint} {body}"),
                (false, 200) => assert_eq!(found, Some(0), "{service}.{endpoint} {body} was ignored"),
                (false, 400) => assert!(told.contains(field), "{service}.{endpoint} {body}: {told}"),
                _ => panic!("{service}.{endpoint} {body}: {status} {told}"),
            }
            seen += 1;
        }
    }
    assert!(seen > 180, "{seen}");
}

/// ClearML's own cleanup service, as its example asks.
#[tokio::test]
async fn the_cleanup_service_gets_what_is_old_only() {
    let server = server().await;
    let found = |body: Value| {
        let server = &server;
        async move {
            let (status, _, envelope) = server.raw("tasks.get_all", &body.to_string()).await;
            assert_eq!(status, 200, "{body}");
            envelope["data"]["tasks"].as_array().unwrap().len()
        }
    };
    let all = json!({"only_fields": ["id"], "order_by": ["-last_update"], "page_size": 100, "page": 0});
    assert_eq!(found(all).await, 1);
    let id = server.raw("tasks.get_all", "{}").await.2["data"]["tasks"][0]["id"].clone();
    server.client.call_value("tasks.archive", &json!({"tasks": [id]})).await.unwrap();
    let archived = |times: Value| {
        json!({
            "system_tags": ["archived"], "only_fields": ["id"], "order_by": ["-last_update"], "page_size": 100, "page": 0,
            "status_changed": times,
        })
    };
    assert_eq!(found(archived(json!(["<2026-01-01T00:00:00.000000"]))).await, 0, "archived a moment ago");
    assert_eq!(found(archived(json!([">2026-01-01T00:00:00.000000"]))).await, 1, "the control");
}

#[tokio::test]
async fn conditions_that_the_database_tests_are_those_of_clearml() {
    let server = TestServer::start().await;
    for (name, tags) in
        [("one", vec!["red", "big"]), ("two", vec!["red"]), ("two.five", vec!["a\"b"]), ("three", vec![])]
    {
        server.task_from(&json!({"name": name, "type": "training", "tags": tags})).await;
    }
    for (body, names) in [
        (json!({"tags": ["red"], "order_by": ["name"]}), vec!["one", "two"]),
        (json!({"tags": ["__$all", "red", "big"]}), vec!["one"]),
        (json!({"tags": ["-red"], "order_by": ["name"]}), vec!["three", "two.five"]),
        (
            json!({"tags": ["__$or", "big", "__$not", "red"], "order_by": ["name"]}),
            vec!["one", "three", "two.five"],
        ),
        (json!({"tags": [null]}), vec!["three"]),
        (json!({"tags": [null, "big"], "order_by": ["name"]}), vec!["one", "three"]),
        (json!({"tags": ["b"]}), vec![]),
        (json!({"tags": ["a\"b"]}), vec!["two.five"]),
        (json!({"name": "^two$"}), vec!["two"]),
        (json!({"name": "^two\\.five$"}), vec!["two.five"]),
        (json!({"name": "^two", "order_by": ["-name"]}), vec!["two.five", "two"]),
        (
            json!({"status": ["created", "-queued"], "name": "e$", "order_by": ["name"]}),
            vec!["one", "three", "two.five"],
        ),
        (json!({"status": ["-created"]}), vec![]),
        (json!({"name": "t", "order_by": ["name"], "page": 1, "page_size": 2}), vec!["two.five"]),
        (json!({"search_text": "ONE three", "order_by": ["name"], "page": 1, "page_size": 1}), vec!["three"]),
    ] {
        let found = server.client.call_value("tasks.get_all", &body).await.unwrap();
        let found: Vec<&str> =
            found["tasks"].as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap()).collect();
        assert_eq!(found, names, "{body}");
    }
}
