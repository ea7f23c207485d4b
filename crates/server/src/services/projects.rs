//! `projects.*`.

use cantle_clearml::projects::{Create, Created, Delete, GetAll, GetById, Update};
use cantle_clearml::{Empty, Updated};
use cantle_store::ProjectRow;
use serde_json::{Map, Value, json};

use crate::app::{COMPANY, Call, USER};
use crate::clock::{new_id, rfc3339};
use crate::error::ApiError;
use crate::projection::{Listed, list};
use crate::routes::Routes;

/// Members that are kept unchanged.
const DOC_FIELDS: [&str; 3] = ["tags", "system_tags", "default_output_destination"];

pub(super) fn add(routes: &mut Routes) {
    routes.typed(get_all);
    // ClearML's web page asks for more fields under this name; the list is the same.
    routes.on("projects.get_all_ex", get_all);
    routes.typed(get_by_id);
    routes.typed(create);
    routes.typed(update);
    routes.typed(delete);
}

async fn get_all(call: Call, request: GetAll) -> Result<Value, ApiError> {
    Ok(json!({ "projects": list(call.store.projects().await?, &request.list)? }))
}

async fn get_by_id(call: Call, request: GetById) -> Result<Value, ApiError> {
    Ok(json!({ "project": project(&call.store.project(&request.project).await?) }))
}

async fn create(call: Call, request: Create) -> Result<Created, ApiError> {
    if request.name.trim().is_empty() {
        return Err(ApiError::invalid("a project needs a name"));
    }
    let now_us = call.now_us;
    let Create { name, description, mut fields } = request;
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
    let name = fields.get("name").and_then(Value::as_str).map(str::to_owned);
    let description = fields.get("description").and_then(Value::as_str).map(str::to_owned);
    let changed = fields.clone();
    fields.retain(|field, _| DOC_FIELDS.contains(&field.as_str()));
    let (name, description) = (name.as_deref(), description.as_deref());
    call.store.update_project(&project, name, description, fields, call.now_us).await?;
    Ok(Updated { updated: 1, fields: changed })
}

async fn delete(call: Call, request: Delete) -> Result<Empty, ApiError> {
    call.store.delete_project(&request.project, request.force).await?;
    Ok(Empty {})
}

impl Listed for ProjectRow {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn object(&self) -> Value {
        project(self)
    }
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
