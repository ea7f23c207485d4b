//! The end of a suite that does not end by itself.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

/// A suite that has taken this many times its usual time is ended.
const PATIENCE: u32 = 3;

/// No suite is ended before. The usual times are of a machine that does nothing else.
const AT_LEAST: Duration = Duration::from_secs(15 * 60);

/// The environment variable with the time at which the whole run must have ended, in seconds since 1970.
const DEADLINE: &str = "CANTLE_TEST_DEADLINE";

/// The end of the whole run, if there is one.
pub(super) struct Limit {
    end: Option<Instant>,
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
    pub(super) fn end_of(&self, minutes: u64) -> Instant {
        let own = Instant::now() + (Duration::from_secs(60 * minutes) * PATIENCE).max(AT_LEAST);
        self.end.map_or(own, |end| end.min(own))
    }

    /// For the line that reports the end of a suite.
    pub(super) fn left(&self) -> String {
        let left = self.end.map(|end| end.saturating_duration_since(Instant::now()).as_secs());
        left.map(|left| format!("; {} min {:02} s left", left / 60, left % 60)).unwrap_or_default()
    }
}
