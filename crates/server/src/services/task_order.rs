//! `order_by` of `tasks.get_all`.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use cantle_store::{LatestScalar, TaskIndex};

use super::metrics::key_of;
use crate::app::Call;
use crate::error::ApiError;

/// Orders tasks by fields; `-` before a field turns it round.
pub(super) async fn order(call: &Call, tasks: &mut [TaskIndex], by: &[String]) -> Result<(), ApiError> {
    // The last criterion first: sorting keeps the order of equals.
    for field in by.iter().rev() {
        let (name, down) = field.strip_prefix('-').map_or((field.as_str(), false), |name| (name, true));
        if let Some(value) = name.strip_prefix("last_metrics.") {
            let values = values_of(call, value).await?;
            tasks.sort_by(|a, b| by_value(values.get(&a.id), values.get(&b.id), down));
        } else {
            let compare = by_field(name).ok_or_else(|| {
                ApiError::invalid(format!("order_by: tasks can't be ordered by \"{name}\""))
            })?;
            tasks.sort_by(|a, b| if down { compare(b, a) } else { compare(a, b) });
        }
    }
    Ok(())
}

type Compare = fn(&TaskIndex, &TaskIndex) -> Ordering;

fn by_field(name: &str) -> Option<Compare> {
    Some(match name {
        "id" => |a, b| a.id.cmp(&b.id),
        "name" => |a, b| a.name.cmp(&b.name),
        "type" => |a, b| a.kind.cmp(&b.kind),
        "status" => |a, b| a.status.cmp(&b.status),
        "project" | "project.name" => |a, b| a.project.cmp(&b.project),
        "created" => |a, b| a.created_us.cmp(&b.created_us),
        "started" => |a, b| a.started_us.cmp(&b.started_us),
        "completed" => |a, b| a.completed_us.cmp(&b.completed_us),
        "last_update" | "last_change" => |a, b| a.last_update_us.cmp(&b.last_update_us),
        "status_changed" => |a, b| a.status_changed_us.cmp(&b.status_changed_us),
        _ => return None,
    })
}

/// Tasks without the value come last in both directions: the best ones are among those that were measured.
fn by_value(a: Option<&f64>, b: Option<&f64>, down: bool) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) if down => b.total_cmp(a),
        (Some(a), Some(b)) => a.total_cmp(b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

/// The measured value that `<metric>.<variant>.<which>` names, by task. Names stand for themselves or, as ClearML's own
/// clients write them, as MD5 sums.
async fn values_of(call: &Call, path: &str) -> Result<BTreeMap<String, f64>, ApiError> {
    let unknown = || {
        let right = "last_metrics.<metric>.<variant>.value, .min_value or .max_value";
        ApiError::invalid(format!("order_by: \"last_metrics.{path}\" is not of the form {right}"))
    };
    let (line, which) = path.rsplit_once('.').ok_or_else(unknown)?;
    let pick: fn(&LatestScalar) -> f64 = match which {
        "value" => |latest| latest.last.value,
        "min_value" => |latest| latest.least,
        "max_value" => |latest| latest.greatest,
        _ => return Err(unknown()),
    };
    let is_meant = |(metric, variant): &(String, String)| {
        line == format!("{}.{}", key_of(metric), key_of(variant)) || line == format!("{metric}.{variant}")
    };
    let Some((metric, variant)) = call.store.scalar_lines().await?.into_iter().find(is_meant) else {
        return Ok(BTreeMap::new());
    };
    let latest = call.store.latest_of_line(&metric, &variant).await?;
    Ok(latest.into_iter().map(|latest| (latest.last.task.clone(), pick(&latest))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_last() {
        let mut up = [None, Some(2.0), Some(1.0), None];
        let mut down = up;
        up.sort_by(|a, b| by_value(a.as_ref(), b.as_ref(), false));
        down.sort_by(|a, b| by_value(a.as_ref(), b.as_ref(), true));
        assert_eq!(up, [Some(1.0), Some(2.0), None, None]);
        assert_eq!(down, [Some(2.0), Some(1.0), None, None]);
    }
}
