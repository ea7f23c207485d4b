//! Calls that a week with ClearML's clients needs in addition to the life of one task. Each case is a call that once
//! broke a client.

use cantle_clearml::Client;
use cantle_clearml::cantle::ReportTask;
use cantle_clearml::events::ReportedEvent;
use cantle_clearml::tasks::Started;
use cantle_server::ServerConfig;
use serde_json::{Value, json};

use crate::common::TestServer;

async fn ask(server: &TestServer, endpoint: &str, body: Value) -> Value {
    server
        .client
        .call_value(endpoint, &body)
        .await
        .unwrap_or_else(|error| panic!("{endpoint} {body}: {error}"))
}

#[tokio::test]
async fn a_field_that_is_not_there_is_an_empty_object() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    let found =
        ask(&server, "tasks.get_all", json!({"id": [task], "only_fields": ["runtime.version"]})).await;
    assert_eq!(found["tasks"][0]["runtime"], json!({}), "clearml-data looks into it");
}

#[tokio::test]
async fn an_artifact_has_a_mode() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    let artifacts = json!([{"key": "a", "type": "dict", "uri": "file:///a"}]);
    ask(&server, "tasks.add_or_update_artifacts", json!({"task": task, "artifacts": artifacts})).await;
    let found = ask(&server, "tasks.get_by_id", json!({"task": task})).await;
    assert_eq!(found["task"]["execution"]["artifacts"][0]["mode"], "output", "Task.delete looks for it");
}

#[tokio::test]
async fn users_note_something_about_a_task_in_any_state() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    server.client.call(&Started { task: task.clone(), ..Started::default() }).await.unwrap();
    let edit = |section: &str| {
        json!({
            "task": task, "hyperparams": [{"section": section, "name": "n", "value": "v"}], "replace_hyperparams": "none",
        })
    };
    for state in ["tasks.ping", "tasks.completed", "tasks.publish"] {
        ask(&server, state, json!({"task": task})).await;
        ask(&server, "tasks.edit_hyper_params", edit("properties")).await;
        let (status, subcode, _) = server.raw("tasks.edit_hyper_params", &edit("Args").to_string()).await;
        assert_eq!((status, subcode), (400, 110), "the control: parameters of a task that ran stay");
    }
}

fn event(value: Value) -> ReportedEvent {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn debug_samples_and_scalars_of_models() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    let image = |iter: i64| {
        event(json!({
            "type": "training_debug_image", "task": task, "metric": "m", "variant": "v", "iter": iter, "url": "http://x",
        }))
    };
    server.client.add_batch(&[image(1), image(2)]).await.unwrap();
    let request = json!({"metrics": [{"task": task, "metric": "m", "variants": ["v"]}], "iters": 1});
    let found = ask(&server, "events.debug_images", request).await;
    assert_eq!(found["metrics"][0]["task"], json!(task));
    let iterations = found["metrics"][0]["iterations"].as_array().unwrap();
    assert_eq!((iterations.len(), &iterations[0]["iter"]), (1, &json!(2)), "{found}");
    let none = json!({"metrics": [{"task": task, "metric": "other"}]});
    assert_eq!(ask(&server, "events.debug_images", none).await["metrics"][0]["iterations"], json!([]));

    let model = ask(&server, "models.create", json!({"name": "m", "uri": "file:///m"})).await["id"].clone();
    let scalar = |of_model: bool| {
        event(json!({
            "type": "training_stats_scalar", "task": model, "metric": "acc", "variant": "v", "iter": 3, "value": 0.5,
            "model_event": of_model,
        }))
    };
    assert_eq!(server.client.add_batch(&[scalar(true)]).await.unwrap().added, 1);
    assert!(server.client.add_batch(&[scalar(false)]).await.is_err(), "the control");
    let request = json!({"task": model, "model_events": true});
    let graph = ask(&server, "events.scalar_metrics_iter_histogram", request).await;
    assert_eq!(graph["acc"]["v"]["y"], json!([0.5]));
}

#[tokio::test]
async fn a_chunk_that_comes_twice_is_kept_once() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    let line = |time: i64, msg: &str| ReportedEvent::log(&task, "w", time, msg.to_owned());
    let batch = [line(1, "a\n"), line(1, "a\n"), line(2, "b\n")];
    for _ in 0..2 {
        server.client.add_batch(&batch).await.unwrap();
    }
    server.client.add_batch(&[line(3, "a\n")]).await.unwrap();
    let log = ask(&server, "events.get_task_log", json!({"task": task})).await;
    assert_eq!(log["total"], 4, "twice in one batch is meant so, and later it is another line: {log}");
}

#[tokio::test]
async fn a_submit_is_whole_and_can_be_repeated() {
    let server = TestServer::start().await;
    let queue = server.queue("q").await;
    let submit = |queue: &str| {
        json!({
            "queue": queue, "id": "0123456789abcdef0123456789abcdef", "task": {"name": "t", "type": "custom"},
        })
    };
    assert!(server.client.call_value("cantle.submit_task", &submit("nowhere")).await.is_err());
    assert_eq!(ask(&server, "tasks.get_all", json!({})).await["tasks"], json!([]), "nothing half done");
    for _ in 0..2 {
        ask(&server, "cantle.submit_task", submit(&queue)).await;
    }
    let found = ask(&server, "queues.get_by_id", json!({"queue": queue})).await;
    assert_eq!(found["queue"]["entries"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn the_address_that_the_sdk_prints_leads_to_the_task() {
    let server = TestServer::start().await;
    let http = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    for (path, target) in [
        ("/", "/ui"),
        ("/projects/1f/experiments/2e/output/log", "/ui/tasks/2e"),
        ("/ui/projects/1f/tasks/2e/output/log", "/ui/tasks/2e"),
    ] {
        let answer = http.get(format!("{}{path}", server.client.url())).send().await.unwrap();
        assert_eq!(answer.status(), 307, "{path}");
        assert_eq!(answer.headers()["location"], target, "{path}");
    }
}

/// Everything that was answered is in a backup of a server that runs, with keys and artifacts.
#[tokio::test]
async fn a_backup_of_a_running_server_has_everything() {
    let server = TestServer::start().await;
    let mut tasks = Vec::new();
    for n in 0..50 {
        tasks.push(server.task(&n.to_string()).await);
    }
    let files = server.dir.path().join("server/files/P");
    std::fs::create_dir_all(&files).unwrap();
    let artifact: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    std::fs::write(files.join("artifact"), &artifact).unwrap();
    let work = tempfile::tempdir().unwrap();
    let file = work.path().join("backup");
    let made = cantle_server::backup(server.dir.path(), None, &file).await.unwrap();
    assert_eq!((made.tasks, made.files), (50, 4));
    assert!(cantle_server::backup(server.dir.path(), None, &file).await.is_err(), "it is not written over");
    server.task("after").await;

    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_owned();
    assert_eq!(cantle_server::restore(&state, &file).await.unwrap(), made);
    assert!(cantle_server::restore(&state, &file).await.is_err(), "nor is a state");
    assert_eq!(std::fs::read(state.join("server/files/P/artifact")).unwrap(), artifact);
    let (url, keys) =
        (server.client.url().to_owned(), cantle_server::CredentialsFile::read(server.dir.path()));
    let restored = TestServer::start_with(dir, ServerConfig::default()).await;
    let client = Client::new(restored.client.url(), keys.unwrap().unwrap().credentials()).unwrap();
    assert_ne!(client.url(), url);
    let found = client.call_value("tasks.get_all", &json!({"only_fields": ["id"]})).await.unwrap();
    let mut found: Vec<&str> =
        found["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap()).collect();
    found.sort_unstable();
    tasks.sort_unstable();
    assert_eq!(found, tasks, "with the old keys");

    let mut broken = std::fs::read(&file).unwrap();
    broken.truncate(broken.len() / 2);
    std::fs::write(&file, broken).unwrap();
    let refused = cantle_server::restore(work.path(), &file).await.unwrap_err();
    assert!(refused.to_string().contains("not a complete backup"), "{refused}");
}

/// The second of two servers on one state directory is refused, and the keys stay those of the first.
#[tokio::test]
async fn the_second_server_is_refused() {
    let server = TestServer::start().await;
    let config = ServerConfig { state_dir: server.dir.path().to_owned(), ..ServerConfig::default() };
    let before = cantle_server::CredentialsFile::read(server.dir.path()).unwrap();
    let refused = cantle_server::Server::bind(&config).await.unwrap_err();
    assert!(refused.to_string().contains("in use by another server"), "{refused}");
    assert_eq!(cantle_server::CredentialsFile::read(server.dir.path()).unwrap(), before);
}

/// A database file has one server, by whichever name and with whichever state directory the second one is started.
#[tokio::test]
async fn a_second_server_on_the_same_database_file_is_refused() {
    let server = TestServer::start().await;
    let other = tempfile::tempdir().unwrap();
    let file = server.dir.path().join("server/cantle.db");
    let link = other.path().join("link.db");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let bind = async |db: &std::path::Path| {
        let (state_dir, db) = (other.path().to_owned(), Some(db.display().to_string()));
        let config =
            ServerConfig { state_dir, db, listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
        cantle_server::Server::bind(&config).await
    };
    for given in [&file, &link] {
        let refused = bind(given).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("{} is in use by another server", given.display())), "{refused}");
    }
    bind(&other.path().join("own.db")).await.unwrap();
}

/// An agent that got no answer, or was killed before it noted it, sends a piece of output again, with another time and perhaps more of it.
#[tokio::test]
async fn output_that_an_agent_sends_again_is_kept_once() {
    let server = TestServer::start().await;
    let task = server.task("t").await;
    server.client.call(&Started { task: task.clone(), ..Started::default() }).await.unwrap();
    let claim =
        ReportTask { task: task.clone(), node: "n".into(), lease: "l".into(), ..ReportTask::default() };
    server.client.call(&claim).await.unwrap();
    let piece = |time: i64, msg: &str, (begin, end)| {
        [ReportedEvent::log(&task, "w", time, msg.to_owned()).of_run("l").of_output(begin, end)]
    };
    let send = async |piece: [ReportedEvent; 1]| server.client.add_batch(&piece).await.unwrap().output_bytes;
    assert_eq!(send(piece(1, "a\n", (0, 2))).await, None);
    assert_eq!(send(piece(2, "a\n", (0, 2))).await, Some(2));
    assert_eq!(send(piece(3, "a\nb\n", (0, 4))).await, Some(2));
    assert_eq!(send(piece(4, "b\n", (2, 4))).await, None);
    let log = ask(&server, "events.get_task_log", json!({"task": task, "after": 0})).await;
    let lines: Vec<_> = log["events"].as_array().unwrap().iter().map(|event| event["msg"].clone()).collect();
    assert_eq!(lines, ["a\n", "b\n"], "{log}");
    let again = ReportedEvent::log(&task, "w", 5, "a\n".to_owned()).of_run("l");
    server.client.add_batch(&[again]).await.unwrap();
    let log = ask(&server, "events.get_task_log", json!({"task": task})).await;
    assert_eq!(log["total"], 3, "the control: without its place it is another line");
}
