//! How long the token of a run is valid.

use cantle_store::{LeaseHolder, Store};

use super::OwnRun;
use crate::error::ApiError;

/// After the process has ended: what it sent last may arrive late.
const GRACE_US: i64 = 10 * 60 * 1_000_000;
/// After the task has ended, if its node does not report the end of the process: scripts close their task and continue.
const UNREPORTED_US: i64 = 24 * 3600 * 1_000_000;
/// Subcode of 401, as for any token that has ended.
const TOKEN_ENDED: u32 = 30;

/// Refuses the token of a run that is over: another one began, or the task was queued again or deleted, or has ended.
pub(crate) async fn lasts(store: &Store, run: &OwnRun, now_us: i64) -> Result<(), ApiError> {
    let holder = store.holder(&run.task).await?;
    if holder.is_some_and(|holder| is_good(&holder, &run.lease, now_us)) {
        return Ok(());
    }
    let text = format!(
        "this token of task {} has ended with its run; for other calls use a key pair of your own",
        run.task
    );
    Err(ApiError::unauthorized(TOKEN_ENDED, text))
}

fn is_good(holder: &LeaseHolder, lease: &str, now_us: i64) -> bool {
    let Some(ended_us) = holder.completed_us.filter(|_| holder.status.is_final()) else {
        return holder.lease == lease;
    };
    let grace_us = if holder.has_exited { GRACE_US } else { UNREPORTED_US };
    holder.lease == lease && now_us < ended_us.saturating_add(grace_us)
}

#[cfg(test)]
mod tests {
    use cantle_model::TaskStatus;

    use super::*;

    #[test]
    fn a_token_ends_with_its_run() {
        let holder = |status, has_exited, completed_us| LeaseHolder {
            lease: "l".into(),
            status,
            has_exited,
            completed_us,
        };
        let (runs, done) = (TaskStatus::InProgress, TaskStatus::Completed);
        for (holder, now_us, good) in [
            (holder(runs, false, None), i64::MAX, true),
            (holder(TaskStatus::Queued, false, None), 0, true),
            (holder(runs, true, None), 5, true),
            (holder(done, true, Some(7)), 7 + GRACE_US - 1, true),
            (holder(done, true, Some(7)), 7 + GRACE_US, false),
            (holder(done, false, Some(7)), 7 + GRACE_US, true),
            (holder(TaskStatus::Failed, false, Some(7)), 7 + UNREPORTED_US, false),
        ] {
            assert_eq!(is_good(&holder, "l", now_us), good, "{holder:?} {now_us}");
            assert!(!is_good(&holder, "another", now_us));
        }
    }
}
