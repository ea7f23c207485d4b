//! Tasks that were deleted a moment ago, with the users who deleted them. ClearML's SDK deletes a task first, and then
//! each of its files and those of its models; by then there is no task any more that names their owner. A user who was
//! allowed to delete the task may delete the files that it left.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Deleting the files of one task takes minutes at most.
const KEPT: Duration = Duration::from_secs(3600);
/// The oldest ones are forgotten first.
const MOST: usize = 10_000;

struct One {
    task: String,
    user: String,
    since: Instant,
}

/// Of this server.
#[derive(Default)]
pub(crate) struct Deleted(Mutex<VecDeque<One>>);

impl Deleted {
    /// This user deleted this task.
    pub(crate) fn note(&self, task: &str, user: &str) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if tasks.len() >= MOST {
            tasks.pop_front();
        }
        tasks.push_back(One { task: task.to_owned(), user: user.to_owned(), since: Instant::now() });
    }

    /// Whether this user deleted all of these tasks.
    pub(super) fn are_by(&self, tasks: &[String], user: &str) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|one| one.since.elapsed() < KEPT);
        let is_by = |task: &String| known.iter().any(|one| one.task == *task && one.user == user);
        !tasks.is_empty() && tasks.iter().all(is_by)
    }
}

impl std::fmt::Debug for Deleted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deleted")
    }
}
