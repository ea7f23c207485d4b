//! Decides when the server is called again after it did not answer.

use std::time::Duration;

use cantle_clearml::WireError;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_millis(500);
const LAST: Duration = Duration::from_secs(15);

/// Waits longer after each failure.
#[derive(Default)]
pub(crate) struct Backoff {
    /// No call before then, and how long that wait is.
    silent_until: Option<(Instant, Duration)>,
}

impl Backoff {
    /// May the server be called, or is it too early after a failure?
    pub(crate) fn is_due(&self) -> bool {
        self.silent_until.is_none_or(|(until, _)| Instant::now() >= until)
    }

    /// The server did not answer.
    pub(crate) fn failed(&mut self, error: &WireError) {
        let wait = self.silent_until.map_or(FIRST, |(_, last)| (last * 2).min(LAST));
        if self.silent_until.is_none() {
            tracing::warn!(%error, "running tasks go on; trying again");
        }
        self.silent_until = Some((Instant::now() + wait, wait));
    }

    /// The server answered.
    pub(crate) fn answered(&mut self) {
        if self.silent_until.take().is_some() {
            tracing::info!("the server answers again");
        }
    }
}
