//! `projects.*`.

use std::collections::BTreeMap;

use cantle_clearml::projects::{Create, Created, Delete, GetById, Update};
use cantle_clearml::{Empty, Updated};
use cantle_model::project_name;
use cantle_store::ProjectRow;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call, USER};
use crate::clock::{new_id, rfc3339};
use crate::error::ApiError;
use crate::filter::PROJECTS;
use crate::projection::{Listed, list};
use crate::routes::Routes;

/// Members that are kept unchanged.
const DOC_FIELDS: [&str; 3] = ["tags", "system_tags", "default_output_destination"];

pub(crate) fn add(routes: &mut Routes) {
    routes.on("projects.get_all", get_all);
    // ClearML's web page requests more fields under this name; the list is the same.
    routes.on("projects.get_all_ex", get_all);
    routes.typed(get_by_id);
    routes.typed(create);
    routes.typed(update);
    routes.typed(delete);
}

async fn get_all(call: Call, mut body: Map<String, Value>) -> Result<Value, ApiError> {
    let rows = call.projects().await?;
    let ids: BTreeMap<&str, &str> = rows.iter().map(|row| (row.name.as_str(), row.id.as_str())).collect();
    let nested: Vec<Nested<'_>> = rows.iter().map(|row| Nested { row, ids: &ids }).collect();
    if body.get("shallow_search") == Some(&Value::Bool(true)) {
        // Only the top, or right below what `parent` names; the latter follows from `parent` anyway.
        body.entry("parent").or_insert_with(|| json!([null]));
    }
    list(&nested, &PROJECTS, &body, "projects")
}

/// A project with its place among the others: a name with slashes is a path.
struct Nested<'a> {
    row: &'a ProjectRow,
    ids: &'a BTreeMap<&'a str, &'a str>,
}

impl Listed for Nested<'_> {
    fn object(&self) -> Value {
        let mut object = project(self.row);
        let above = self.row.name.match_indices('/').filter_map(|(at, _)| self.ids.get(&self.row.name[..at]));
        let path: Vec<&&str> = above.collect();
        object["parent"] = json!(path.last());
        object["path"] = json!(path);
        object
    }
}

/// Adds the children of the projects that a request names, if it asks for that.
pub(crate) async fn with_subprojects(call: &Call, body: &mut Map<String, Value>) -> Result<(), ApiError> {
    if body.get("include_subprojects") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let Some(Value::Array(named)) = body.get_mut("project") else { return Ok(()) };
    let rows = call.projects().await?;
    let tops: Vec<String> = rows
        .iter()
        .filter(|row| named.contains(&json!(row.id)))
        .map(|row| format!("{}/", row.name))
        .collect();
    let below = rows.iter().filter(|row| tops.iter().any(|top| row.name.starts_with(top)));
    named.extend(below.map(|row| json!(row.id)));
    Ok(())
}

async fn get_by_id(call: Call, request: GetById) -> Result<Value, ApiError> {
    Ok(json!({ "project": project(&call.store.project(&request.project).await?) }))
}

/// The one spelling of a name that a client wrote.
pub(crate) fn named(text: &str) -> Result<String, ApiError> {
    let wrong = || match text.trim_matches(['/', ' ']) {
        "" => ApiError::invalid("a project needs a name"),
        _ => ApiError::invalid(format!("\"{}\" is not the name of a project", text.escape_default())),
    };
    project_name(text).ok_or_else(wrong)
}

pub(crate) async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    let now_us = call.now_us;
    let Create { name, description, mut fields } = request;
    let name = named(&name)?;
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let row = ProjectRow {
        id: new_id(),
        name,
        description,
        created_us: now_us,
        last_update_us: now_us,
        quota: None,
        doc: fields,
    };
    call.store.create_project(&row).await?;
    Ok(Created { id: row.id })
}

async fn update(call: Call, request: Update) -> Result<Updated, ApiError> {
    let Update { project, mut fields } = request;
    let name = fields.get("name").and_then(Value::as_str).map(named).transpose()?;
    let description = fields.get("description").and_then(Value::as_str).map(str::to_owned);
    let changed = fields.clone();
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let (name, description) = (name.as_deref(), description.as_deref());
    call.store.update_project(&project, name, description, fields, call.now_us).await?;
    call.people.reload(&call.store).await?;
    Ok(Updated { updated: 1, fields: changed })
}

async fn delete(call: Call, request: Delete) -> Result<Empty, ApiError> {
    call.store.delete_project(&request.project, request.force).await?;
    call.people.reload(&call.store).await?;
    Ok(Empty {})
}

fn project(row: &ProjectRow) -> Value {
    let mut project = Map::new();
    let basename = row.name.rsplit('/').next().unwrap_or(&row.name);
    for (name, value) in [
        ("id", json!(row.id)),
        ("name", json!(row.name)),
        ("basename", json!(basename)),
        ("description", json!(row.description)),
        ("user", json!(USER)),
        ("company", json!(COMPANY)),
        ("created", json!(rfc3339(row.created_us))),
        ("last_update", json!(rfc3339(row.last_update_us))),
        ("tags", json!([])),
        ("system_tags", json!([])),
    ] {
        project.insert(name.to_owned(), value);
    }
    project.extend(row.doc.clone());
    Value::Object(project)
}
