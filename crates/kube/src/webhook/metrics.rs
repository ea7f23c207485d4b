//! What the injector counts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cantle_metrics::{Exposition, Histogram, Kind, precise};

use crate::inject::Verdict;

const BOUNDS_S: [f64; 8] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.025, 0.1];

pub(super) struct Metrics {
    ready: AtomicBool,
    answers: [AtomicU64; Verdict::ALL.len()],
    durations: Mutex<Histogram>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            ready: AtomicBool::new(false),
            answers: Default::default(),
            durations: Mutex::new(Histogram::new(&BOUNDS_S)),
        }
    }
}

impl Metrics {
    pub(super) fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub(super) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    pub(super) fn answered(&self, verdict: Verdict, took: Duration) {
        self.answers[verdict as usize].fetch_add(1, Ordering::Relaxed);
        self.durations.lock().unwrap_or_else(PoisonError::into_inner).observe(took.as_secs_f64());
    }

    pub(super) fn text(&self, accept: &str) -> (&'static str, String) {
        let mut text = Exposition::new(accept);
        text.family(
            Kind::Counter,
            "cantle_webhook_answers",
            "Pods that the injector was asked about, by answer.",
        );
        for verdict in Verdict::ALL {
            let count = self.answers[verdict as usize].load(Ordering::Relaxed);
            text.sample(&[("answer", verdict.name())], precise(count));
        }
        text.family(Kind::Histogram, "cantle_webhook_seconds", "Time to an answer, without network and TLS.");
        text.histogram(&[], &self.durations.lock().unwrap_or_else(PoisonError::into_inner));
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_is_documented_and_in_the_dashboard() {
        let metrics = Metrics::default();
        metrics.answered(Verdict::ALL[0], Duration::from_millis(1));
        let (_, text) = metrics.text("text/plain");
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(names.len(), 2, "{text}");
        for name in names {
            let documented = include_str!("../../../../docs/metrics.md").contains(&format!("`{name}`"));
            assert!(
                documented && include_str!("../../../../docs/grafana/cantle.json").contains(name),
                "{name}"
            );
        }
    }
}
