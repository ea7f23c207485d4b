//! The metrics of the injector.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_metrics::{Exposition, MetricKind};

use crate::observe::{Calls, Observed};
use crate::waiting::WaitingPods;
use cantle_kube_model::inject::ReviewOutcome;

const BOUNDS_S: [f64; 8] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1];
/// In the order of [`ReviewOutcome::ALL`].
const OUTCOMES: [&str; 3] =
    [ReviewOutcome::Injected.name(), ReviewOutcome::Unchanged.name(), ReviewOutcome::Denied.name()];

pub(super) struct Metrics {
    ready: AtomicBool,
    clock_is_off: AtomicBool,
    calls: Calls,
    /// The pods that wait.
    pub(super) waiting: Arc<WaitingPods>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            ready: AtomicBool::new(false),
            clock_is_off: AtomicBool::new(false),
            calls: Calls::new(&OUTCOMES, &BOUNDS_S),
            waiting: Arc::default(),
        }
    }
}

impl Metrics {
    pub(super) fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// This replica's clock differs from the API server's, or not any more. Returns what was known before.
    pub(super) fn clock_is_off(&self, is_off: bool) -> bool {
        self.clock_is_off.swap(is_off, Ordering::AcqRel)
    }

    pub(super) fn answered(&self, outcome: ReviewOutcome, took: Duration) {
        self.calls.ended(outcome as usize, took);
    }
}

impl Observed for Metrics {
    fn waits_for(&self) -> Option<&'static str> {
        match (self.ready.load(Ordering::Acquire), self.clock_is_off.load(Ordering::Acquire)) {
            (false, _) => Some("certificate"),
            (true, true) => Some("clock that agrees with the API server's"),
            (true, false) => None,
        }
    }

    fn write(&self, text: &mut Exposition) {
        let help = "Pods that the injector was asked about, by answer.";
        text.family(MetricKind::Counter, "cantle_webhook_answers", help);
        self.calls.write_answers(text, &[]);
        text.family(
            MetricKind::Histogram,
            "cantle_webhook_seconds",
            "Time to an answer, without network and TLS.",
        );
        self.calls.write_durations(text, &[]);
        self.waiting.write(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::documented;

    #[test]
    fn each_metric_is_documented() {
        assert_eq!(documented(&Metrics::default()).len(), 8);
    }
}
