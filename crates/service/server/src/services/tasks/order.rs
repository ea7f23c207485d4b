//! `order_by` of `tasks.get_all`.

use cantle_store::{OrderBy, TaskKey, TaskTime, Which};

use crate::app::Call;
use crate::error::ApiError;
use crate::services::output::metrics::key_of;

/// Orders tasks by fields; `-` before a field turns it round.
pub(crate) async fn parse(call: &Call, by: &[String]) -> Result<Vec<OrderBy>, ApiError> {
    let mut order = Vec::new();
    for field in by {
        let (name, down) = field.strip_prefix('-').map_or((field.as_str(), false), |name| (name, true));
        let key = match name.split_once('.') {
            Some(("last_metrics", path)) => metric(call, path).await?,
            Some(("hyperparams" | "runtime" | "configuration", _)) => member(name)?,
            _ => column(name).ok_or_else(|| {
                let name = name.escape_default();
                ApiError::invalid(format!("order_by: tasks cannot be ordered by \"{name}\""))
            })?,
        };
        order.push(OrderBy { key, down });
    }
    Ok(order)
}

fn column(name: &str) -> Option<TaskKey> {
    Some(match name {
        "id" => TaskKey::Id,
        "name" => TaskKey::Name,
        "type" => TaskKey::Kind,
        "status" => TaskKey::Status,
        "project" => TaskKey::Project,
        "project.name" => TaskKey::ProjectName,
        "parent" | "parent.name" => TaskKey::Parent,
        "last_iteration" => TaskKey::LastIteration,
        "created" => TaskKey::Time(TaskTime::Created),
        "started" => TaskKey::Time(TaskTime::Started),
        "completed" => TaskKey::Time(TaskTime::Completed),
        "last_update" | "last_change" => TaskKey::Time(TaskTime::LastUpdate),
        "status_changed" => TaskKey::Time(TaskTime::StatusChanged),
        _ => return None,
    })
}

/// A parameter: its value decides.
fn member(name: &str) -> Result<TaskKey, ApiError> {
    let mut path: Vec<String> =
        name.split('.').map(|part| part.replace("%2E", ".").replace("%24", "$")).collect();
    if path.iter().any(|part| part.is_empty() || part.contains(['"', '[', ']'])) {
        return Err(ApiError::invalid(format!("order_by: \"{}\" is not a field", name.escape_default())));
    }
    if path.len() == 3 && path.first().is_some_and(|first| first == "hyperparams") {
        path.push("value".to_owned());
    }
    Ok(TaskKey::Member(path))
}

/// The measured value that `<metric>.<variant>.<which>` names. Names stand for themselves or, as ClearML's own clients
/// write them, as MD5 sums.
async fn metric(call: &Call, path: &str) -> Result<TaskKey, ApiError> {
    let unknown = || {
        let right = "last_metrics.<metric>.<variant>.value, .min_value or .max_value";
        ApiError::invalid(format!("order_by: \"last_metrics.{path}\" is not of the form {right}"))
    };
    let (line, which) = path.rsplit_once('.').ok_or_else(unknown)?;
    let which = match which {
        "value" => Which::Last,
        "min_value" => Which::Least,
        "max_value" => Which::Greatest,
        _ => return Err(unknown()),
    };
    let is_meant = |(metric, variant): &(String, String)| {
        line == format!("{}.{}", key_of(metric), key_of(variant)) || line == format!("{metric}.{variant}")
    };
    let found = call.store.scalar_lines().await?.into_iter().find(is_meant);
    let (metric, variant) = found.unwrap_or_default();
    Ok(TaskKey::Metric(metric, variant, which))
}
