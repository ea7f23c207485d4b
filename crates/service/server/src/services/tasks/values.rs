//! `projects.*`, `organization.*`, `tasks.get_types`: the values that exist, for a list to choose from.

use std::collections::BTreeSet;

use cantle_store::{ModelRow, TaskFilter, TaskValue};
use regex::Regex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call, USER};
use crate::error::ApiError;
use crate::lists::List;
use crate::rights::act::Read;
use crate::routes::Routes;
use crate::services::output::models::for_each_seen;
use crate::services::people::projects::with_subprojects;

/// ClearML's size of a page.
const PAGE: usize = 500;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("projects.get_task_tags", task_tags);
    routes.on("projects.get_model_tags", model_tags);
    routes.on("projects.get_project_tags", project_tags);
    routes.on("organization.get_tags", all_tags);
    routes.on("projects.get_hyper_parameters", params);
    routes.on("projects.get_hyperparam_values", param_values);
    routes.on("projects.get_model_metadata_keys", metadata_keys);
    routes.on("projects.get_model_metadata_values", metadata_values);
    routes.on("projects.get_unique_metric_variants", lines);
    routes.on("projects.get_task_parents", parents);
    routes.on("projects.get_user_names", users);
    routes.on("tasks.get_types", types);
    routes.on("models.get_frameworks", frameworks);
    routes.on("organization.get_user_companies", companies);
    routes.on("organization.get_entities_count", counts);
}

/// The authors whose values are requested: of one project or several, with those below them on request.
pub(crate) async fn scope(
    call: &Call,
    body: &Map<String, Value>,
    deep: bool,
) -> Result<Vec<String>, ApiError> {
    let named = match (body.get("projects"), body.get("project")) {
        (Some(Value::Array(list)), _) => list.clone(),
        (None, Some(Value::String(one))) => vec![json!(one)],
        (None, Some(Value::Array(list))) => list.clone(),
        (None, None) => Vec::new(),
        _ => return Err(ApiError::invalid("projects: a list of ids")),
    };
    let below = body.get("include_subprojects").cloned().unwrap_or_else(|| json!(deep));
    let mut asked =
        Map::from_iter([("project".to_owned(), json!(named)), ("include_subprojects".to_owned(), below)]);
    with_subprojects(call, &mut asked).await?;
    let list = asked.remove("project").unwrap_or_default();
    let named: Vec<String> = serde_json::from_value(list).map_err(ApiError::unreadable)?;
    if call.seen().is_all() {
        return Ok(named);
    }
    let seen = call.projects().await?.into_iter().map(|row| row.id);
    let mut seen: Vec<String> = seen.filter(|id| named.is_empty() || named.contains(id)).collect();
    if seen.is_empty() {
        // No list would mean all projects.
        seen.push("none".to_owned());
    }
    Ok(seen)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Page {
    page: usize,
    page_size: Option<usize>,
}

/// A part of a list, its length, and how much comes after the part.
fn page<T>(all: Vec<T>, body: &Map<String, Value>) -> Result<(Vec<T>, usize, usize), ApiError> {
    let Page { page, page_size } =
        serde_json::from_value(Value::Object(body.clone())).map_err(ApiError::unreadable)?;
    let (total, size) = (all.len(), page_size.unwrap_or(PAGE).max(1));
    let first = page.saturating_mul(size);
    let part: Vec<T> = all.into_iter().skip(first).take(size).collect();
    let remaining = total.saturating_sub(first.saturating_add(part.len()));
    Ok((part, total, remaining))
}

fn with_system(body: &Map<String, Value>) -> bool {
    body.get("include_system") == Some(&Value::Bool(true))
}

async fn task_tags(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let projects = scope(&call, &body, true).await?;
    let tags = call.store.task_values(TaskValue::Tag, &projects).await?;
    let system = match with_system(&body) {
        true => call.store.task_values(TaskValue::SystemTag, &projects).await?,
        false => Vec::new(),
    };
    Ok(json!({ "tags": tags, "system_tags": system }))
}

fn words<'a>(docs: impl Iterator<Item = &'a Map<String, Value>>, field: &str) -> BTreeSet<&'a str> {
    docs.filter_map(|doc| doc.get(field)?.as_array()).flatten().filter_map(Value::as_str).collect()
}

fn tags_of<'a>(
    docs: impl Iterator<Item = &'a Map<String, Value>> + Clone,
    body: &Map<String, Value>,
) -> Value {
    let system = if with_system(body) { words(docs.clone(), "system_tags") } else { BTreeSet::new() };
    json!({ "tags": words(docs, "tags"), "system_tags": system })
}

/// Models of some projects; of all without one.
async fn models_of(call: &Call, body: &Map<String, Value>) -> Result<Vec<ModelRow>, ApiError> {
    let projects = scope(call, body, true).await?;
    let is_meant = |row: &ModelRow| {
        projects.is_empty() || row.project.as_ref().is_some_and(|project| projects.contains(project))
    };
    without_designs(call, is_meant).await
}

/// The models that the caller may see, without what may be long in them.
async fn without_designs(
    call: &Call,
    is_meant: impl Fn(&ModelRow) -> bool,
) -> Result<Vec<ModelRow>, ApiError> {
    let mut rows = Vec::new();
    let take = |mut row: ModelRow, _: &mut List| {
        ["design", "labels", "comment", "uri"].iter().for_each(|name| drop(row.doc.remove(*name)));
        if is_meant(&row) {
            rows.push(row);
        }
        Ok(())
    };
    for_each_seen(call, &[], &[], take).await?;
    Ok(rows)
}

async fn model_tags(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    Ok(tags_of(models_of(&call, &body).await?.iter().map(|row| &row.doc), &body))
}

async fn project_tags(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let projects = scope(&call, &body, true).await?;
    let mut rows = call.projects().await?;
    rows.retain(|row| projects.is_empty() || projects.contains(&row.id));
    Ok(tags_of(rows.iter().map(|row| &row.doc), &body))
}

/// The tags of tasks, models, projects and queues together.
async fn all_tags(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let (models, projects) = (without_designs(&call, |_| true).await?, call.projects().await?);
    let queues = call.store.queues().await?;
    let docs = models.iter().map(|row| &row.doc).chain(projects.iter().map(|row| &row.doc));
    let docs = docs.chain(queues.iter().map(|row| &row.doc));
    let of_tasks = task_tags(call.clone(), body.clone()).await?;
    let mut all = tags_of(docs, &body);
    for field in ["tags", "system_tags"] {
        let both = [&all[field], &of_tasks[field]].into_iter().filter_map(Value::as_array).flatten();
        let both: BTreeSet<&str> = both.filter_map(Value::as_str).collect();
        all[field] = json!(both);
    }
    Ok(all)
}

async fn params(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let names = call.store.param_names(&scope(&call, &body, true).await?).await?;
    let (part, total, remaining) = page(names, &body)?;
    let parameters: Vec<Value> =
        part.into_iter().map(|(section, name)| json!({"section": section, "name": name})).collect();
    Ok(json!({ "parameters": parameters, "total": total, "remaining": remaining }))
}

#[derive(Deserialize)]
struct ParamValues {
    section: String,
    name: String,
    pattern: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

async fn param_values(call: Call, request: ParamValues) -> Result<Value, ApiError> {
    let ParamValues { section, name, pattern, rest } = request;
    let projects = scope(&call, &rest, true).await?;
    let mut values = call.store.param_values(&section, &name, &projects).await?;
    if let Some(pattern) = pattern {
        let regex = Regex::new(&pattern).map_err(|_| ApiError::invalid(format!("pattern: {pattern}")))?;
        values.retain(|value| regex.is_match(value));
    }
    let (values, total, _) = page(values, &rest)?;
    Ok(json!({ "values": values, "total": total }))
}

fn metadata(row: &ModelRow) -> impl Iterator<Item = (&String, &Value)> {
    row.doc.get("metadata").and_then(Value::as_object).into_iter().flatten()
}

async fn metadata_keys(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let rows = models_of(&call, &body).await?;
    let keys: BTreeSet<&str> = rows.iter().flat_map(metadata).map(|(key, _)| key.as_str()).collect();
    let (keys, total, remaining) = page(keys.into_iter().collect(), &body)?;
    Ok(json!({ "keys": keys, "total": total, "remaining": remaining }))
}

async fn metadata_values(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let key = body.get("key").and_then(Value::as_str);
    let key = key.ok_or_else(|| ApiError::invalid("key: which metadata"))?;
    let rows = models_of(&call, &body).await?;
    let items = rows.iter().flat_map(metadata).filter(|(name, _)| *name == key);
    let values: BTreeSet<&str> = items.filter_map(|(_, item)| item.get("value")?.as_str()).collect();
    let (values, total, _) = page(values.into_iter().collect(), &body)?;
    Ok(json!({ "values": values, "total": total }))
}

async fn lines(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let found = if let Some(ids) = body.get("ids") {
        let ids: Vec<String> = serde_json::from_value(ids.clone()).map_err(ApiError::unreadable)?;
        let mut lines = BTreeSet::new();
        for of in call.tasks::<Read>(&ids).await? {
            let latest = call.store.latest_scalars(&of.into()).await?;
            lines.extend(latest.into_iter().map(|latest| (latest.last.metric, latest.last.variant)));
        }
        lines.into_iter().collect()
    } else if body.get("model_metrics") == Some(&Value::Bool(true)) {
        let mut lines = BTreeSet::new();
        let ids: Vec<String> = models_of(&call, &body).await?.into_iter().map(|row| row.id).collect();
        for of in call.models_that_may::<Read>(&ids).await? {
            let latest = call.store.latest_scalars(&of.into()).await?;
            lines.extend(latest.into_iter().map(|latest| (latest.last.metric, latest.last.variant)));
        }
        lines.into_iter().collect()
    } else {
        call.store.lines_of(&scope(&call, &body, true).await?).await?
    };
    let metric = |(metric, variant): (String, String)| {
        let (metric_hash, variant_hash) = (
            crate::services::output::metrics::key_of(&metric),
            crate::services::output::metrics::key_of(&variant),
        );
        json!({"metric": metric, "metric_hash": metric_hash, "variant": variant, "variant_hash": variant_hash})
    };
    let metrics: Vec<Value> = found.into_iter().map(metric).collect();
    Ok(json!({ "metrics": metrics }))
}

async fn parents(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let projects = scope(&call, &body, true).await?;
    let names = call.projects().await?;
    let wanted = body.get("task_name").and_then(Value::as_str).map(str::to_lowercase);
    let found = call.store.parents_of(&call.seen(), &projects).await?;
    let found = found
        .into_iter()
        .filter(|task| wanted.as_ref().is_none_or(|wanted| task.name.to_lowercase().contains(wanted)));
    let parents: Vec<Value> = found
        .map(|task| {
            let project = task.project.map(|id| {
                let name = names.iter().find(|row| row.id == id).map(|row| row.name.clone());
                json!({"id": id, "name": name})
            });
            json!({"id": task.id, "name": task.name, "project": project})
        })
        .collect();
    Ok(json!({ "parents": parents }))
}

/// The authors of objects: the users that the caller sees.
async fn users(call: Call, _body: Map<String, Value>) -> Result<Value, ApiError> {
    let people = call.people.register();
    let users: Vec<Value> =
        people.seen_by(&call.who).map(|user| json!({"id": user.id, "name": user.name})).collect();
    Ok(json!({ "users": users }))
}

async fn types(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let projects = scope(&call, &body, false).await?;
    Ok(json!({ "types": call.store.task_values(TaskValue::Kind, &projects).await? }))
}

async fn frameworks(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let rows = models_of(&call, &body).await?;
    let frameworks = rows.iter().filter_map(|row| row.doc.get("framework")?.as_str());
    let frameworks: BTreeSet<&str> = frameworks.filter(|name| !name.is_empty()).collect();
    Ok(json!({ "frameworks": frameworks }))
}

async fn companies(_call: Call, _body: Map<String, Value>) -> Result<Value, ApiError> {
    let owners = json!([{"id": USER, "name": USER, "avatar": ""}]);
    Ok(json!({"companies": [{"id": COMPANY, "name": COMPANY, "allocated": 1, "owners": owners}]}))
}

/// The number of objects of each kind that the request names, without filters; a request with a filter is refused.
async fn counts(call: Call, body: Map<String, Value>) -> Result<Value, ApiError> {
    let mut answer = Map::new();
    for (kind, filter) in &body {
        let is_filtered = filter.as_object().is_some_and(|filter| !filter.is_empty());
        let count = match kind.as_str() {
            "search_hidden" | "allow_public" | "active_users" | "limit" => continue,
            _ if is_filtered => {
                return Err(ApiError::invalid(format!(
                    "{kind}: cantle counts all of them, without a filter"
                )));
            }
            "projects" => call.projects().await?.len(),
            "models" => call.store.model_sizes_seen(&call.seen(), &[], &[]).await?.len(),
            "tasks" => match call.seen() {
                seen if seen.is_all() => usize::try_from(call.store.count_tasks(&[]).await?.0).unwrap_or(0),
                seen => call.store.task_ids(&seen, TaskFilter::default()).await?.len(),
            },
            "pipeline_runs" => tasks_tagged(&call, "pipeline").await?,
            "dataset_versions" => tasks_tagged(&call, "dataset").await?,
            "pipelines" => projects_tagged(&call, "pipeline").await?,
            "datasets" => projects_tagged(&call, "dataset").await?,
            "reports" => 0,
            _ => return Err(ApiError::invalid(format!("there is no kind {}", kind.escape_default()))),
        };
        answer.insert(kind.clone(), json!(count));
    }
    Ok(Value::Object(answer))
}

/// Pipelines and datasets are tasks and projects with a system tag.
async fn tasks_tagged(call: &Call, tag: &str) -> Result<usize, ApiError> {
    let rule = cantle_store::TagRule { any: vec![tag.to_owned()], ..cantle_store::TagRule::default() };
    let filter = TaskFilter { system_tags: vec![rule], ..TaskFilter::default() };
    Ok(call.store.task_ids(&call.seen(), filter).await?.len())
}

async fn projects_tagged(call: &Call, tag: &str) -> Result<usize, ApiError> {
    let rows = call.projects().await?;
    Ok(rows.iter().filter(|row| words(std::iter::once(&row.doc), "system_tags").contains(tag)).count())
}
