//! How long a task may run.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest time that a task may run, in seconds: 1 at least, a year at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimeLimit(u64);

/// The units, largest first.
const UNITS: [(char, u64); 4] = [('d', 24 * 3600), ('h', 3600), ('m', 60), ('s', 1)];

impl TimeLimit {
    /// A year: more is no limit.
    pub const MOST_S: u64 = 366 * 24 * 3600;

    /// A limit of this number of seconds; `None` if it is 0 or more than [`Self::MOST_S`].
    #[must_use]
    pub const fn of_seconds(seconds: u64) -> Option<Self> {
        if seconds == 0 || seconds > Self::MOST_S { None } else { Some(Self(seconds)) }
    }

    /// In seconds.
    #[must_use]
    pub const fn seconds(self) -> u64 {
        self.0
    }

    /// In milliseconds, as the scheduler counts.
    #[must_use]
    pub const fn ms(self) -> i64 {
        // A year of them is far below the limit of the type.
        (self.0 * 1000).cast_signed()
    }

    /// As a time to wait.
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_secs(self.0)
    }

    /// Why a task ends at its limit. The sentence is the task's reason on every way that it may end.
    #[must_use]
    pub fn is_over(self) -> String {
        format!("its time of {self} is over")
    }
}

/// As users write it: `2h`, `1h30m`, `45s`.
impl fmt::Display for TimeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        for (unit, seconds) in UNITS {
            if rest >= seconds {
                write!(f, "{}{unit}", rest / seconds)?;
                rest %= seconds;
            }
        }
        Ok(())
    }
}

/// A text is not a time limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{given}\" is not a run time; write numbers with d, h, m or s, such as 2h or 1h30m, from 1s to 366d"
)]
pub struct TimeLimitError {
    given: String,
}

impl FromStr for TimeLimit {
    type Err = TimeLimitError;

    fn from_str(text: &str) -> Result<Self, TimeLimitError> {
        let wrong = || TimeLimitError { given: text.to_owned() };
        let (mut sum, mut rest) = (0_u64, text);
        // Each unit once at most, larger ones first, as in the text that is printed.
        for (unit, seconds) in UNITS {
            let Some((number, behind)) = rest.split_once(unit) else { continue };
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            let number: u64 = number.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
            sum = number.checked_mul(seconds).and_then(|more| sum.checked_add(more)).ok_or_else(wrong)?;
            rest = behind;
        }
        Self::of_seconds(sum).filter(|_| rest.is_empty()).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_is_printed() {
        for (text, seconds) in [
            ("2h", 7200),
            ("90s", 90),
            ("1h30m", 5400),
            ("1d2h3m4s", 93_784),
            ("120m", 7200),
            ("24h", 86_400),
            ("366d", TimeLimit::MOST_S),
        ] {
            let limit: TimeLimit = text.parse().unwrap();
            assert_eq!(limit.seconds(), seconds, "{text}");
            assert_eq!(limit.to_string().parse(), Ok(limit), "{text}");
        }
        let shown = |text: &str| text.parse::<TimeLimit>().unwrap().to_string();
        assert_eq!(
            (shown("120m"), shown("90s"), shown("86400s")),
            ("2h".into(), "1m30s".into(), "1d".into())
        );
        assert_eq!("2h".parse::<TimeLimit>().unwrap().is_over(), "its time of 2h is over");
    }

    #[test]
    fn what_is_no_time_is_refused_with_what_would_be() {
        for wrong in [
            "",
            "2",
            "0h",
            "0s",
            "-1h",
            "+1h",
            "1.5h",
            "2 h",
            "h",
            "30m1h",
            "1h1h",
            "2w",
            "367d",
            "99999999999999999999h",
            "9999999999999999d",
            "1h ",
            "ü",
        ] {
            let error = wrong.parse::<TimeLimit>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{wrong}\" is not a run time; write")), "{error}");
        }
    }
}
