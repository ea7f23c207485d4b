//! `tasks.delete`: deletes a task, its reports, and its files.

use cantle_clearml::tasks::{Delete, Deleted, FileUrls};
use cantle_store::ModelRow;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::many::{Many, for_each};
use crate::app::Call;
use crate::error::ApiError;
use crate::rights::Allowed;
use crate::rights::act::Change;
use crate::rights::object::Task;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(delete);
    routes.on(
        "tasks.delete_many",
        |call, many: Many| async move { for_each(&call, "task", many, delete).await },
    );
}

/// Like ClearML's, with one difference: files and models are deleted only on request. ClearML's SDK deletes them itself and
/// reports a failure for each one that is gone already.
async fn delete(call: Call, request: Delete) -> Result<Deleted, ApiError> {
    let task = call.task(&request.task).await?;
    let (urls, models) = belongings(&call, &task).await?;
    let change = call.change(request.force, None, None);
    let updated_children = call.store.delete_task(&task, &change).await?;
    if request.cantle_forget_name {
        call.app.store.forget_name(&request.task).await?;
    }
    call.deleted.note(&request.task, &call.who.user);
    let mut answer = Deleted { deleted: true, updated_children, ..Deleted::default() };
    let mut left: Vec<String> = urls.artifact_urls.iter().chain(&urls.event_urls).cloned().collect();
    if request.delete_output_models {
        for model in deletable(&call, &request.task, models).await? {
            call.store.delete_model(&call.model(&model.id).await?).await?;
            answer.deleted_models += 1;
            left.extend(uri(&model));
        }
    }
    if request.delete_external_artifacts {
        answer.deleted_files = call.files.erase(&request.task, &left).await;
    }
    answer.urls = request.return_file_urls.then_some(urls);
    Ok(answer)
}

#[derive(Deserialize)]
struct Artifact {
    uri: Option<String>,
    mode: Option<String>,
}

/// The files that a task left, and its output models.
async fn belongings(
    call: &Call,
    task: &Allowed<Task, Change>,
) -> Result<(FileUrls, Vec<ModelRow>), ApiError> {
    let doc = call.store.task(task).await?.doc;
    let artifacts = doc.get("execution").and_then(|execution| execution.get("artifacts")?.as_array());
    // Each by itself: one of another form must not keep the files of all others.
    let artifacts: Vec<Artifact> =
        artifacts.into_iter().flatten().filter_map(|one| Artifact::deserialize(one).ok()).collect();
    let is_output = |artifact: &Artifact| artifact.mode.as_deref() != Some("input");
    let output = call.reporter::<Change>(task.id(), false).await?;
    let samples = call.store.reports(&output, "training_debug_image").await?;
    let url = |doc: &Value| doc.get("url").and_then(Value::as_str).map(str::to_owned);
    let models = made(call, task, &doc).await?;
    let urls = FileUrls {
        model_urls: models.iter().filter_map(uri).collect(),
        event_urls: samples.iter().filter_map(|sample| url(&sample.doc)).collect(),
        artifact_urls: artifacts.into_iter().filter(is_output).filter_map(|artifact| artifact.uri).collect(),
    };
    Ok((urls, models))
}

/// The models that a task made: those that say so, and those that it calls its output and that belong to no other task. A
/// task can call anything its output, so only those are meant that the caller may delete.
async fn made(
    call: &Call,
    task: &Allowed<Task, Change>,
    doc: &Map<String, Value>,
) -> Result<Vec<ModelRow>, ApiError> {
    // Only their ids are taken from here.
    let of_task = call.app.store.models(&[], &[task.id().to_owned()]).await?;
    let output = doc.get("models").and_then(|models| models.get("output")).and_then(Value::as_array);
    let named = output.into_iter().flatten().filter_map(|entry| entry.get("model")?.as_str());
    let own: Vec<String> = of_task.into_iter().map(|model| model.id).collect();
    let named: Vec<String> = named.filter(|id| !own.iter().any(|own| own == id)).map(str::to_owned).collect();
    let of_any: &[Allowed<Task, Change>] = &[];
    let mut models = call.store.models(&call.models_that_may::<Change>(&own).await?, of_any).await?;
    let named = call.store.models(&call.models_that_may::<Change>(&named).await?, of_any).await?;
    models.extend(named.into_iter().filter(|model| model.task.is_none()));
    Ok(models)
}

fn uri(model: &ModelRow) -> Option<String> {
    model.doc.get("uri").and_then(Value::as_str).map(str::to_owned)
}

/// The models of a task that can be deleted: not published, and not used by another task.
async fn deletable(call: &Call, task: &str, models: Vec<ModelRow>) -> Result<Vec<ModelRow>, ApiError> {
    let drafts: Vec<ModelRow> =
        models.into_iter().filter(|model| model.doc.get("ready") != Some(&Value::Bool(true))).collect();
    let ids: Vec<String> = drafts.iter().map(|model| model.id.clone()).collect();
    let used = call.store.models_in_use(task, &ids).await?;
    Ok(drafts.into_iter().filter(|model| !used.contains(&model.id)).collect())
}
