//! Decides who may use the objects of the file store. An object belongs to a task if a part of its path is called
//! `NAME.TASK`, the name that ClearML's clients give to the directory of a task. Any other object has no owner.

use std::sync::Arc;

use super::guard::may;
use super::table::Act;
use super::{Principal, Right};
use crate::app::App;
use crate::error::ApiError;

/// Refuses the use of an object that is not the caller's. One that the caller may not see is as if it did not exist.
pub(crate) async fn may_use_file(
    app: &Arc<App>,
    who: &Principal,
    path: &str,
    act: Act,
) -> Result<(), ApiError> {
    if who.may_everywhere(if act == Act::Read { Right::Read } else { Right::Manage }) {
        return Ok(());
    }
    let tasks = tasks_in(path);
    let found = if tasks.is_empty() { Vec::new() } else { app.store.owned_tasks(&tasks).await? };
    for task in &found {
        may(who, act, task, "/files", ApiError::new(404, 0, "no such object"))?;
    }
    match (found.is_empty(), act) {
        (false, _) => Ok(()),
        (true, Act::Read) => Err(ApiError::forbidden(who, Right::Read, "/files of no task", None)),
        (true, _) => Err(ApiError::forbidden(who, Right::Manage, "/files of no task", None)),
    }
}

/// Is it in the directory of a task that exists, or of none? Both have an owner: in the second case, the
/// administrators.
pub(crate) async fn has_owner(app: &Arc<App>, path: &str) -> Result<bool, ApiError> {
    let tasks = tasks_in(path);
    Ok(tasks.is_empty() || !app.store.owned_tasks(&tasks).await?.is_empty())
}

/// The tasks in whose directories an object is.
pub(crate) fn tasks_in(path: &str) -> Vec<String> {
    path.split('/').filter_map(task_of).map(str::to_owned).collect()
}

/// The id in `NAME.ID`.
fn task_of(part: &str) -> Option<&str> {
    let (_, id) = part.rsplit_once('.')?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::task_of;

    #[test]
    fn directories_of_tasks() {
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(task_of(&format!("train.v2.{id}")), Some(id));
        for other in ["train", id, "model.pkl", "train.0123", ""] {
            assert_eq!(task_of(other), None, "{other}");
        }
    }
}
