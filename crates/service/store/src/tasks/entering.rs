//! The data that is read of a task that is about to enter a queue.

use super::record::load;
use crate::data::TaskRow;
use crate::db::{Tx, query};
use crate::{StoreError, row};

/// A task that is about to enter a queue; whether its owner has a limit of queued tasks, how many tasks it waits for, and whether it
/// is an array.
pub(crate) struct Entering {
    pub(crate) old: TaskRow,
    pub(crate) queue_name: String,
    pub(crate) is_limited: bool,
    pub(crate) waits_for: i64,
    pub(crate) is_array: bool,
}

/// As [`load`], with all that its entry depends on: on PostgreSQL each statement is a way to the server and back.
pub(crate) async fn load_for(tx: &mut Tx, task: &str, queue: &str) -> Result<Entering, StoreError> {
    macro_rules! text {
        ($($more:expr)?) => {
            concat!(
                "SELECT ", columns!(tasks_without_doc), $($more,)? ", queues.name AS queue_name, users.most_queued, \
                 (SELECT COUNT(*) FROM task_after WHERE task = tasks.id) AS waits_for, \
                 (SELECT COUNT(*) FROM arrays WHERE task = tasks.id) AS arrays \
                 FROM tasks JOIN queues ON queues.id = $2 LEFT JOIN users ON users.id = tasks.owner WHERE tasks.id = $1"
            )
        };
    }
    let found = query(text!()).on_postgres(text!(columns!(version))).for_entry();
    if let Some(found) = found.bind(task).bind(queue).fetch_task(tx).await? {
        tx.keep_queue(queue);
        let most: Option<i64> = found.try_get("most_queued")?;
        return Ok(Entering {
            old: row::task(&found)?,
            queue_name: found.try_get("queue_name")?,
            is_limited: most.is_some(),
            waits_for: found.try_get("waits_for")?,
            is_array: found.try_get::<i64, _>("arrays")? > 0,
        });
    }
    load(tx, task).await?;
    Err(StoreError::NoQueue(queue.to_owned()))
}
