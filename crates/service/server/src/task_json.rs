//! Converts tasks: from the store's record to ClearML's object, and from ClearML's fields to the record.

use cantle_clearml::StopRequest;
use cantle_clearml::tasks::{Container, Execution, HyperParams, Script, TaskOutput};
use cantle_store::{NewTask, TaskEdit, TaskRow, Wishes};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::app::COMPANY;
use crate::clock::rfc3339;
use crate::error::ApiError;
use crate::rights::Principal;

/// Members of a task that are kept unchanged, apart from those with a column of their own.
pub(crate) const DOC_FIELDS: [&str; 11] = [
    "comment",
    "script",
    "execution",
    "container",
    "hyperparams",
    "configuration",
    "runtime",
    "models",
    "output",
    "output_dest",
    "active_duration",
];

/// ClearML's object.
pub(crate) fn task(row: &TaskRow) -> Value {
    task_with(row, |_| true)
}

/// ClearML's object, of which only some members are wanted: a list has 500 of them.
pub(crate) fn task_with(row: &TaskRow, is_wanted: impl Fn(&str) -> bool) -> Value {
    let index = &row.index;
    let mut task = Map::new();
    macro_rules! put {
        ($($name:literal: $value:expr,)*) => {$(
            if is_wanted($name) {
                task.insert($name.to_owned(), $value);
            }
        )*};
    }
    put! {
        "id": json!(index.id),
        "name": json!(index.name),
        "type": json!(index.kind),
        "status": json!(index.status),
        "status_message": json!(row.status_message),
        "status_reason": json!(row.status_reason),
        "user": json!(row.owner),
        "company": json!(COMPANY),
        "project": json!(index.project),
        "parent": json!(index.parent),
        "tags": json!(index.tags),
        "system_tags": json!(index.system_tags),
        "last_iteration": json!(row.last_iteration),
        "last_worker": json!(row.last_worker),
        "last_worker_report": json!(row.last_worker_report_us.map(rfc3339)),
        "created": json!(rfc3339(index.created_us)),
        "started": json!(index.started_us.map(rfc3339)),
        "completed": json!(index.completed_us.map(rfc3339)),
        "last_update": json!(rfc3339(index.last_update_us)),
        "last_change": json!(rfc3339(index.last_update_us)),
        "status_changed": json!(rfc3339(index.status_changed_us)),
        "comment": given(row, "comment", json!("")),
        "script": given(row, "script", json!({})),
        "execution": given(row, "execution", json!({"artifacts": []})),
        "container": given(row, "container", json!({"image": "", "arguments": "", "setup_shell_script": ""})),
        "hyperparams": given(row, "hyperparams", json!({})),
        "configuration": given(row, "configuration", json!({})),
        "runtime": given(row, "runtime", json!({})),
        "models": given(row, "models", json!({"input": [], "output": []})),
        "output": given(row, "output", json!({"destination": "", "result": "", "error": ""})),
    }
    if let Some(time) = row.time.filter(|_| is_wanted("cantle_time_limit_s")) {
        task.insert("cantle_time_limit_s".to_owned(), json!(time));
    }
    if let Some(idle) = row.idle.filter(|_| is_wanted("cantle_idle_limit_s")) {
        task.insert("cantle_idle_limit_s".to_owned(), json!(idle));
    }
    // Also those of tasks that were written by an older version.
    let artifacts = task.get_mut("execution").and_then(|execution| execution.get_mut("artifacts"));
    for artifact in artifacts.and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::Object(artifact) = artifact {
            artifact.entry("mode").or_insert_with(|| json!("output"));
        }
    }
    if let (Some(queue), Some(Value::Object(execution))) = (&index.queue, task.get_mut("execution")) {
        execution.insert("queue".to_owned(), json!(queue));
    }
    Value::Object(task)
}

/// Takes the artifacts out of ClearML's object: they are output, which needs the right to read.
pub(crate) fn hide_artifacts(task: &mut Value) {
    if let Some(Value::Object(execution)) = task.get_mut("execution") {
        execution.insert("artifacts".to_owned(), json!([]));
    }
}

/// A member as it was given: an object with defaults for what is missing, anything else as it is.
fn given(row: &TaskRow, name: &str, default: Value) -> Value {
    match (default, row.doc.get(name)) {
        (Value::Object(mut default), Some(Value::Object(given))) => {
            default.extend(given.clone());
            Value::Object(default)
        }
        (default, given) => given.cloned().unwrap_or(default),
    }
}

/// A new record from the fields of `tasks.create`.
pub(crate) fn new_task(
    who: &Principal,
    id: String,
    name: String,
    kind: String,
    mut fields: Map<String, Value>,
) -> Result<NewTask, ApiError> {
    must_have_name(&name)?;
    Ok(NewTask {
        id,
        name,
        kind,
        owner: who.user.clone(),
        made_by: who.task().map(str::to_owned),
        project: take(&mut fields, "project")?,
        parent: take(&mut fields, "parent")?,
        tags: take(&mut fields, "tags")?.unwrap_or_default(),
        system_tags: take(&mut fields, "system_tags")?.unwrap_or_default(),
        wishes: Wishes::default(),
        doc: doc(fields)?,
    })
}

/// A change from the fields of `tasks.edit` and `tasks.update`.
pub(crate) fn edit(mut fields: Map<String, Value>) -> Result<TaskEdit, ApiError> {
    let name: Option<String> = take(&mut fields, "name")?;
    name.as_deref().map(must_have_name).transpose()?;
    let status_message: Option<String> = take(&mut fields, "status_message")?;
    let asks = status_message.as_deref().and_then(StopRequest::parse);
    Ok(TaskEdit {
        name,
        kind: take(&mut fields, "type")?,
        project: take(&mut fields, "project")?,
        parent: take(&mut fields, "parent")?,
        tags: take(&mut fields, "tags")?,
        system_tags: take(&mut fields, "system_tags")?,
        status_message,
        stop_asked: asks == Some(StopRequest::Abort),
        status_reason: take(&mut fields, "status_reason")?,
        doc: doc(fields)?,
    })
}

fn must_have_name(name: &str) -> Result<(), ApiError> {
    if name.trim().is_empty() {
        return Err(ApiError::invalid("a task needs a name"));
    }
    Ok(())
}

/// The members that are kept unchanged, once it is sure that clients can read them again. Unknown members are dropped.
fn doc(mut fields: Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    fields.retain(|name, _| DOC_FIELDS.contains(&name.as_str()));
    if let Some(destination) = take::<String>(&mut fields, "output_dest")? {
        fields.insert("output".to_owned(), json!({"destination": destination}));
    }
    for (name, value) in &fields {
        let readable = match name.as_str() {
            "comment" => can_be::<String>(value),
            "script" => can_be::<Script>(value),
            "execution" => can_be::<Execution>(value),
            "container" => can_be::<Container>(value),
            "hyperparams" => can_be::<HyperParams>(value),
            "output" => can_be::<TaskOutput>(value),
            "active_duration" => can_be::<i64>(value),
            _ => can_be::<Map<String, Value>>(value),
        };
        readable.map_err(|error| ApiError::invalid(format!("{name}: {error}")).caused_by(error))?;
    }
    Ok(fields)
}

fn can_be<T: DeserializeOwned>(value: &Value) -> Result<(), serde_json::Error> {
    T::deserialize(value).map(drop)
}

fn take<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Result<Option<T>, ApiError> {
    let Some(value) = fields.remove(name) else {
        return Ok(None);
    };
    serde_json::from_value(value)
        .map(Some)
        .map_err(|error| ApiError::invalid(format!("{name}: {error}")).caused_by(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn unknown_members_are_dropped_and_wrong_ones_refused() {
        let edit = super::edit(fields(json!({"method": "get", "comment": "c", "name": "n"}))).unwrap();
        assert_eq!((edit.name.as_deref(), edit.doc.len()), (Some("n"), 1));
        for bad in [
            json!({"hyperparams": "x"}),
            json!({"hyperparams": {"s": {"n": {"value": 1}}}}),
            json!({"container": {"image": 1}}),
            json!({"runtime": []}),
            json!({"tags": "x"}),
            json!({"name": " "}),
        ] {
            assert_eq!(super::edit(fields(bad.clone())).unwrap_err().code, 400, "{bad}");
        }
    }
}
