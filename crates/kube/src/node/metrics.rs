//! What the driver of a node counts, whichever way pods come to their slices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_metrics::{Exposition, MetricKind, precise};
use cantle_node::{AllocatableGpus, SliceUsage};

use crate::observe::{Calls, Observed};

/// A share is files; for a MIG instance the GPU takes a second.
const BOUNDS_S: [f64; 8] = [0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

pub(crate) struct Metrics {
    grants: Arc<AllocatableGpus>,
    /// Name of the node.
    node: String,
    registered: AtomicBool,
    /// What pods were given when they were about to start.
    pub(crate) prepared: Calls,
}

impl Metrics {
    pub(crate) fn new(grants: Arc<AllocatableGpus>, node: &str) -> Self {
        let prepared = Calls::new(&["made", "failed"], &BOUNDS_S);
        Self { grants, node: node.to_owned(), registered: AtomicBool::new(false), prepared }
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
        if let Ok(used) = self.grants.usage() {
            let leases: BTreeSet<&str> = used.iter().map(|slice| slice.lease.0.as_str()).collect();
            text.family(MetricKind::Gauge, "cantle_driver_slices", "Slices that pods of this node hold.");
            text.sample(&[], precise(leases.len() as u64));
            write_usage(text, &self.node, &used);
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

/// With the labels that dcgm-exporter gives to what it says of a GPU and the pod that has it.
fn write_usage(text: &mut Exposition, node: &str, used: &[SliceUsage]) {
    let mut family = |kind, name, help: &str, value: fn(&SliceUsage) -> u64| {
        text.family(kind, name, help);
        for slice in used {
            let (namespace, pod) = slice.name.split_once('/').unwrap_or(("", &slice.name));
            let index = slice.gpu.index.to_string();
            let labels = [
                ("gpu", index.as_str()),
                ("UUID", &slice.gpu.uuid.0),
                ("modelName", &slice.gpu.model),
                ("Hostname", node),
                ("GPU_I_PROFILE", slice.mig_profile.as_deref().unwrap_or_default()),
                ("namespace", namespace),
                ("pod", pod),
            ];
            text.sample(&labels, precise(value(slice)));
        }
    };
    let help = "What the pod may use of the GPU's memory.";
    family(MetricKind::Gauge, "cantle_driver_memory_limit_bytes", help, |slice| slice.memory_limit_bytes);
    let help = "What the pod uses of the GPU's memory.";
    family(MetricKind::Gauge, "cantle_driver_memory_used_bytes", help, |slice| slice.memory_used_bytes);
    let help = "Allocations beyond the pod's limit, refused.";
    family(MetricKind::Counter, "cantle_driver_refused_allocations", help, |slice| slice.refused);
}
