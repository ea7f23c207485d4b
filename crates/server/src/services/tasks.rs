//! `tasks.*`: making, reading and changing. What moves a task is in `tasks_flow`.

use cantle_clearml::Updated;
use cantle_clearml::projects::Created;
use cantle_clearml::tasks::{Create, Delete, Deleted, Edit, GetAll, GetById};
use cantle_model::TaskStatus;
use cantle_store::{NewTask, TaskEdit, TaskFilter, TaskIndex, TaskRow};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::metrics::last_metrics;
use super::task_order;
use crate::app::Call;
use crate::clock::new_id;
use crate::error::ApiError;
use crate::projection::{few, only, page, pattern};
use crate::routes::Routes;
use crate::task_json;

pub(super) fn add(routes: &mut Routes) {
    routes.typed(create);
    routes.typed(get_by_id);
    routes.on("tasks.get_by_id_ex", get_by_id);
    routes.typed(get_all);
    routes.on("tasks.get_all_ex", get_all);
    routes.typed(edit);
    routes.on("tasks.update", update);
    routes.on("tasks.clone", clone);
    routes.typed(delete);
    routes.on("tasks.set_requirements", set_requirements);
    routes.on("tasks.add_or_update_artifacts", add_artifacts);
    routes.on("tasks.delete_artifacts", delete_artifacts);
}

async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    let Create { name, kind, fields } = request;
    let new = task_json::new_task(new_id(), name, kind, fields)?;
    call.store.create_task(&new, call.now_us).await?;
    Ok(Created { id: new.id })
}

async fn get_by_id(call: Call, request: GetById) -> Result<Value, ApiError> {
    let row = call.store.task(&request.task).await?;
    let mut task = task_json::task(&row);
    task["last_metrics"] = last_metrics(&call, &request.task).await?;
    Ok(json!({ "task": task }))
}

async fn edit(call: Call, request: Edit) -> Result<Updated, ApiError> {
    let Edit { task, force, fields } = request;
    let edit = task_json::edit(fields)?;
    call.store.edit_task(&task, &edit, !force, call.now_us).await?;
    Ok(Updated { updated: 1, fields: echo(&edit) })
}

/// `tasks.update` changes fields that may change at any time: names, tags, comments.
async fn update(call: Call, request: Edit) -> Result<Updated, ApiError> {
    let Edit { task, mut fields, .. } = request;
    const ANY_TIME: [&str; 7] =
        ["name", "tags", "system_tags", "comment", "project", "output_dest", "status_message"];
    fields.retain(|name, _| ANY_TIME.contains(&name.as_str()));
    let edit = task_json::edit(fields)?;
    call.store.edit_task(&task, &edit, false, call.now_us).await?;
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

async fn delete(call: Call, request: Delete) -> Result<Deleted, ApiError> {
    let change = call.change(request.force, None, None);
    let updated_children = call.store.delete_task(&request.task, &change).await?;
    Ok(Deleted { deleted: true, updated_children, ..Deleted::default() })
}

async fn get_all(call: Call, request: GetAll) -> Result<Value, ApiError> {
    few(&request.list.id)?;
    let (wanted, unwanted) = statuses(&request.status)?;
    let filter = TaskFilter {
        ids: request.list.id.clone(),
        statuses: wanted,
        projects: request.project.clone(),
        kinds: request.kind.clone(),
        parent: request.parent.clone(),
        ..TaskFilter::default()
    };
    let names = Names::new(&request)?;
    let keep = |task: &TaskIndex| {
        !unwanted.contains(&task.status)
            && tags_match(&task.tags, &request.tags)
            && tags_match(&task.system_tags, &request.system_tags)
            && names.match_task(task)
    };
    let mut index: Vec<_> = call.store.task_index(&filter).await?.into_iter().filter(keep).collect();
    task_order::order(&call, &mut index, &request.order_by).await?;
    let found = page(index, &request.list);
    let mut tasks = Vec::with_capacity(found.len());
    for chunk in found.chunks(1000) {
        let ids: Vec<String> = chunk.iter().map(|task| task.id.clone()).collect();
        let rows = call.store.tasks(&TaskFilter { ids, ..TaskFilter::default() }).await?;
        for wanted in chunk {
            if let Some(row) = rows.iter().find(|row| row.index.id == wanted.id) {
                tasks.push(project(&call, row, &request.list.only_fields).await?);
            }
        }
    }
    Ok(json!({ "tasks": tasks }))
}

async fn project(call: &Call, row: &TaskRow, fields: &[String]) -> Result<Value, ApiError> {
    let mut task = task_json::task(row);
    if fields.iter().any(|field| field.starts_with("last_metrics")) {
        task["last_metrics"] = last_metrics(call, &row.index.id).await?;
    }
    Ok(only(task, fields))
}

/// States to be in and, with `-` before them, not to be in.
fn statuses(statuses: &[String]) -> Result<(Vec<TaskStatus>, Vec<TaskStatus>), ApiError> {
    let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
    for status in statuses {
        let (list, name) = match status.strip_prefix('-') {
            Some(rest) => (&mut unwanted, rest),
            None => (&mut wanted, status.as_str()),
        };
        list.push(name.parse().map_err(ApiError::invalid)?);
    }
    Ok((wanted, unwanted))
}

/// ClearML's rule for tags: any of the plain ones, none of those with `-` before them. `__$…` are its set operators:
/// after `__$and` all of the plain ones are needed, after `__$not` the next one is unwanted.
fn tags_match(has: &[String], filter: &[String]) -> bool {
    let (mut plain, mut all, mut negate) = (Vec::new(), false, false);
    for word in filter {
        match word.as_str() {
            "__$and" | "__$all" => all = true,
            "__$not" => negate = true,
            "__$or" | "__$any" | "__$op" => {}
            word => {
                let unwanted = word.strip_prefix('-').or_else(|| negate.then_some(word));
                negate = false;
                match unwanted {
                    Some(word) if has.iter().any(|h| h == word) => return false,
                    Some(_) => {}
                    None => plain.push(word),
                }
            }
        }
    }
    let in_it = |word: &&str| has.iter().any(|h| h == word);
    plain.is_empty() || if all { plain.iter().all(in_it) } else { plain.iter().any(in_it) }
}

/// Conditions on text: the name's pattern, and one pattern for any or all of several fields.
struct Names {
    name: Option<Regex>,
    any: Option<(Regex, Vec<String>)>,
    all: Option<(Regex, Vec<String>)>,
}

impl Names {
    fn new(request: &GetAll) -> Result<Self, ApiError> {
        let several = |field: &Option<cantle_clearml::tasks::MultiField>| {
            let Some(multi) = field else { return Ok(None) };
            // A search box: upper and lower case are the same.
            let text = multi.pattern.as_ref().map(|text| format!("(?i){text}"));
            Ok::<_, ApiError>(pattern(text.as_deref())?.map(|regex| (regex, multi.fields.clone())))
        };
        let name = pattern(request.list.name.as_deref())?;
        Ok(Self { name, any: several(&request.any)?, all: several(&request.all)? })
    }

    fn match_task(&self, task: &TaskIndex) -> bool {
        let field_matches = |regex: &Regex, field: &String| match field.as_str() {
            "id" => regex.is_match(&task.id),
            "name" => regex.is_match(&task.name),
            "type" => regex.is_match(&task.kind),
            "tags" => task.tags.iter().any(|tag| regex.is_match(tag)),
            "project" => task.project.as_ref().is_some_and(|project| regex.is_match(project)),
            _ => false,
        };
        self.name.as_ref().is_none_or(|regex| regex.is_match(&task.name))
            && self.any.as_ref().is_none_or(|(r, fields)| fields.iter().any(|f| field_matches(r, f)))
            && self.all.as_ref().is_none_or(|(r, fields)| fields.iter().all(|f| field_matches(r, f)))
    }
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
    let old = call.store.task(&request.task).await?;
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
    let new = task_json::new_task(new_id(), name, old.index.kind, fields)?;
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
    call.store.update_task_doc(&request.task, call.now_us, set).await?;
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
        for artifact in request.artifacts {
            without(list, &artifact_id(&artifact));
            list.push(Value::Object(artifact));
        }
    };
    call.store.update_task_doc(&request.task, call.now_us, add).await?;
    Ok(Updated { updated: 1, fields: Map::new() })
}

async fn delete_artifacts(call: Call, request: AddArtifacts) -> Result<Value, ApiError> {
    let delete = |doc: &mut Map<String, Value>| {
        let Some(list) = artifacts(doc) else { return };
        request.artifacts.iter().for_each(|artifact| without(list, &artifact_id(artifact)));
    };
    call.store.update_task_doc(&request.task, call.now_us, delete).await?;
    Ok(json!({"deleted": 1}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn tags() {
        let has = words("red big");
        for (filter, matches) in [
            ("", true),
            ("red", true),
            ("red blue", true),
            ("__$and red blue", false),
            ("__$and red big", true),
            ("blue", false),
            ("-archived", true),
            ("-red", false),
            ("__$not red", false),
            ("__$not blue red", true),
        ] {
            assert_eq!(tags_match(&has, &words(filter)), matches, "{filter}");
        }
    }
}
