//! `tasks.*`: parameters and configurations one by one.

use std::collections::BTreeMap;

use cantle_clearml::Updated;
use cantle_clearml::tasks::{HyperParams, Param};
use cantle_store::{TaskEdit, TaskFilter};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::Call;
use crate::error::ApiError;
use crate::lists::parts;
use crate::projection::few;
use crate::rights::Allowed;
use crate::rights::act::{Change, See};
use crate::rights::object::Task;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("tasks.get_hyper_params", get_hyper_params);
    routes.on("tasks.edit_hyper_params", edit_hyper_params);
    routes.on("tasks.delete_hyper_params", delete_hyper_params);
    routes.on("tasks.get_configurations", get_configurations);
    routes.on("tasks.get_configuration_names", get_configuration_names);
    routes.on("tasks.edit_configuration", edit_configuration);
    routes.on("tasks.delete_configuration", delete_configuration);
}

/// The section of what users note about a task.
const PROPERTIES: &str = "properties";

#[derive(Deserialize)]
struct OfTasks {
    tasks: Vec<String>,
    #[serde(default)]
    names: Vec<String>,
}

/// The member `name` of each task's document, by task id.
async fn members(
    call: &Call,
    tasks: &[String],
    name: &str,
) -> Result<Vec<(String, Map<String, Value>)>, ApiError> {
    few(tasks)?;
    if tasks.is_empty() {
        return Ok(Vec::new());
    }
    let mut list = call.lists.begin(&call.who.user).await?;
    call.tasks::<See>(tasks).await?;
    let sizes = call.store.document_sizes(tasks).await?;
    let mut found = Vec::new();
    for ids in parts(tasks.to_vec(), &sizes) {
        let _part = list.part().await?;
        let filter = TaskFilter { ids, ..TaskFilter::default() };
        for mut row in call.store.tasks(&call.seen(), filter).await? {
            let member = row.doc.remove(name).filter(Value::is_object).unwrap_or_else(|| json!({}));
            list.add(&member)?;
            if let Value::Object(member) = member {
                found.push((row.index.id, member));
            }
        }
    }
    Ok(found)
}

async fn get_hyper_params(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut params = Vec::new();
    for (task, sections) in members(&call, &request.tasks, "hyperparams").await? {
        let sections = sections.into_iter().filter_map(|(_, section)| section.as_object().cloned());
        let flat: Vec<Value> = sections.flatten().map(|(_, param)| param).collect();
        params.push(json!({ "task": task, "hyperparams": flat }));
    }
    Ok(json!({ "params": params }))
}

/// The old parameters that new ones replace.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Replace {
    #[default]
    None,
    Section,
    All,
}

#[derive(Deserialize)]
struct EditHyperParams {
    task: String,
    #[serde(default)]
    force: bool,
    hyperparams: Vec<Param>,
    #[serde(default)]
    replace_hyperparams: Replace,
}

async fn edit_hyper_params(call: Call, request: EditHyperParams) -> Result<Updated, ApiError> {
    // As in ClearML: what users note about a task may change at any time.
    let only_properties = request.hyperparams.iter().all(|param| param.section == PROPERTIES);
    let mut new: HyperParams = BTreeMap::new();
    for param in request.hyperparams {
        let section = new.entry(param.section.clone()).or_default();
        section.insert(param.name.clone(), param);
    }
    let task = check_draft(&call, &request.task, request.force || only_properties).await?;
    let replace = request.replace_hyperparams;
    let change = |doc: &mut Map<String, Value>| {
        // They were readable when they were written.
        let old = doc.remove("hyperparams").and_then(|old| serde_json::from_value(old).ok());
        let mut params: HyperParams = match (replace, old) {
            (Replace::All, _) | (_, None) => BTreeMap::new(),
            (_, Some(old)) => old,
        };
        for (name, section) in new {
            let old = params.entry(name).or_default();
            if matches!(replace, Replace::Section) {
                old.clear();
            }
            old.extend(section);
        }
        doc.insert("hyperparams".to_owned(), json!(params));
    };
    call.store.update_task_doc(&task, call.now_us, change).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

/// Refuses changes of a task that is not a draft, unless forced.
async fn check_draft(call: &Call, task: &str, force: bool) -> Result<Allowed<Task, Change>, ApiError> {
    let task = call.task(task).await?;
    call.store.edit_task(&task, &TaskEdit::default(), !force, call.now_us).await?;
    Ok(task)
}

#[derive(Deserialize)]
struct ParamName {
    section: String,
    name: Option<String>,
}

#[derive(Deserialize)]
struct DeleteHyperParams {
    task: String,
    #[serde(default)]
    force: bool,
    hyperparams: Vec<ParamName>,
}

async fn delete_hyper_params(call: Call, request: DeleteHyperParams) -> Result<Value, ApiError> {
    let only_properties = request.hyperparams.iter().all(|param| param.section == PROPERTIES);
    let task = check_draft(&call, &request.task, request.force || only_properties).await?;
    let change = |doc: &mut Map<String, Value>| {
        let Some(Value::Object(sections)) = doc.get_mut("hyperparams") else { return };
        for gone in &request.hyperparams {
            match (&gone.name, sections.get_mut(&gone.section)) {
                (Some(name), Some(Value::Object(section))) => drop(section.remove(name)),
                _ => drop(sections.remove(&gone.section)),
            }
        }
    };
    call.store.update_task_doc(&task, call.now_us, change).await?;
    Ok(json!({"deleted": 1}))
}

async fn get_configurations(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut configurations = Vec::new();
    for (task, items) in members(&call, &request.tasks, "configuration").await? {
        let wanted = |name: &String| request.names.is_empty() || request.names.contains(name);
        let found: Vec<Value> =
            items.into_iter().filter(|(name, _)| wanted(name)).map(|(_, item)| item).collect();
        configurations.push(json!({ "task": task, "configuration": found }));
    }
    Ok(json!({ "configurations": configurations }))
}

async fn get_configuration_names(call: Call, request: OfTasks) -> Result<Value, ApiError> {
    let mut configurations = Vec::new();
    for (task, items) in members(&call, &request.tasks, "configuration").await? {
        let names: Vec<&String> = items.keys().collect();
        configurations.push(json!({ "task": task, "names": names }));
    }
    Ok(json!({ "configurations": configurations }))
}

#[derive(Deserialize)]
struct EditConfiguration {
    task: String,
    #[serde(default)]
    force: bool,
    configuration: Vec<Map<String, Value>>,
    #[serde(default)]
    replace_configuration: bool,
}

async fn edit_configuration(call: Call, request: EditConfiguration) -> Result<Updated, ApiError> {
    let name_of = |item: &Map<String, Value>| item.get("name").and_then(Value::as_str).map(str::to_owned);
    let named: Option<Vec<(String, Value)>> =
        request.configuration.into_iter().map(|i| Some((name_of(&i)?, Value::Object(i)))).collect();
    let named = named.ok_or_else(|| ApiError::invalid("each configuration needs a name"))?;
    let task = check_draft(&call, &request.task, request.force).await?;
    let change = |doc: &mut Map<String, Value>| {
        let items = doc.entry("configuration").or_insert_with(|| json!({}));
        if let Value::Object(items) = items {
            if request.replace_configuration {
                items.clear();
            }
            items.extend(named);
        }
    };
    call.store.update_task_doc(&task, call.now_us, change).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

#[derive(Deserialize)]
struct DeleteConfiguration {
    task: String,
    #[serde(default)]
    force: bool,
    configuration: Vec<String>,
}

async fn delete_configuration(call: Call, request: DeleteConfiguration) -> Result<Value, ApiError> {
    let task = check_draft(&call, &request.task, request.force).await?;
    let change = |doc: &mut Map<String, Value>| {
        if let Some(Value::Object(items)) = doc.get_mut("configuration") {
            items.retain(|name, _| !request.configuration.contains(name));
        }
    };
    call.store.update_task_doc(&task, call.now_us, change).await?;
    Ok(json!({"deleted": 1}))
}
