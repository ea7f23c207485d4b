//! What the driver of a node counts, whichever way pods come to their slices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_agent::Grants;
use cantle_metrics::{Exposition, Kind, precise};

use crate::observe::{Calls, Observed};

/// A share is files; for a MIG instance the GPU takes a second.
const BOUNDS_S: [f64; 8] = [0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

pub(crate) struct Metrics {
    grants: Arc<Grants>,
    registered: AtomicBool,
    /// What pods were given when they were about to start.
    pub(crate) prepared: Calls,
}

impl Metrics {
    pub(crate) fn new(grants: Arc<Grants>) -> Self {
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
        (!self.registered.load(Ordering::Acquire)).then_some("word from the kubelet")
    }

    fn write(&self, text: &mut Exposition) {
        // What can't be read now is not shown as if there were nothing.
        if let Ok(standing) = self.grants.standing() {
            text.family(Kind::Gauge, "cantle_driver_slices", "Slices that pods of this node hold.");
            text.sample(&[], precise(standing.len() as u64));
        }
        text.family(
            Kind::Counter,
            "cantle_driver_prepared",
            "Slices made before a start, by how that ended.",
        );
        self.prepared.write_answers(text, &[]);
        text.family(Kind::Histogram, "cantle_driver_prepare_seconds", "Time to make what a pod was given.");
        self.prepared.write_durations(text, &[]);
    }
}
