//! The calls by which ClearML's web page fills its lists of choices, and its calls about many objects at once.

use serde_json::{Value, json};

use crate::common::TestServer;

async fn call(server: &TestServer, endpoint: &str, body: Value) -> Value {
    let (status, _, envelope) = server.raw(endpoint, &body.to_string()).await;
    assert_eq!(status, 200, "{endpoint} {body}: {}", envelope["meta"]);
    envelope["data"].clone()
}

async fn refused(server: &TestServer, endpoint: &str, body: Value) -> String {
    let (status, _, envelope) = server.raw(endpoint, &body.to_string()).await;
    assert_eq!(status, 400, "{endpoint} {body}");
    envelope["meta"]["result_msg"].as_str().unwrap().to_owned()
}

/// Two projects, one below the other, with a task and a model in each; ids by name.
struct World {
    server: TestServer,
    top: Value,
    below: Value,
    task: Value,
    child: Value,
}

async fn world() -> World {
    let server = TestServer::start().await;
    let project = async |name: &str| {
        call(&server, "projects.create", json!({"name": name, "description": "", "tags": ["of-p"]})).await["id"].clone()
    };
    let (top, below) = (project("P").await, project("P/Q").await);
    let params =
        |rate: &str| json!({"General": {"rate": {"section": "General", "name": "rate", "value": rate}}});
    let task = call(&server, "tasks.create", json!({"name": "a", "type": "training", "project": top, "tags": ["red"], "system_tags": ["sys"], "hyperparams": params("1")})).await["id"].clone();
    let child = call(&server, "tasks.create", json!({"name": "b", "type": "testing", "project": below, "tags": ["blue"], "parent": task, "hyperparams": params("2")})).await["id"].clone();
    call(&server, "models.create", json!({"name": "m", "uri": "http://x/m", "project": top, "task": task, "tags": ["net"], "framework": "PyTorch",
        "metadata": {"size": {"key": "size", "type": "int", "value": "7"}}})).await;
    for (id, metric, iters) in [(&task, "loss", 3), (&child, "accuracy", 2)] {
        for iter in 0..iters {
            call(&server, "events.add", json!({"type": "training_stats_scalar", "task": id, "metric": metric, "variant": "train", "iter": iter, "value": f64::from(iter)})).await;
            for variant in ["one", "two"] {
                call(&server, "events.add", json!({"type": "training_debug_image", "task": id, "metric": "pictures", "variant": variant, "iter": iter, "url": format!("http://x/{variant}{iter}.png")})).await;
                call(&server, "events.add", json!({"type": "plot", "task": id, "metric": "graphs", "variant": variant, "iter": iter, "plot_str": "{}"})).await;
            }
        }
    }
    World { server, top, below, task, child }
}

#[tokio::test]
async fn the_values_that_there_are_to_choose_from() {
    let World { server, top, below, task, .. } = world().await;
    let s = &server;
    assert_eq!(
        call(s, "projects.get_task_tags", json!({"projects": [top]})).await["tags"],
        json!(["blue", "red"])
    );
    assert_eq!(
        call(s, "projects.get_task_tags", json!({"projects": [top], "include_subprojects": false})).await["tags"],
        json!(["red"])
    );
    assert_eq!(
        call(s, "projects.get_task_tags", json!({"include_system": true})).await["system_tags"],
        json!(["sys"])
    );
    assert_eq!(call(s, "projects.get_model_tags", json!({})).await["tags"], json!(["net"]));
    assert_eq!(call(s, "projects.get_project_tags", json!({})).await["tags"], json!(["of-p"]));
    assert_eq!(
        call(s, "organization.get_tags", json!({})).await["tags"],
        json!(["blue", "net", "of-p", "red"])
    );
    assert_eq!(call(s, "tasks.get_types", json!({"projects": [below]})).await["types"], json!(["testing"]));
    assert_eq!(call(s, "models.get_frameworks", json!({})).await["frameworks"], json!(["PyTorch"]));
    let params = call(s, "projects.get_hyper_parameters", json!({"project": top})).await;
    assert_eq!(
        (&params["parameters"], &params["total"]),
        (&json!([{"section": "General", "name": "rate"}]), &json!(1))
    );
    let values = json!({"section": "General", "name": "rate", "projects": [top]});
    assert_eq!(call(s, "projects.get_hyperparam_values", values).await["values"], json!(["1", "2"]));
    let values = json!({"section": "General", "name": "rate", "pattern": "^2"});
    assert_eq!(call(s, "projects.get_hyperparam_values", values).await["values"], json!(["2"]));
    assert_eq!(
        call(s, "projects.get_model_metadata_keys", json!({"project": top})).await["keys"],
        json!(["size"])
    );
    assert_eq!(
        call(s, "projects.get_model_metadata_values", json!({"key": "size"})).await["values"],
        json!(["7"])
    );
    let metrics = call(s, "projects.get_unique_metric_variants", json!({"project": below})).await;
    assert_eq!(
        (metrics["metrics"].as_array().unwrap().len(), &metrics["metrics"][0]["metric"]),
        (1, &json!("accuracy"))
    );
    assert_eq!(
        call(s, "projects.get_unique_metric_variants", json!({})).await["metrics"].as_array().unwrap().len(),
        2
    );
    let parents = call(s, "projects.get_task_parents", json!({"projects": [top]})).await;
    assert_eq!(parents["parents"], json!([{"id": task, "name": "a", "project": {"id": top, "name": "P"}}]));
    let counts = call(
        s,
        "organization.get_entities_count",
        json!({"projects": {}, "tasks": {}, "models": {}, "pipelines": {}}),
    )
    .await;
    assert_eq!(counts, json!({"projects": 2, "tasks": 2, "models": 1, "pipelines": 0}));
    assert!(
        refused(s, "organization.get_entities_count", json!({"tasks": {"type": ["training"]}}))
            .await
            .contains("without a filter")
    );
    // The administrator and the viewer.
    assert_eq!(call(s, "users.get_all", json!({})).await["users"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn samples_and_their_neighbors() {
    let World { server, task, .. } = world().await;
    let s = &server;
    let image = json!({"task": task, "metric": "pictures", "variant": "one"});
    let last = call(s, "events.get_debug_image_sample", image).await;
    assert_eq!(
        (&last["event"]["url"], &last["min_iteration"], &last["max_iteration"]),
        (&json!("http://x/one2.png"), &json!(0), &json!(2))
    );
    let step = |from: &Value, earlier: bool, jump: bool| json!({"task": task, "scroll_id": from["scroll_id"], "navigate_earlier": earlier, "next_iteration": jump});
    let before = call(s, "events.next_debug_image_sample", step(&last, true, false)).await;
    assert_eq!(before["event"]["url"], json!("http://x/two1.png"));
    let after = call(s, "events.next_debug_image_sample", step(&before, false, false)).await;
    assert_eq!(after["event"]["url"], json!("http://x/one2.png"));
    let jumped = call(s, "events.next_debug_image_sample", step(&before, true, true)).await;
    assert_eq!(jumped["event"]["iter"], json!(0));
    let first = json!({"task": task, "metric": "pictures", "variant": "one", "iteration": 0});
    let first = call(s, "events.get_debug_image_sample", first).await;
    assert_eq!(
        call(s, "events.next_debug_image_sample", step(&first, true, false)).await["event"],
        Value::Null
    );
    let plots = call(s, "events.get_plot_sample", json!({"task": task, "metric": "graphs"})).await;
    assert_eq!((plots["events"].as_array().unwrap().len(), &plots["events"][0]["iter"]), (2, &json!(2)));
    let earlier = call(s, "events.next_plot_sample", step(&plots, true, false)).await;
    assert_eq!(earlier["events"][1]["iter"], json!(1));
    assert!(
        refused(s, "events.next_plot_sample", json!({"task": task, "scroll_id": "nonsense"}))
            .await
            .contains("scroll_id")
    );
    let all =
        call(s, "events.plots", json!({"metrics": [{"task": task, "metric": "graphs"}], "iters": 2})).await;
    assert_eq!(all["metrics"][0]["iterations"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn pages_of_images_come_to_an_end() {
    let World { server, task, .. } = world().await;
    let (mut seen, mut scroll) = (Vec::new(), Value::Null);
    // `Task.get_debug_samples` asks until a page is empty.
    for page in 0.. {
        assert!(page < 4, "no end");
        let lines = json!([{"task": task, "metric": "pictures", "variants": ["one"]}]);
        let body = json!({"metrics": lines, "iters": 2, "scroll_id": scroll});
        let answer = call(&server, "events.debug_images", body).await;
        let iterations = answer["metrics"][0]["iterations"].as_array().unwrap().clone();
        if iterations.is_empty() {
            break;
        }
        seen.extend(iterations.into_iter().map(|iteration| iteration["iter"].clone()));
        scroll = answer["scroll_id"].clone();
    }
    assert_eq!(json!(seen), json!([2, 1, 0]));
}

#[tokio::test]
async fn raw_scalars_come_in_pages_and_none_is_left_out() {
    let World { server, task, .. } = world().await;
    let (mut seen, mut scroll) = (Vec::new(), json!(""));
    for _ in 0..3 {
        let body = json!({"task": task, "metric": {"metric": "loss"}, "batch_size": 2, "count_total": true, "scroll_id": scroll});
        let page = call(&server, "events.scalar_metrics_iter_raw", body).await;
        assert_eq!(page["total"], json!(3));
        scroll = page["scroll_id"].clone();
        let line = &page["variants"]["train"];
        assert_eq!(line["iter"].as_array().map(Vec::len), line["y"].as_array().map(Vec::len));
        seen.extend(line["y"].as_array().cloned().unwrap_or_default());
    }
    assert_eq!(json!(seen), json!([0.0, 1.0, 2.0]));
    let data = call(&server, "events.get_scalar_metric_data", json!({"task": task, "metric": "loss"})).await;
    assert_eq!(data["returned"], json!(3));
    call(&server, "events.delete_for_task", json!({"task": task})).await;
    let data = call(&server, "events.get_scalar_metric_data", json!({"task": task, "metric": "loss"})).await;
    assert_eq!(data["returned"], json!(0));
}

#[tokio::test]
async fn many_at_once_and_each_with_its_own_result() {
    let World { server, task, child, .. } = world().await;
    let s = &server;
    let both = call(s, "tasks.archive_many", json!({"ids": [task, "ffff"]})).await;
    assert_eq!((&both["succeeded"][0]["id"], &both["failed"][0]["id"]), (&task, &json!("ffff")));
    let found = call(s, "tasks.get_by_id", json!({"task": task})).await;
    assert_eq!(found["task"]["system_tags"], json!(["sys", "archived"]));
    call(s, "tasks.unarchive_many", json!({"ids": [task]})).await;
    let queue = call(s, "queues.create", json!({"name": "q"})).await["id"].clone();
    call(s, "tasks.enqueue_many", json!({"ids": [task, child], "queue": queue})).await;
    assert_eq!(call(s, "queues.peek_task", json!({"queue": queue})).await["task"], task);
    let out = call(s, "tasks.dequeue_many", json!({"ids": [task, child]})).await;
    assert_eq!(out["succeeded"].as_array().unwrap().len(), 2);
    call(s, "tasks.update_tags", json!({"ids": [task], "add_tags": ["new"], "remove_tags": ["red"]})).await;
    assert_eq!(call(s, "projects.get_task_tags", json!({})).await["tags"], json!(["blue", "new"]));
    call(
        s,
        "queues.add_or_update_metadata",
        json!({"queue": queue, "metadata": [{"key": "k", "value": "v"}]}),
    )
    .await;
    assert_eq!(
        call(s, "queues.get_by_id", json!({"queue": queue})).await["queue"]["metadata"]["k"]["value"],
        json!("v")
    );
    let gone = call(s, "tasks.delete_many", json!({"ids": [task, child], "return_file_urls": true})).await;
    assert_eq!(gone["succeeded"][1]["urls"]["event_urls"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn projects_move_and_merge_with_all_that_is_in_them() {
    let World { server, top, below, task, .. } = world().await;
    let s = &server;
    assert!(
        refused(s, "projects.move", json!({"project": top, "new_location": "P/Q"}))
            .await
            .contains("into itself")
    );
    assert_eq!(
        call(s, "projects.move", json!({"project": top, "new_location": "Archive"})).await["moved"],
        json!(2)
    );
    assert_eq!(
        call(s, "projects.get_by_id", json!({"project": below})).await["project"]["name"],
        json!("Archive/P/Q")
    );
    let has = call(s, "projects.validate_delete", json!({"project": top})).await;
    assert_eq!((&has["tasks"], &has["models"]), (&json!(2), &json!(1)));
    let other = call(s, "projects.create", json!({"name": "Other", "description": ""})).await["id"].clone();
    let merged = call(s, "projects.merge", json!({"project": top, "destination_project": other})).await;
    assert_eq!(merged, json!({"moved_entities": 2, "moved_projects": 1}), "a task and a model");
    assert_eq!(call(s, "tasks.get_by_id", json!({"task": task})).await["task"]["project"], other);
    assert_eq!(call(s, "tasks.move", json!({"ids": [task], "project_name": "New"})).await["moved"], json!(1));
}

#[tokio::test]
async fn a_deleted_task_takes_its_own_files_along_and_no_others() {
    let server = TestServer::start().await;
    let s = &server;
    let (mine, other) = (s.task("mine").await, s.task("other").await);
    let files = s.dir.path().join("server/files");
    let put = |id: &str, name: &str| {
        let path = files.join(format!("P 1/train.{id}/artifacts/{name}"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, name).unwrap();
        path
    };
    let (own, foreign) = (put(&mine, "own"), put(&other, "foreign"));
    let uri = |id: &str, name: &str| format!("http://127.0.0.1:1/files/P%201/train.{id}/artifacts/{name}");
    let artifact =
        |key: &str, uri: String| json!({"key": key, "type": "custom", "uri": uri, "mode": "output"});
    let artifacts = json!([artifact("own", uri(&mine, "own")), artifact("foreign", uri(&other, "foreign"))]);
    call(s, "tasks.add_or_update_artifacts", json!({"task": mine, "artifacts": artifacts})).await;
    let model =
        |name: &str, ready: bool| json!({"name": name, "uri": "http://x/m", "task": mine, "ready": ready});
    let kept = call(s, "models.create", model("published", true)).await["id"].clone();
    let used = call(s, "models.create", model("used", false)).await["id"].clone();
    call(s, "models.create", model("draft", false)).await;
    call(
        s,
        "tasks.add_or_update_model",
        json!({"task": other, "name": "input", "type": "input", "model": used}),
    )
    .await;
    // The SDK's request leaves them to the SDK.
    let third = s.task("third").await;
    assert_eq!(call(s, "tasks.delete", json!({"task": third})).await["deleted_files"], json!(0));
    let asked = json!({"task": mine, "delete_external_artifacts": true, "delete_output_models": true});
    let gone = call(s, "tasks.delete", asked).await;
    assert_eq!((&gone["deleted_files"], &gone["deleted_models"]), (&json!(1), &json!(1)));
    assert!(!own.exists() && !own.parent().unwrap().exists(), "nor its directory");
    assert!(foreign.exists(), "a task can name another's file, and not take it along");
    let left = call(s, "models.get_all", json!({"only_fields": ["id"]})).await;
    let left: Vec<&Value> = left["models"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert!(left.len() == 2 && left.contains(&&kept) && left.contains(&&used));
}
