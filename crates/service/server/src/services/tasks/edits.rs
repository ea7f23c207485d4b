//! Small changes of tasks, models, projects and queues for which ClearML has separate calls.

use cantle_clearml::Updated;
use cantle_store::{ProjectRow, StoreError, TaskEdit};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::routes::Routes;
use crate::services::people::projects;
use crate::task_json;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("tasks.move", move_tasks);
    routes.on("models.move", move_models);
    routes.on("tasks.update_tags", tag_tasks);
    routes.on("models.update_tags", tag_models);
    routes.on("tasks.validate", validate);
    routes.on("tasks.edit_runtime", edit_runtime);
    routes.on("projects.move", move_project);
    routes.on("projects.merge", merge_projects);
    routes.on("projects.validate_delete", what_it_has);
    routes.on("queues.peek_task", peek);
    routes.on("queues.add_or_update_metadata", add_metadata);
    routes.on("queues.delete_metadata", delete_metadata);
}

#[derive(Deserialize)]
struct Move {
    ids: Vec<String>,
    project: Option<String>,
    project_name: Option<String>,
}

impl Move {
    /// The project to move to; one that is only named is made.
    async fn target(&self, call: &Call) -> Result<String, ApiError> {
        match (&self.project, &self.project_name) {
            (Some(id), _) => Ok(call.store.project(id).await?.id),
            (None, Some(name)) => project_called(call, name).await,
            (None, None) => Err(ApiError::invalid("project or project_name is needed")),
        }
    }
}

async fn project_called(call: &Call, name: &str) -> Result<String, ApiError> {
    let name = &projects::named(name)?;
    let create = cantle_clearml::projects::Create { name: name.to_owned(), ..Default::default() };
    match projects::create(call.clone(), create).await {
        Ok(made) => Ok(made.id),
        Err(error) => {
            // A caller that was let through may know whether it is there.
            let rows = call.app.store.projects().await?;
            rows.into_iter().find(|row| row.name == *name).map(|row| row.id).ok_or(error)
        }
    }
}

async fn move_tasks(call: Call, request: Move) -> Result<Value, ApiError> {
    let project = request.target(&call).await?;
    for task in call.tasks(&request.ids).await? {
        let edit = TaskEdit { project: Some(project.clone()), ..TaskEdit::default() };
        call.store.edit_task(&task, &edit, false, call.now_us).await?;
    }
    Ok(json!({"moved": request.ids.len(), "project_id": project}))
}

async fn move_models(call: Call, request: Move) -> Result<Value, ApiError> {
    let project = request.target(&call).await?;
    for model in call.models(&request.ids).await? {
        call.store.update_model(&model, None, Some(&project), None, Map::new(), call.now_us).await?;
    }
    Ok(json!({"moved": request.ids.len(), "project_id": project}))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Tags {
    ids: Vec<String>,
    add_tags: Vec<String>,
    remove_tags: Vec<String>,
}

impl Tags {
    fn apply(&self, mut tags: Vec<String>) -> Vec<String> {
        tags.retain(|tag| !self.remove_tags.contains(tag) && !self.add_tags.contains(tag));
        tags.extend(self.add_tags.iter().cloned());
        tags
    }
}

async fn tag_tasks(call: Call, request: Tags) -> Result<Updated, ApiError> {
    for task in call.tasks(&request.ids).await? {
        let tags = request.apply(call.store.task(&task).await?.index.tags);
        let edit = TaskEdit { tags: Some(tags), ..TaskEdit::default() };
        call.store.edit_task(&task, &edit, false, call.now_us).await?;
    }
    Ok(updated(request.ids.len()))
}

async fn tag_models(call: Call, request: Tags) -> Result<Updated, ApiError> {
    for model in call.models(&request.ids).await? {
        let old = call.store.model(&model).await?.doc.remove("tags");
        let old: Vec<String> = old.and_then(|tags| serde_json::from_value(tags).ok()).unwrap_or_default();
        let doc = Map::from_iter([("tags".to_owned(), json!(request.apply(old)))]);
        call.store.update_model(&model, None, None, None, doc, call.now_us).await?;
    }
    Ok(updated(request.ids.len()))
}

fn updated(count: usize) -> Updated {
    Updated { updated: u64::try_from(count).unwrap_or(u64::MAX), fields: Map::new() }
}

#[derive(Deserialize)]
struct Validate {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Would `tasks.create` take it?
async fn validate(call: Call, request: Validate) -> Result<Value, ApiError> {
    task_json::new_task(&call.who, new_id(), request.name, request.kind, request.fields)?;
    Ok(json!({}))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EditRuntime {
    task: String,
    add_or_update: Map<String, Value>,
    remove: Vec<String>,
}

async fn edit_runtime(call: Call, request: EditRuntime) -> Result<Updated, ApiError> {
    let EditRuntime { task, add_or_update, remove } = request;
    let edit = |doc: &mut Map<String, Value>| {
        let runtime = doc.entry("runtime").or_insert_with(|| json!({}));
        if let Value::Object(runtime) = runtime {
            runtime.retain(|key, _| !remove.contains(key));
            runtime.extend(add_or_update);
        }
    };
    call.store.update_task_doc(&call.task(&task).await?, call.now_us, edit).await?;
    Ok(updated(1))
}

#[derive(Deserialize)]
struct MoveProject {
    project: String,
    #[serde(default)]
    new_location: String,
}

/// The project and all below it, by their names.
async fn family(call: &Call, id: &str) -> Result<(ProjectRow, Vec<ProjectRow>), ApiError> {
    let top = call.store.project(id).await?;
    let prefix = format!("{}/", top.name);
    // The right to manage a project is that to manage those below it.
    let below =
        call.app.store.projects().await?.into_iter().filter(|row| row.name.starts_with(&prefix)).collect();
    Ok((top, below))
}

/// Gives the names that begin with `from` a new beginning.
async fn rename(call: &Call, rows: &[ProjectRow], from: &str, to: &str) -> Result<usize, ApiError> {
    for row in rows {
        let name = format!("{to}{}", row.name.strip_prefix(from).unwrap_or(&row.name));
        call.store.update_project(&row.id, Some(&name), None, Map::new(), call.now_us).await?;
    }
    call.people.reload(&call.store).await?;
    Ok(rows.len())
}

async fn move_project(call: Call, request: MoveProject) -> Result<Value, ApiError> {
    let (top, below) = family(&call, &request.project).await?;
    let location = request.new_location.trim_matches(['/', ' ']);
    let location = &if location.is_empty() { String::new() } else { projects::named(location)? };
    if *location == top.name || location.starts_with(&format!("{}/", top.name)) {
        return Err(ApiError::invalid("new_location: a project cannot be moved into itself"));
    }
    let basename = top.name.rsplit('/').next().unwrap_or(&top.name);
    let to = if location.is_empty() { basename.to_owned() } else { format!("{location}/{basename}") };
    if !location.is_empty() {
        project_called(&call, location).await?;
    }
    let moved = rename(&call, std::slice::from_ref(&top), &top.name, &to).await?;
    Ok(json!({ "moved": moved + rename(&call, &below, &top.name, &to).await? }))
}

#[derive(Deserialize)]
struct Merge {
    project: String,
    destination_project: Option<String>,
}

async fn merge_projects(call: Call, request: Merge) -> Result<Value, ApiError> {
    let (top, below) = family(&call, &request.project).await?;
    let to = request.destination_project.filter(|id| !id.is_empty());
    let to = to.ok_or_else(|| ApiError::invalid("destination_project is needed"))?;
    let destination = call.store.project(&to).await?;
    if destination.id == top.id || below.iter().any(|row| row.id == destination.id) {
        return Err(ApiError::invalid("destination_project: a project cannot be merged into itself"));
    }
    let moved_projects = rename(&call, &below, &top.name, &destination.name).await?;
    let moved_entities = call.store.move_all(std::slice::from_ref(&top.id), &destination.id).await?;
    match call.store.delete_project(&top.id, false).await {
        Ok(()) | Err(StoreError::NoProject(_)) => {}
        Err(error) => return Err(error.into()),
    }
    call.people.reload(&call.store).await?;
    Ok(json!({ "moved_entities": moved_entities, "moved_projects": moved_projects }))
}

#[derive(Deserialize)]
struct OfProject {
    project: String,
}

/// The contents that would be lost with a project.
async fn what_it_has(call: Call, request: OfProject) -> Result<Value, ApiError> {
    let (top, below) = family(&call, &request.project).await?;
    let ids: Vec<String> = std::iter::once(&top).chain(&below).map(|row| row.id.clone()).collect();
    let (tasks, non_archived_tasks) = call.store.count_tasks(&ids).await?;
    // They are only counted.
    let mut models = call.app.store.models(&[], &[]).await?;
    models.retain(|model| model.project.as_ref().is_some_and(|project| ids.contains(project)));
    let is_archived =
        |tags: &Value| tags.as_array().is_some_and(|tags| tags.iter().any(|tag| tag == "archived"));
    let active = models.iter().filter(|model| !model.doc.get("system_tags").is_some_and(is_archived)).count();
    Ok(json!({
        "tasks": tasks, "non_archived_tasks": non_archived_tasks, "models": models.len(),
        "non_archived_models": active, "reports": 0, "non_archived_reports": 0,
    }))
}

#[derive(Deserialize)]
struct OfQueue {
    queue: String,
}

async fn peek(call: Call, request: OfQueue) -> Result<Value, ApiError> {
    let mut entries = call.store.queue(&request.queue).await?.entries;
    if let Some(seen) = call.active_seen().await? {
        entries.retain(|(task, _)| seen.contains(task));
    }
    Ok(json!({ "task": entries.first().map(|(task, _)| task) }))
}

#[derive(Deserialize)]
struct AddMetadata {
    queue: String,
    metadata: Vec<Map<String, Value>>,
    #[serde(default)]
    replace_metadata: bool,
}

async fn metadata_of(call: &Call, queue: &str) -> Result<Map<String, Value>, ApiError> {
    Ok(match call.store.queue(queue).await?.doc.remove("metadata") {
        Some(Value::Object(old)) => old,
        _ => Map::new(),
    })
}

async fn set_metadata(call: &Call, queue: &str, metadata: Map<String, Value>) -> Result<Updated, ApiError> {
    let doc = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
    call.store.update_queue(queue, None, doc, call.now_us).await?;
    Ok(updated(1))
}

async fn add_metadata(call: Call, request: AddMetadata) -> Result<Updated, ApiError> {
    let old = metadata_of(&call, &request.queue).await?;
    let mut metadata = if request.replace_metadata { Map::new() } else { old };
    for item in request.metadata {
        let key = item.get("key").and_then(Value::as_str).map(str::to_owned);
        let key = key.ok_or_else(|| ApiError::invalid("each metadata item needs a key"))?;
        metadata.insert(key, Value::Object(item));
    }
    set_metadata(&call, &request.queue, metadata).await
}

#[derive(Deserialize)]
struct DeleteMetadata {
    queue: String,
    keys: Vec<String>,
}

async fn delete_metadata(call: Call, request: DeleteMetadata) -> Result<Updated, ApiError> {
    let mut metadata = metadata_of(&call, &request.queue).await?;
    metadata.retain(|key, _| !request.keys.contains(key));
    set_metadata(&call, &request.queue, metadata).await
}
