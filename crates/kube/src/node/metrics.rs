//! What the driver of a node counts, whichever way pods come to their slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_metrics::{Exposition, MetricKind, precise};
use cantle_node::AllocatableGpus;

use crate::observe::{Calls, Observed};

/// A share is files; for a MIG instance the GPU takes a second.
const BOUNDS_S: [f64; 8] = [0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

pub(crate) struct Metrics {
    grants: Arc<AllocatableGpus>,
    registered: AtomicBool,
    /// What pods were given when they were about to start.
    pub(crate) prepared: Calls,
}

impl Metrics {
    pub(crate) fn new(grants: Arc<AllocatableGpus>) -> Self {
        let prepared = Calls::new(&["made", "failed"], &BOUNDS_S);
        Self { grants, registered: AtomicBool::new(false), prepared }
    }

    /// The kubelet knows the driver.
    pub(crate) fn registered(&self) {
        self.registered.store(true, Ordering::Release);
    }
}

impl Observed for Metrics {
    fn waits_for(&self) -> Option<&'static str> {
        (!self.registered.load(Ordering::Acquire)).then_some("registration with the kubelet")
    }

    fn write(&self, text: &mut Exposition) {
        // What can't be read now is not shown as if there were nothing.
        if let Ok(standing) = self.grants.active() {
            text.family(MetricKind::Gauge, "cantle_driver_slices", "Slices that pods of this node hold.");
            text.sample(&[], precise(standing.len() as u64));
        }
        text.family(
            MetricKind::Counter,
            "cantle_driver_prepared",
            "Slices made before a start, by how that ended.",
        );
        self.prepared.write_answers(text, &[]);
        text.family(
            MetricKind::Histogram,
            "cantle_driver_prepare_seconds",
            "Time to make what a pod was given.",
        );
        self.prepared.write_durations(text, &[]);
    }
}
