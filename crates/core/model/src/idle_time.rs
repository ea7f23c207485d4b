//! For how long a task may be idle.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::TimeLimit;

/// For how long a task may be idle before it is ended, in seconds: a minute at least, a year at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct IdleTime(TimeLimit);

impl IdleTime {
    /// Its least value, in seconds: a program may wait for its input for a part of that.
    pub const LEAST_S: u64 = 60;
    /// The longest period over which activity is added up.
    const WINDOW: Duration = Duration::from_mins(1);
    const SHORTEST_WARNING: Duration = Duration::from_mins(1);
    const LONGEST_WARNING: Duration = Duration::from_mins(10);

    /// A time of this number of seconds; `None` if it is less than [`Self::LEAST_S`] or more than [`TimeLimit::MOST_S`].
    #[must_use]
    pub fn of_seconds(seconds: u64) -> Option<Self> {
        TimeLimit::of_seconds(seconds).filter(|_| seconds >= Self::LEAST_S).map(Self)
    }

    /// In seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0.seconds()
    }

    /// As a time to wait.
    #[must_use]
    pub const fn duration(self) -> Duration {
        self.0.duration()
    }

    /// How long before its end an idle task is warned: a tenth of the time, from 1 to 10 minutes, but no more than half of it.
    #[must_use]
    pub fn warning(self) -> Duration {
        let tenth = (self.duration() / 10).clamp(Self::SHORTEST_WARNING, Self::LONGEST_WARNING);
        tenth.min(self.duration() / 2)
    }

    /// The period over which activity is added up: a minute, or a tenth of a shorter time.
    #[must_use]
    pub fn window(self) -> Duration {
        (self.duration() / 10).min(Self::WINDOW)
    }

    /// Why an idle task ends. The sentence is the task's reason.
    #[must_use]
    pub fn is_over(self) -> String {
        format!("idle for {self}")
    }
}

/// As users write it: `2h`, `1h30m`.
impl fmt::Display for IdleTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text is no idle time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is not an idle time; write numbers with d, h, m or s, such as 30m or 2h, from 1m to 366d"
)]
pub struct IdleTimeError {
    given: String,
}

impl FromStr for IdleTime {
    type Err = IdleTimeError;

    fn from_str(text: &str) -> Result<Self, IdleTimeError> {
        let time = text.parse().ok().and_then(|time: TimeLimit| Self::of_seconds(time.seconds()));
        time.ok_or_else(|| IdleTimeError { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_less_than_a_minute_is_refused() {
        for (text, shown) in [("60s", "1m"), ("2h", "2h"), ("1h30m", "1h30m"), ("366d", "366d")] {
            assert_eq!(text.parse::<IdleTime>().unwrap().to_string(), shown);
        }
        for wrong in ["0", "0s", "10s", "59s", "abc", "2", "367d", "-1h", ""] {
            let error = wrong.parse::<IdleTime>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{wrong}\" is not an idle time; write")), "{error}");
        }
        assert_eq!("2h".parse::<IdleTime>().unwrap().is_over(), "idle for 2h");
    }

    #[test]
    fn the_warning_comes_in_time() {
        let minutes = |text: &str| text.parse::<IdleTime>().unwrap().warning().as_secs_f64() / 60.0;
        let found = ["1m", "2m", "5m", "10m", "1h", "2h", "7d"].map(minutes);
        assert_eq!(found, [0.5, 1.0, 1.0, 1.0, 6.0, 10.0, 10.0]);
        let window = |text: &str| text.parse::<IdleTime>().unwrap().window().as_secs();
        assert_eq!(["1m", "5m", "10m", "2h"].map(window), [6, 30, 60, 60]);
    }
}
