//! The metrics of the extender.

use std::sync::atomic::{AtomicBool, Ordering};

use cantle_metrics::{Exposition, MetricKind};

use crate::observe::{Calls, Observed};

/// A scan of all nodes of a large cluster takes milliseconds; a bind takes three calls of the API server.
const BOUNDS_S: [f64; 8] = [0.0005, 0.001, 0.0025, 0.01, 0.025, 0.1, 0.5, 2.5];

pub(super) struct Metrics {
    ready: AtomicBool,
    pub(super) filter: Calls,
    pub(super) prioritize: Calls,
    pub(super) bind: Calls,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            ready: AtomicBool::new(false),
            filter: Calls::new(&["room", "none"], &BOUNDS_S),
            prioritize: Calls::new(&["ranked"], &BOUNDS_S),
            bind: Calls::new(&["placed", "refused"], &BOUNDS_S),
        }
    }
}

impl Metrics {
    /// All nodes and quotas are known.
    pub(super) fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Number of times that a pod did not fit.
    pub(super) fn refused(&self) -> u64 {
        self.filter.count(1)
    }
}

impl Observed for Metrics {
    fn waits_for(&self) -> Option<&'static str> {
        (!self.ready.load(Ordering::Acquire)).then_some("lists of nodes and quotas")
    }

    fn write(&self, text: &mut Exposition) {
        let calls = [("filter", &self.filter), ("prioritize", &self.prioritize), ("bind", &self.bind)];
        let help = "Calls of kube-scheduler, by what was asked and the answer.";
        text.family(MetricKind::Counter, "cantle_extender_answers", help);
        calls.iter().for_each(|(call, calls)| calls.write_answers(text, &[("call", *call)]));
        text.family(MetricKind::Histogram, "cantle_extender_seconds", "Time to an answer.");
        calls.iter().for_each(|(call, calls)| calls.write_durations(text, &[("call", *call)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::documented;

    #[test]
    fn each_metric_is_documented() {
        assert_eq!(documented(&Metrics::default()).len(), 2);
    }
}
