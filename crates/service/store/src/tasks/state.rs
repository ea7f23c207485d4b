//! The statement that brings tasks into a state, for one task and for many.

use cantle_model::TaskStatus::{self, Created, InProgress};

use crate::data::Change;
use crate::db::Sql;

/// Clears the fields that a run fills in a task's record.
pub(crate) const UNFILLED: &str = ", taken_us = NULL, started_us = NULL, completed_us = NULL, node = NULL, lease = NULL, \
     slices = '[]', exit_code = NULL, reason = NULL";

/// Brings tasks into a state. The caller appends the other fields to set and the tasks, all in one statement: each write of
/// a task is a copy of it and of its entries in many indexes.
pub(crate) fn status(to: TaskStatus, change: &Change) -> Sql {
    let mut sql = Sql::new("UPDATE tasks SET status = ");
    sql.push_bind(to.as_str()).push(", status_changed_us = ").push_bind(change.now_us);
    sql.push(", last_update_us = ").push_bind(change.now_us);
    sql.push(", status_reason = ").push_bind(&change.reason);
    sql.push(", status_message = ").push_bind(&change.message);
    sql.push(", stop_asked = ").push_bind(i64::from(change.stop_asked));
    sql
}

/// Sets the times of a task that goes into another state.
pub(crate) fn stamp(sql: &mut Sql, to: TaskStatus, now_us: i64) {
    match to {
        InProgress => sql
            .push(", started_us = ")
            .push_bind(now_us)
            .push(", completed_us = NULL, taken_us = NULL, evicted_for = NULL"),
        Created => sql.push(", started_us = NULL, completed_us = NULL, taken_us = NULL"),
        _ => {
            sql.push(", completed_us = COALESCE(completed_us, ").push_bind(now_us).push("), taken_us = NULL")
        }
    };
}
