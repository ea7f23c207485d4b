//! `tasks.*`: making, reading and changing. `tasks_flow` has the changes of a task's state.

use cantle_clearml::Updated;
use cantle_clearml::projects::Created;
use cantle_clearml::tasks::{Create, Edit, GetById};
use cantle_store::{NewTask, TaskEdit};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::rights::act::{Read, See};
use crate::routes::Routes;
use crate::services::output::metrics::last_metrics;
use crate::task_json;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(create);
    routes.typed(get_by_id);
    routes.on("tasks.get_by_id_ex", get_by_id);
    routes.typed(edit);
    routes.on("tasks.update", update);
    routes.on("tasks.clone", clone);
    routes.on("tasks.set_requirements", set_requirements);
    routes.on("tasks.add_or_update_artifacts", add_artifacts);
    routes.on("tasks.delete_artifacts", delete_artifacts);
}

async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    let Create { name, kind, fields } = request;
    let new = task_json::new_task(&call.who, new_id(), name, kind, fields)?;
    call.store.create_task(&new, call.now_us).await?;
    Ok(Created { id: new.id })
}

async fn get_by_id(call: Call, request: GetById) -> Result<Value, ApiError> {
    let row = call.store.task(&call.task::<See>(&request.task).await?).await?;
    let mut task = task_json::task(&row);
    match call.task_if::<Read>(&request.task).await? {
        Some(of) => task["last_metrics"] = last_metrics(&call, &of.into()).await?,
        None => task_json::hide_artifacts(&mut task),
    }
    Ok(json!({ "task": task }))
}

async fn edit(call: Call, request: Edit) -> Result<Updated, ApiError> {
    let Edit { task, force, fields } = request;
    let edit = task_json::edit(fields)?;
    call.store.edit_task(&call.task(&task).await?, &edit, !force, call.now_us).await?;
    Ok(Updated { updated: 1, fields: echo(&edit) })
}

/// `tasks.update` changes fields that may change at any time: names, tags, comments.
async fn update(call: Call, request: Edit) -> Result<Updated, ApiError> {
    let Edit { task, mut fields, .. } = request;
    const ANY_TIME: [&str; 7] =
        ["name", "tags", "system_tags", "comment", "project", "output_dest", "status_message"];
    fields.retain(|name, _| ANY_TIME.contains(&name.as_str()));
    let edit = task_json::edit(fields)?;
    call.store.edit_task(&call.task(&task).await?, &edit, false, call.now_us).await?;
    Ok(Updated { updated: 1, fields: echo(&edit) })
}

/// The small fields that changed, which clients show. A diff of a megabyte is not sent back.
fn echo(edit: &TaskEdit) -> Map<String, Value> {
    let mut fields = Map::new();
    for (name, value) in [("name", &edit.name), ("project", &edit.project), ("type", &edit.kind)] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(value));
        }
    }
    fields
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Clone {
    task: String,
    new_task_name: Option<String>,
    new_task_comment: Option<String>,
    new_task_parent: Option<String>,
    new_task_project: Option<String>,
    new_task_tags: Option<Vec<String>>,
    new_task_system_tags: Option<Vec<String>>,
    new_task_hyperparams: Option<Value>,
    new_task_configuration: Option<Value>,
    new_task_container: Option<Value>,
    execution_overrides: Option<Map<String, Value>>,
}

/// A draft with everything that the task needs to run, and nothing of its run.
async fn clone(call: Call, request: Clone) -> Result<Created, ApiError> {
    let old = call.store.task(&call.task::<See>(&request.task).await?).await?;
    let mut fields = old.doc;
    for run in ["runtime", "models", "output", "active_duration"] {
        fields.remove(run);
    }
    if let Some(Value::Object(execution)) = fields.get_mut("execution") {
        execution.remove("artifacts");
        execution.remove("queue");
        execution.extend(request.execution_overrides.unwrap_or_default());
    }
    for (name, value) in [
        ("comment", request.new_task_comment.map(Value::from)),
        ("hyperparams", request.new_task_hyperparams),
        ("configuration", request.new_task_configuration),
        ("container", request.new_task_container),
    ] {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    }
    let name = request.new_task_name.unwrap_or_else(|| format!("Clone Of {}", old.index.name));
    let new = task_json::new_task(&call.who, new_id(), name, old.index.kind, fields)?;
    let new = NewTask {
        project: request.new_task_project.or(old.index.project),
        parent: request.new_task_parent.or(Some(request.task)),
        tags: request.new_task_tags.unwrap_or(old.index.tags),
        system_tags: request.new_task_system_tags.unwrap_or_default(),
        ..new
    };
    call.store.create_task(&new, call.now_us).await?;
    Ok(Created { id: new.id })
}

#[derive(Deserialize)]
struct SetRequirements {
    task: String,
    requirements: Map<String, Value>,
}

async fn set_requirements(call: Call, request: SetRequirements) -> Result<Updated, ApiError> {
    let set = |doc: &mut Map<String, Value>| {
        let script = doc.entry("script").or_insert_with(|| json!({}));
        if let Value::Object(script) = script {
            script.insert("requirements".to_owned(), Value::Object(request.requirements));
        }
    };
    call.store.update_task_doc(&call.task(&request.task).await?, call.now_us, set).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

#[derive(Deserialize)]
struct AddArtifacts {
    task: String,
    artifacts: Vec<Map<String, Value>>,
}

/// An artifact is known by its key and its mode.
fn artifact_id(artifact: &Map<String, Value>) -> (String, String) {
    let text = |name: &str| artifact.get(name).and_then(Value::as_str);
    (text("key").unwrap_or_default().to_owned(), text("mode").unwrap_or("output").to_owned())
}

fn artifacts(doc: &mut Map<String, Value>) -> Option<&mut Vec<Value>> {
    let execution = doc.entry("execution").or_insert_with(|| json!({})).as_object_mut()?;
    execution.entry("artifacts").or_insert_with(|| json!([])).as_array_mut()
}

fn without(list: &mut Vec<Value>, id: &(String, String)) {
    list.retain(|known| known.as_object().is_none_or(|known| artifact_id(known) != *id));
}

async fn add_artifacts(call: Call, request: AddArtifacts) -> Result<Updated, ApiError> {
    if request.artifacts.iter().any(|artifact| artifact_id(artifact).0.is_empty()) {
        return Err(ApiError::invalid("each artifact needs a key"));
    }
    let add = |doc: &mut Map<String, Value>| {
        let Some(list) = artifacts(doc) else { return };
        for mut artifact in request.artifacts {
            without(list, &artifact_id(&artifact));
            // The SDK looks for it when it deletes a task.
            artifact.entry("mode").or_insert_with(|| json!("output"));
            list.push(Value::Object(artifact));
        }
    };
    call.store.update_task_doc(&call.task(&request.task).await?, call.now_us, add).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

async fn delete_artifacts(call: Call, request: AddArtifacts) -> Result<Value, ApiError> {
    let delete = |doc: &mut Map<String, Value>| {
        let Some(list) = artifacts(doc) else { return };
        request.artifacts.iter().for_each(|artifact| without(list, &artifact_id(artifact)));
    };
    call.store.update_task_doc(&call.task(&request.task).await?, call.now_us, delete).await?;
    Ok(json!({"deleted": 1}))
}
