//! `models.*`: the registry entries that the SDK makes for trained models.

use std::collections::BTreeMap;

use cantle_clearml::Updated;
use cantle_clearml::projects::Created;
use cantle_store::ModelRow;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call};
use crate::clock::{is_id, new_id, rfc3339};
use crate::error::ApiError;
use crate::filter::{Filter, MODELS};
use crate::lists::{List, parts};
use crate::projection::{Listed, few, page};
use crate::rights::Allowed;
use crate::rights::act::{Change, See};
use crate::rights::object::{Model, Task};
use crate::routes::Routes;
use crate::services::people::projects::with_subprojects;
use crate::services::tasks::flow::ARCHIVED;
use crate::services::tasks::many::{Many, for_each};

/// Members that are kept unchanged.
const DOC_FIELDS: [&str; 10] =
    ["uri", "labels", "tags", "system_tags", "comment", "framework", "design", "parent", "ready", "metadata"];

pub(crate) fn add(routes: &mut Routes) {
    routes.on("models.create", create);
    routes.on("models.get_by_id", get_by_id);
    routes.on("models.get_by_id_ex", get_by_id);
    routes.on("models.get_by_task_id", get_by_task_id);
    routes.on("models.get_all", get_all);
    routes.on("models.get_all_ex", get_all);
    routes.on("models.edit", edit);
    routes.on("models.update", edit);
    routes.on("models.set_ready", set_ready);
    routes.on("models.archive_many", |call, many: Many| async move {
        for_each(&call, "model", many, |call, r| archive(call, r, true)).await
    });
    routes.on("models.unarchive_many", |call, many: Many| async move {
        for_each(&call, "model", many, |call, r| archive(call, r, false)).await
    });
    routes.on("models.delete", delete);
    routes.on("models.delete_many", |call, many: Many| async move {
        for_each(&call, "model", many, delete).await
    });
    routes.on("models.publish_many", |call, many: Many| async move {
        for_each(&call, "model", many, set_ready).await
    });
    routes.on("models.update_for_task", update_for_task);
    routes.on("models.add_or_update_metadata", add_metadata);
    routes.on("models.delete_metadata", delete_metadata);
    routes.on("tasks.add_or_update_model", add_to_task);
    routes.on("tasks.delete_models", delete_from_task);
}

#[derive(Deserialize)]
struct Create {
    name: String,
    #[serde(default)]
    id: Option<String>,
    task: Option<String>,
    project: Option<String>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    let Create { name, id, task, project, mut fields } = request;
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let id = match id {
        None => new_id(),
        Some(id) => own_id(&call, id).await?,
    };
    let now_us = call.now_us;
    let owner = call.who.user.clone();
    // A model that a run makes is its task's: only so may the run change it.
    let task = of_task(&call, task.or_else(|| call.who.task().map(str::to_owned))).await?;
    let row = ModelRow {
        id,
        name,
        task: None,
        project,
        owner,
        created_us: now_us,
        last_update_us: now_us,
        doc: fields,
    };
    call.store.create_model(&row, task.as_ref()).await?;
    Ok(Created { id: row.id })
}

/// The task that a request names as the source of a model.
async fn of_task(call: &Call, task: Option<String>) -> Result<Option<Allowed<Task, Change>>, ApiError> {
    match task.filter(|task| !task.is_empty()) {
        Some(task) => Ok(Some(call.task(&task).await?)),
        None => Ok(None),
    }
}

/// An id that a client chose. The output of tasks and of models is found by the id alone, so nothing else may have it.
pub(crate) async fn own_id(call: &Call, id: String) -> Result<String, ApiError> {
    if !is_id(&id) {
        return Err(ApiError::invalid("id: 32 hex digits in lower case are needed"));
    }
    let ids = std::slice::from_ref(&id);
    if call.store.owned_tasks(ids).await?.is_empty() && call.store.owned_models(ids).await?.is_empty() {
        return Ok(id);
    }
    Err(ApiError::invalid("id: it is in use; leave it out, or choose another one"))
}

#[derive(Deserialize)]
struct OneModel {
    model: String,
}

async fn get_by_id(call: Call, request: OneModel) -> Result<Value, ApiError> {
    let seen = call.model::<See>(&request.model).await?;
    Ok(json!({ "model": model(&call.store.model(&seen).await?) }))
}

async fn get_all(call: Call, mut body: Map<String, Value>) -> Result<Value, ApiError> {
    with_subprojects(&call, &mut body).await?;
    // The lists that name models or tasks are short; they keep the rest of the registry from being read.
    let words = |name: &str| match body.get(name).and_then(Value::as_array) {
        Some(list)
            if list.iter().all(|item| item.as_str().is_some_and(|word| !word.starts_with(['-', '_']))) =>
        {
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let (ids, tasks): (Vec<String>, Vec<String>) = (words("id"), words("task"));
    few(&ids)?;
    few(&tasks)?;
    let filter = Filter::parse(&MODELS, &body)?;
    let mut objects = Vec::new();
    for_each_seen(&call, &ids, &tasks, |row, list| {
        let object = row.object();
        if filter.matches(&object) {
            list.add(&object)?;
            objects.push(object);
        }
        Ok(())
    })
    .await?;
    page(objects, &MODELS, &body, "models")
}

/// The models that the caller may see, with these ids and of these tasks; an empty list is no condition. They are read in parts.
pub(crate) async fn for_each_seen(
    call: &Call,
    ids: &[String],
    tasks: &[String],
    mut take: impl FnMut(ModelRow, &mut List) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut list = call.lists.begin(&call.who.user).await?;
    let seen = call.store.model_sizes_seen(&call.seen(), ids, tasks).await?;
    let sizes: BTreeMap<String, usize> = seen.iter().cloned().collect();
    for part in parts(seen.into_iter().map(|(id, _)| id).collect(), &sizes) {
        let _part = list.part().await?;
        let models = call.models_that_may::<See>(&part).await?;
        for row in call.store.models(&models, &[] as &[Allowed<Task, See>]).await? {
            take(row, &mut list)?;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Edit {
    model: String,
    name: Option<String>,
    project: Option<String>,
    /// The SDK creates a model first, and names its task later.
    task: Option<String>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

async fn edit(call: Call, request: Edit) -> Result<Updated, ApiError> {
    let Edit { model, name, project, task, mut fields } = request;
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let (name, project) = (name.as_deref(), project.as_deref());
    let (model, task) = (call.model(&model).await?, of_task(&call, task).await?);
    call.store.update_model(&model, name, project, task.as_ref(), fields, call.now_us).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

async fn set_ready(call: Call, request: OneModel) -> Result<Updated, ApiError> {
    let ready = Map::from_iter([("ready".to_owned(), json!(true))]);
    let model = call.model(&request.model).await?;
    call.store.update_model(&model, None, None, None, ready, call.now_us).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

async fn delete(call: Call, request: OneModel) -> Result<Value, ApiError> {
    let model = call.model(&request.model).await?;
    let uri = call.store.model(&model).await?.doc.remove("uri");
    call.store.delete_model(&model).await?;
    Ok(json!({"deleted": true, "url": uri}))
}

async fn archive(call: Call, OneModel { model }: OneModel, archived: bool) -> Result<Value, ApiError> {
    let model = call.model(&model).await?;
    let doc = call.store.model(&model).await?.doc;
    let mut tags: Vec<Value> = doc.get("system_tags").and_then(Value::as_array).cloned().unwrap_or_default();
    tags.retain(|tag| tag != ARCHIVED);
    if archived {
        tags.push(json!(ARCHIVED));
    }
    let doc = Map::from_iter([("system_tags".to_owned(), Value::Array(tags))]);
    call.store.update_model(&model, None, None, None, doc, call.now_us).await?;
    Ok(json!({ "archived": archived }))
}

#[derive(Deserialize)]
struct OfTask {
    task: String,
}

/// The newest model that a task made.
async fn get_by_task_id(call: Call, OfTask { task }: OfTask) -> Result<Value, ApiError> {
    call.task::<See>(&task).await?;
    let made = call.store.models_seen(&call.seen(), &[], std::slice::from_ref(&task)).await?;
    let newest = made.first().ok_or_else(|| ApiError::invalid(format!("task {task} made no model")))?;
    Ok(json!({ "model": model(newest) }))
}

#[derive(Deserialize)]
struct UpdateForTask {
    task: String,
    name: Option<String>,
    override_model_id: Option<String>,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// The output model of this name, made if there is none: how early SDKs report a model.
async fn update_for_task(call: Call, request: UpdateForTask) -> Result<Value, ApiError> {
    let UpdateForTask { task, name, override_model_id, mut fields } = request;
    let of = call.task::<Change>(&task).await?;
    let owner = call.store.task(&of).await?.index;
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let name = name.unwrap_or_else(|| owner.name.clone());
    let known = match override_model_id {
        Some(id) => Some(id),
        None => {
            let made = call.store.models(&[] as &[Allowed<Model, See>], &[of]).await?;
            made.into_iter().find(|model| model.name == name).map(|model| model.id)
        }
    };
    let created = known.is_none();
    let id = match known {
        Some(id) => {
            let known = call.model(&id).await?;
            call.store.update_model(&known, None, None, None, fields, call.now_us).await?;
            id
        }
        None => {
            let (task, project) = (Some(task.clone()), owner.project);
            create(call.clone(), Create { name: name.clone(), id: None, task, project, fields }).await?.id
        }
    };
    add_to_task(call, AddToTask { task, name, side: Side::Output, model: id.clone() }).await?;
    Ok(json!({ "id": id, "created": created, "updated": u64::from(!created) }))
}

#[derive(Deserialize)]
struct AddMetadata {
    model: String,
    metadata: Vec<Map<String, Value>>,
    #[serde(default)]
    replace_metadata: bool,
}

async fn add_metadata(call: Call, request: AddMetadata) -> Result<Updated, ApiError> {
    let model = call.model(&request.model).await?;
    let mut metadata = match call.store.model(&model).await?.doc.remove("metadata") {
        Some(Value::Object(old)) if !request.replace_metadata => old,
        _ => Map::new(),
    };
    for item in request.metadata {
        let key = item.get("key").and_then(Value::as_str).map(str::to_owned);
        let key = key.ok_or_else(|| ApiError::invalid("each metadata item needs a key"))?;
        metadata.insert(key, Value::Object(item));
    }
    set_metadata(&call, &model, metadata).await
}

#[derive(Deserialize)]
struct DeleteMetadata {
    model: String,
    keys: Vec<String>,
}

async fn delete_metadata(call: Call, request: DeleteMetadata) -> Result<Updated, ApiError> {
    let model = call.model(&request.model).await?;
    let mut metadata = match call.store.model(&model).await?.doc.remove("metadata") {
        Some(Value::Object(old)) => old,
        _ => Map::new(),
    };
    metadata.retain(|key, _| !request.keys.contains(key));
    set_metadata(&call, &model, metadata).await
}

async fn set_metadata(
    call: &Call,
    model: &Allowed<Model, Change>,
    metadata: Map<String, Value>,
) -> Result<Updated, ApiError> {
    let doc = Map::from_iter([("metadata".to_owned(), Value::Object(metadata))]);
    call.store.update_model(model, None, None, None, doc, call.now_us).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

/// The kind of a task's models.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Side {
    Input,
    Output,
}

#[derive(Deserialize)]
struct AddToTask {
    task: String,
    name: String,
    #[serde(rename = "type")]
    side: Side,
    model: String,
}

fn side_of(doc: &mut Map<String, Value>, side: Side) -> Option<&mut Vec<Value>> {
    let models = doc.entry("models").or_insert_with(|| json!({"input": [], "output": []}));
    let name = match side {
        Side::Input => "input",
        Side::Output => "output",
    };
    let list = models.as_object_mut()?.entry(name).or_insert_with(|| json!([]));
    list.as_array_mut()
}

async fn add_to_task(call: Call, request: AddToTask) -> Result<Updated, ApiError> {
    let AddToTask { task, name, side, model } = request;
    let (task, model) = (call.task(&task).await?, call.model::<See>(&model).await?);
    let model = call.store.model(&model).await?.id;
    let add = |doc: &mut Map<String, Value>| {
        let Some(list) = side_of(doc, side) else { return };
        list.retain(|known| known["name"] != json!(name));
        list.push(json!({"name": name, "model": model}));
    };
    call.store.update_task_doc(&task, call.now_us, add).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

#[derive(Deserialize)]
struct ModelName {
    name: String,
    #[serde(rename = "type")]
    side: Side,
}

#[derive(Deserialize)]
struct DeleteFromTask {
    task: String,
    models: Vec<ModelName>,
}

async fn delete_from_task(call: Call, request: DeleteFromTask) -> Result<Updated, ApiError> {
    let delete = |doc: &mut Map<String, Value>| {
        for gone in &request.models {
            if let Some(list) = side_of(doc, gone.side) {
                list.retain(|known| known["name"] != json!(gone.name));
            }
        }
    };
    call.store.update_task_doc(&call.task(&request.task).await?, call.now_us, delete).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

impl Listed for ModelRow {
    fn object(&self) -> Value {
        model(self)
    }
}

fn model(row: &ModelRow) -> Value {
    let mut model = Map::new();
    for (name, value) in [
        ("id", json!(row.id)),
        ("name", json!(row.name)),
        ("user", json!(row.owner)),
        ("company", json!(COMPANY)),
        ("created", json!(rfc3339(row.created_us))),
        ("last_update", json!(rfc3339(row.last_update_us))),
        // The SDK's triggers take the later one of both, and cannot do without either.
        ("last_change", json!(rfc3339(row.last_update_us))),
        ("task", json!(row.task)),
        ("project", json!(row.project)),
        ("parent", Value::Null),
        ("comment", json!("")),
        ("uri", json!("")),
        ("framework", json!("")),
        ("ready", json!(false)),
        ("tags", json!([])),
        ("system_tags", json!([])),
        ("labels", json!({})),
        ("design", json!({})),
        ("metadata", json!({})),
    ] {
        model.insert(name.to_owned(), value);
    }
    model.extend(row.doc.clone());
    Value::Object(model)
}
