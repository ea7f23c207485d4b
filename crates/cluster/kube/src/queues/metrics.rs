//! The metrics of the queues controller.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cantle_metrics::{Exposition, Fallback, Fallbacks, MetricKind, precise};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::Store;

use crate::observe::{Calls, Observed};
use cantle_kube_model::phase::has_ended;
use cantle_kube_model::queues::admit::queue_of;
use cantle_kube_model::queues::outcome::{TaskOutcome, is_gated, runs};

/// A round asks the server three times; with many tasks to start it makes and changes their pods, too.
const BOUNDS_S: [f64; 8] = [0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

/// Values that the controller assumed because it could not read its input.
pub(super) static FALLBACKS: Fallbacks = Fallbacks::new(&[Fallback::MissingUid, Fallback::UnreadableRequest]);

/// The uid of a pod, which the API server gives to every pod. One without is counted, logged once and has none.
pub(super) fn known_uid(uid: Option<String>) -> String {
    uid.unwrap_or_else(|| {
        if FALLBACKS.count(Fallback::MissingUid, "") {
            tracing::warn!("a pod without a uid; what is known of it is forgotten with the next one");
        }
        String::new()
    })
}

/// The outcome of a task.
#[derive(Debug, Clone, Copy)]
pub(super) enum CountedOutcome {
    Taken,
    Completed,
    Failed,
    Stopped,
    Requeued,
}

impl CountedOutcome {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Taken, "taken"),
        (Self::Completed, "completed"),
        (Self::Failed, "failed"),
        (Self::Stopped, "stopped"),
        (Self::Requeued, "requeued"),
    ];
}

impl From<&TaskOutcome> for CountedOutcome {
    fn from(end: &TaskOutcome) -> Self {
        match end {
            TaskOutcome::Completed => Self::Completed,
            TaskOutcome::Failed(_) => Self::Failed,
            TaskOutcome::Stopped(_) => Self::Stopped,
        }
    }
}

pub(super) struct Metrics {
    known: Store<Pod>,
    /// The server has answered which queues there are.
    ready: AtomicBool,
    leads: AtomicBool,
    counts: [AtomicU64; CountedOutcome::ALL.len()],
    rounds: Calls,
}

impl Metrics {
    pub(super) fn new(known: Store<Pod>) -> Self {
        let rounds = Calls::new(&["done", "failed"], &BOUNDS_S);
        let (ready, leads, counts) = Default::default();
        Self { known, ready, leads, counts, rounds }
    }

    pub(super) fn ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    pub(super) fn leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    pub(super) fn count(&self, fate: CountedOutcome) {
        self.counts[fate as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A round of the leader is over.
    pub(super) fn round(&self, failed: bool, took: Duration) {
        self.rounds.ended(usize::from(failed), took);
    }

    /// Pods by queue and state.
    fn pods(&self) -> BTreeMap<(String, &'static str), u64> {
        let mut counts = BTreeMap::new();
        for pod in self.known.state() {
            let state = match &*pod {
                pod if has_ended(pod) => "over",
                pod if is_gated(pod) => "gated",
                pod if runs(pod) => "running",
                _ => "pending",
            };
            *counts.entry((queue_of(&pod).cloned().unwrap_or_default(), state)).or_default() += 1;
        }
        counts
    }
}

impl Observed for Metrics {
    fn waits_for(&self) -> Option<&'static str> {
        (!self.ready.load(Ordering::Acquire)).then_some("answer from the ClearML server")
    }

    fn write(&self, text: &mut Exposition) {
        Fallbacks::write(text, "cantle_queues_fallbacks", &[&FALLBACKS]);
        let leads = self.leads.load(Ordering::Relaxed);
        text.family(MetricKind::Gauge, "cantle_queues_leader", "1 for the replica that works.");
        text.sample(&[], precise(u64::from(leads)));
        text.family(
            MetricKind::Gauge,
            "cantle_queues_pods",
            "Pods of tasks, by queue and state; of the leader.",
        );
        // The others know them, too, and would count them again.
        for ((queue, state), count) in self.pods().into_iter().filter(|_| leads) {
            text.sample(&[("queue", queue.as_str()), ("state", state)], precise(count));
        }
        text.family(
            MetricKind::Counter,
            "cantle_queues_tasks",
            "What became of tasks since the replica started.",
        );
        for (fate, word) in CountedOutcome::ALL {
            text.sample(&[("fate", word)], precise(self.counts[fate as usize].load(Ordering::Relaxed)));
        }
        text.family(MetricKind::Counter, "cantle_queues_rounds", "Rounds of the leader, by how they ended.");
        self.rounds.write_answers(text, &[]);
        text.family(MetricKind::Histogram, "cantle_queues_round_seconds", "Time that a round takes.");
        self.rounds.write_durations(text, &[]);
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::reflector::store;
    use kube::runtime::watcher::Event;
    use serde_json::{from_value, json};

    use super::*;
    use crate::observe::documented;
    use cantle_kube_model::queues::builder::{GATE, QUEUE_ANNOTATION};

    fn text(metrics: &Metrics) -> String {
        let mut text = Exposition::new("text/plain");
        metrics.write(&mut text);
        text.finish().1
    }

    #[test]
    fn each_metric_is_documented() {
        assert_eq!(documented(&Metrics::new(store().0)).len(), 6);
    }

    #[test]
    fn the_leader_counts_pods_by_queue_and_state() {
        let (known, mut known_in) = store();
        let pod = |name: &str, spec, phase| {
            let metadata = json!({"name": name, "namespace": "n", "annotations": {QUEUE_ANNOTATION: "q"}});
            from_value(json!({"metadata": metadata, "spec": spec, "status": {"phase": phase}})).unwrap()
        };
        let gate = json!({"containers": [], "schedulingGates": [{"name": GATE}]});
        let plain = json!({"containers": []});
        for pod in [
            pod("a", gate, "Pending"),
            pod("b", plain.clone(), "Pending"),
            pod("c", plain.clone(), "Running"),
            pod("d", plain.clone(), "Running"),
            pod("e", plain, "Succeeded"),
        ] {
            known_in.apply_watcher_event(&Event::Apply(pod));
        }
        let metrics = Metrics::new(known);
        assert!(!text(&metrics).contains("cantle_queues_pods{"), "another replica does");
        metrics.leads(true);
        metrics.count(CountedOutcome::Requeued);
        let text = text(&metrics);
        for line in [
            "cantle_queues_leader 1",
            "cantle_queues_pods{queue=\"q\",state=\"gated\"} 1",
            "cantle_queues_pods{queue=\"q\",state=\"over\"} 1",
            "cantle_queues_pods{queue=\"q\",state=\"pending\"} 1",
            "cantle_queues_pods{queue=\"q\",state=\"running\"} 2",
            "cantle_queues_tasks_total{fate=\"requeued\"} 1",
            "cantle_queues_tasks_total{fate=\"taken\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
