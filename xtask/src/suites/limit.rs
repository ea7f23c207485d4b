//! The end of a suite that exceeds its time limit.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::table::{Stage, Suite};

/// A suite that has taken this many times its usual time is ended.
const PATIENCE: u32 = 3;

/// No suite is ended before. The usual times are of a machine that does nothing else.
const AT_LEAST: Duration = Duration::from_secs(15 * 60);

/// The environment variable with the time at which the whole run must have ended, in seconds since 1970.
pub(super) const DEADLINE: &str = "CANTLE_TEST_DEADLINE";

/// The end of the whole run, if there is one.
pub(super) struct Limit {
    end: Option<Instant>,
}

/// When a suite is ended, and why then.
#[derive(Clone, Copy)]
pub(super) struct SuiteEnd {
    pub(super) at: Instant,
    /// The time of the whole run is used up then: that is no fault of the suite.
    pub(super) is_of_run: bool,
}

#[expect(clippy::disallowed_methods, reason = "limits of the test run itself")]
impl Limit {
    pub(super) fn of_environment() -> Result<Self> {
        let Ok(deadline) = std::env::var(DEADLINE) else { return Ok(Self { end: None }) };
        let seconds = deadline
            .parse()
            .with_context(|| format!("{DEADLINE} is \"{deadline}\", not a number of seconds"))?;
        let left = (UNIX_EPOCH + Duration::from_secs(seconds)).duration_since(SystemTime::now());
        Ok(Self { end: Instant::now().checked_add(left.unwrap_or_default()) })
    }

    /// The end of a suite that starts now and usually takes these minutes.
    pub(super) fn end_of(&self, minutes: u64) -> SuiteEnd {
        let own = Instant::now() + (Duration::from_secs(60 * minutes) * PATIENCE).max(AT_LEAST);
        match self.end.filter(|end| *end < own) {
            Some(at) => SuiteEnd { at, is_of_run: true },
            None => SuiteEnd { at: own, is_of_run: false },
        }
    }

    /// Whether a suite's usual time is left. The gate has no choice.
    pub(super) fn allows(&self, suite: &Suite) -> bool {
        let usual = Duration::from_secs(60 * suite.minutes);
        suite.stage == Stage::Gate || self.end.is_none_or(|end| Instant::now() + usual <= end)
    }

    /// When the whole run must have ended.
    pub(super) const fn end(&self) -> Option<Instant> {
        self.end
    }

    /// For the line that reports the end of a suite.
    pub(super) fn left(&self) -> String {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
        left.map(|left| format!("; {} min {:02} s left", left / 60, left % 60)).unwrap_or_default()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "limits of the test run itself")]
mod tests {
    use super::super::table::SUITES;
    use super::*;

    #[test]
    fn a_suite_that_cannot_end_in_time_is_left_out_and_the_gate_is_not() {
        let of = |stage| SUITES.iter().filter(move |suite| suite.stage == stage);
        let after = |minutes: u64| Limit { end: Some(Instant::now() + Duration::from_secs(60 * minutes)) };
        assert!(of(Stage::Full).all(|suite| after(suite.minutes + 1).allows(suite)));
        assert!(!of(Stage::Full).any(|suite| after(0).allows(suite)));
        assert!(of(Stage::Gate).all(|suite| after(0).allows(suite)));
        assert!(SUITES.iter().all(|suite| Limit { end: None }.allows(suite)));
    }

    #[test]
    fn the_end_of_the_run_is_no_fault_of_a_suite() {
        let of_run = |minutes: u64| {
            let limit = Limit { end: Some(Instant::now() + Duration::from_secs(60 * minutes)) };
            limit.end_of(10).is_of_run
        };
        assert!(of_run(29) && !of_run(31));
        assert!(!Limit { end: None }.end_of(10).is_of_run);
    }
}
