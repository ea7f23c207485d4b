//! Decides when an idle task is warned and ended.

use std::time::Duration;

use cantle_model::{IdleTime, TimeLimit};
use tokio::time::Instant;

/// The activity of a task in a window of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// Something.
    Active,
    /// Nothing that counts.
    Quiet,
    /// It cannot be measured, for this reason.
    Unknown(String),
}

/// The action that a task needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IdleNews {
    /// It was idle for so long, and ends after so long.
    Warn {
        /// For how long it did nothing.
        idle: Duration,
        /// How long it has left.
        left: Duration,
    },
    /// It was warned, and is active again.
    Resumed,
    /// It cannot be measured, for this reason: it is not ended. Once for each task.
    Unknown(String),
    /// It is to be ended.
    Over(IdleTime),
}

/// For how long a task has been idle.
#[derive(Debug)]
pub(super) struct Idleness {
    limit: IdleTime,
    /// When it was active last; from then on it is idle.
    active_at: Instant,
    /// When the present window began.
    began: Instant,
    /// It was warned, and ends then.
    ends_at: Option<Instant>,
    is_unknown: bool,
}

impl Idleness {
    /// Of a task that is active now.
    pub(super) const fn new(limit: IdleTime, now: Instant) -> Self {
        Self { limit, active_at: now, began: now, ends_at: None, is_unknown: false }
    }

    /// A new limit counts from now on.
    pub(super) fn set_limit(&mut self, limit: IdleTime, now: Instant) -> Option<IdleNews> {
        if limit == self.limit {
            return None;
        }
        self.limit = limit;
        self.note_active(now)
    }

    /// Is it time to find out what the task did since the window began?
    pub(super) fn is_window_over(&self, now: Instant) -> bool {
        self.window(now) >= self.limit.window()
    }

    /// How long the present window lasts by now.
    pub(super) fn window(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.began)
    }

    /// The window is over: what it means that the task did this in it.
    pub(super) fn close(&mut self, activity: Activity, now: Instant) -> Option<IdleNews> {
        self.began = now;
        match activity {
            // At which moment of the window is not known; it never ends too early.
            Activity::Active => self.note_active(now),
            Activity::Unknown(why) => {
                let resumed = self.note_active(now);
                if std::mem::replace(&mut self.is_unknown, true) {
                    resumed
                } else {
                    Some(IdleNews::Unknown(why))
                }
            }
            Activity::Quiet => self.note_quiet(now),
        }
    }

    fn note_active(&mut self, now: Instant) -> Option<IdleNews> {
        self.active_at = now;
        self.ends_at.take().map(|_| IdleNews::Resumed)
    }

    fn note_quiet(&mut self, now: Instant) -> Option<IdleNews> {
        if let Some(ends_at) = self.ends_at {
            return (now >= ends_at).then_some(IdleNews::Over(self.limit));
        }
        let (idle, left) = (now.saturating_duration_since(self.active_at), self.limit.warning());
        if idle + left < self.limit.duration() {
            return None;
        }
        // Nobody is ended without a warning, however long the last look took.
        self.ends_at = Some(now + left);
        Some(IdleNews::Warn { idle, left })
    }
}

/// As users write it: `1h50m`.
pub(crate) fn shown(time: Duration) -> String {
    TimeLimit::of_seconds(time.as_secs()).map_or_else(|| "0s".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    /// The news of a task with this limit, by minute, if a window of a minute is closed with each of these.
    fn course(limit: &str, windows: impl IntoIterator<Item = Activity>) -> Vec<(u32, IdleNews)> {
        let (start, limit) = (Instant::now(), limit.parse().unwrap());
        let mut idleness = Idleness::new(limit, start);
        let mut news = Vec::new();
        for (minute, activity) in (1..).zip(windows) {
            let now = start + minute * MINUTE;
            assert!(idleness.is_window_over(now) && !idleness.is_window_over(now - MINUTE));
            news.extend(idleness.close(activity, now).map(|what| (minute, what)));
        }
        news
    }

    fn quiet(minutes: usize) -> impl Iterator<Item = Activity> {
        std::iter::repeat_n(Activity::Quiet, minutes)
    }

    fn warn(idle_min: u32, left_min: u32) -> IdleNews {
        IdleNews::Warn { idle: idle_min * MINUTE, left: left_min * MINUTE }
    }

    fn over(limit: &str) -> IdleNews {
        IdleNews::Over(limit.parse().unwrap())
    }

    #[test]
    fn an_idle_task_is_warned_and_ended() {
        assert_eq!(course("2h", quiet(120)), [(110, warn(110, 10)), (120, over("2h"))]);
        assert_eq!(course("2h", quiet(119)), [(110, warn(110, 10))]);
        assert_eq!(course("10m", quiet(10)), [(9, warn(9, 1)), (10, over("10m"))]);
    }

    #[test]
    fn a_task_that_works_now_and_then_goes_on() {
        let rhythm = || quiet(8).chain([Activity::Active]);
        let windows = std::iter::repeat_with(rhythm).take(20).flatten();
        assert_eq!(course("10m", windows), []);
    }

    #[test]
    fn activity_after_the_warning_cancels_the_end() {
        let windows = quiet(9).chain([Activity::Active]).chain(quiet(10));
        let expected = [(9, warn(9, 1)), (10, IdleNews::Resumed), (19, warn(9, 1)), (20, over("10m"))];
        assert_eq!(course("10m", windows), expected);
    }

    #[test]
    fn what_cannot_be_measured_is_reported_once_and_never_ended() {
        let unknown = || Activity::Unknown("why".to_owned());
        let windows = std::iter::repeat_with(unknown).take(100);
        assert_eq!(course("10m", windows), [(1, IdleNews::Unknown("why".to_owned()))]);
        // One such window is as one with activity.
        let windows = quiet(9).chain([unknown()]).chain(quiet(9));
        let found = course("10m", windows);
        let expected = [(9, warn(9, 1)), (10, IdleNews::Unknown("why".to_owned())), (19, warn(9, 1))];
        assert_eq!(found, expected);
    }

    #[test]
    fn nobody_is_ended_without_a_warning() {
        let start = Instant::now();
        let mut idleness = Idleness::new("2h".parse().unwrap(), start);
        // The machine was asleep, or the last look took a day.
        let late = start + 24 * 60 * MINUTE;
        assert_eq!(idleness.close(Activity::Quiet, late), Some(warn(24 * 60, 10)));
        assert_eq!(idleness.close(Activity::Quiet, late + 9 * MINUTE), None);
        assert_eq!(idleness.close(Activity::Quiet, late + 10 * MINUTE), Some(over("2h")));
    }

    #[test]
    fn another_limit_counts_from_its_beginning() {
        let start = Instant::now();
        let mut idleness = Idleness::new("10m".parse().unwrap(), start);
        assert_eq!(idleness.close(Activity::Quiet, start + 9 * MINUTE), Some(warn(9, 1)));
        let (longer, now) = ("20m".parse().unwrap(), start + 9 * MINUTE);
        assert_eq!(idleness.set_limit(longer, now), Some(IdleNews::Resumed));
        assert_eq!(idleness.set_limit(longer, now), None);
        assert_eq!(idleness.close(Activity::Quiet, now + 17 * MINUTE), None);
        assert_eq!(idleness.close(Activity::Quiet, now + 18 * MINUTE), Some(warn(18, 2)));
    }

    #[test]
    fn times_are_shown_as_users_write_them() {
        assert_eq!((shown(110 * MINUTE), shown(Duration::ZERO)), ("1h50m".to_owned(), "0s".to_owned()));
    }
}
