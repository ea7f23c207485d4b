//! Budgets: how much GPU time a project may use in a month.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The action when the budget of a project is used up. Tasks that run are never stopped for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtFull {
    /// An event is recorded, and nothing else happens.
    #[default]
    Warn,
    /// The project gets no more than its quota; without a quota, nothing.
    NoBorrowing,
    /// Its tasks wait for the next month.
    Queue,
}

impl AtFull {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Warn, Self::NoBorrowing, Self::Queue];

    /// As it is written.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::NoBorrowing => "no-borrowing",
            Self::Queue => "queue",
        }
    }
}

impl fmt::Display for AtFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for AtFull {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.word() == text);
        found.ok_or_else(|| format!("\"{text}\" is none of warn, no-borrowing, queue"))
    }
}

/// The GPU time that a project and those below it may use in a month.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// In seconds of a whole GPU.
    pub gpu_seconds: u64,
    /// An event is recorded from this part on, in percent.
    #[serde(default = "Budget::warn_percent")]
    pub warn_percent: u32,
    /// The action when it is used up.
    #[serde(default)]
    pub at_full: AtFull,
}

impl Budget {
    /// The part for an event unless another one is set.
    #[must_use]
    pub const fn warn_percent() -> u32 {
        80
    }

    /// Can it be kept?
    ///
    /// # Errors
    /// Names what is wrong, what was given and what would be right.
    pub fn check(&self) -> Result<(), String> {
        // A century of ten thousand GPUs.
        const MOST_S: u64 = 10_000 * 100 * 366 * 86_400;
        if self.gpu_seconds == 0 || self.gpu_seconds > MOST_S {
            let hours = self.gpu_seconds / 3600;
            return Err(format!(
                "a budget of {hours} GPU-hours; it is more than 0 and at most {}",
                MOST_S / 3600
            ));
        }
        if !(1..=100).contains(&self.warn_percent) {
            return Err(format!("a warning at {} %; it is one at 1 % to 100 %", self.warn_percent));
        }
        Ok(())
    }

    /// The part of it that is used, in percent, rounded down.
    #[must_use]
    pub fn percent(&self, used_seconds: u64) -> u64 {
        used_seconds.saturating_mul(100) / self.gpu_seconds.max(1)
    }
}

/// `120 GPU-hours a month, warning at 80 %, then queue`.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gpu_seconds, warn_percent, at_full } = self;
        write!(
            f,
            "{} GPU-hours a month, warning at {warn_percent} %, then {at_full}",
            gpu_hours(*gpu_seconds)
        )
    }
}

/// GPU-seconds in hours, with as many digits as are needed, at most three: `120`, `0.25`.
#[must_use]
pub fn gpu_hours(gpu_seconds: u64) -> String {
    let milli = gpu_seconds.saturating_mul(10) / 36;
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_have_the_digits_that_they_need() {
        let texts = [0, 1, 360, 900, 3600, 432_000].map(gpu_hours);
        assert_eq!(texts, ["0", "0", "0.1", "0.25", "1", "120"]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let budget = Budget { gpu_seconds: 3600, warn_percent: 80, at_full: AtFull::Warn };
        assert_eq!((budget.check(), budget.percent(2880), budget.percent(2879)), (Ok(()), 80, 79));
        for wrong in [
            Budget { gpu_seconds: 0, ..budget },
            Budget { warn_percent: 101, ..budget },
            Budget { warn_percent: 0, ..budget },
        ] {
            assert!(wrong.check().is_err(), "{wrong:?}");
        }
        assert!("stop".parse::<AtFull>().unwrap_err().contains("warn, no-borrowing, queue"));
        for at_full in AtFull::ALL {
            assert_eq!(at_full.word().parse(), Ok(at_full));
        }
    }
}
