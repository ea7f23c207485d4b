//! A task that may run elsewhere by now is ended: its *fence*. The task's owner writes down until when the task is its own and
//! renews that; where nobody renews it (the owner died, or cannot reach whoever decides), the supervisor ends the task.
//!
//! The clock counts while the machine sleeps and is not set by anybody. The time before the fence is the task's to tidy up.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::TaskDirectory;
use crate::processes::Scope;

/// How often the fence is read: a task outlives it by no more than this.
const EVERY: Duration = Duration::from_millis(500);
/// The longest time that a task has between SIGTERM and its fence.
const LONGEST_GRACE_MS: u64 = 10_000;

/// Until when a task is its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// Milliseconds since this machine started, sleep included: see [`Fence::now_ms`].
    pub until_ms: u64,
    /// How far each renewal moves it, in milliseconds.
    pub after_ms: u64,
}

impl Fence {
    /// The time of fences: milliseconds since this machine started, sleep included.
    #[must_use]
    pub fn now_ms() -> u64 {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
            let (seconds, ns) = (time.tv_sec().unsigned_abs(), time.tv_nsec().unsigned_abs());
            seconds.saturating_mul(1000).saturating_add(ns / 1_000_000)
        })
    }

    /// How long before the fence the task gets SIGTERM: a quarter of the time, at most 10 s.
    const fn grace_ms(self) -> u64 {
        let quarter = self.after_ms / 4;
        if quarter < LONGEST_GRACE_MS { quarter } else { LONGEST_GRACE_MS }
    }

    /// For how long the task may tidy up, once that time has come.
    fn grace_at(self, now_ms: u64) -> Option<Duration> {
        let is_due = now_ms.saturating_add(self.grace_ms()) >= self.until_ms;
        is_due.then(|| Duration::from_millis(self.until_ms.saturating_sub(now_ms)))
    }
}

/// Ends the task of a directory at its fence. Runs beside the supervisor's wait for the task's end, until that ends.
pub(crate) fn guard(directory: &TaskDirectory, scope: &Scope) {
    loop {
        std::thread::sleep(EVERY);
        let Some(grace) = directory.fence().and_then(|fence| fence.grace_at(Fence::now_ms())) else {
            continue;
        };
        // First, so that the reason is known when the end is. If it cannot be written, the task ends all the same.
        let _ = directory.mark_fenced();
        // The supervisor waits for the processes; nobody else may.
        scope.end_blocking(grace, || ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_a_quarter_of_the_time_to_tidy_up() {
        let fence = Fence { until_ms: 100_000, after_ms: 20_000 };
        assert_eq!(fence.grace_at(94_999), None);
        assert_eq!(fence.grace_at(95_000), Some(Duration::from_secs(5)));
        assert_eq!(fence.grace_at(100_000), Some(Duration::ZERO));
        // A machine that slept.
        assert_eq!(fence.grace_at(900_000), Some(Duration::ZERO));
        let long = Fence { until_ms: 100_000, after_ms: 86_400_000 };
        assert_eq!(long.grace_at(89_999), None);
        assert_eq!(long.grace_at(90_000), Some(Duration::from_secs(10)));
    }
}
