//! The metrics of a node's driver, for both paths.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cantle_decide::Offer;
use cantle_kube_model::gpu_object::GpuMemoryUse;
use cantle_metrics::{Exposition, MetricKind, precise};
use cantle_model::{Lease, Slice};
use cantle_node::{AllocatableGpus, SliceUsage};

use super::kubelet::Containers;
use crate::observe::{Calls, Observed};

/// A share is files; for a MIG instance the GPU takes a second.
const BOUNDS_S: [f64; 8] = [0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0];

pub(crate) struct Metrics {
    grants: Arc<AllocatableGpus>,
    /// Name of the node.
    node: String,
    registered: AtomicBool,
    containers: Mutex<Containers>,
    /// Preparations of slices for pods that were about to start.
    pub(crate) prepared: Calls,
}

impl Metrics {
    pub(crate) fn new(grants: Arc<AllocatableGpus>, node: &str) -> Self {
        let prepared = Calls::new(&["made", "failed"], &BOUNDS_S);
        let (registered, containers) = (AtomicBool::new(false), Mutex::default());
        Self { grants, node: node.to_owned(), registered, containers, prepared }
    }

    /// The container of each slice.
    pub(crate) fn know_containers(&self, containers: Containers) {
        *self.containers.lock().unwrap_or_else(PoisonError::into_inner) = containers;
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
        // Values that cannot be read now are omitted, not shown as 0.
        if let (Ok(offers), Ok(leases)) = (self.grants.offers(), self.grants.active()) {
            write_gpus(text, &self.node, &offers, &leases);
        }
        if let Ok(used) = self.grants.usage() {
            let leases: BTreeSet<&str> = used.iter().map(|slice| slice.lease.0.as_str()).collect();
            text.family(MetricKind::Gauge, "cantle_driver_slices", "Slices that pods of this node hold.");
            text.sample(&[], precise(leases.len() as u64));
            let containers = self.containers.lock().unwrap_or_else(PoisonError::into_inner);
            write_usage(text, &self.node, &containers, &used);
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

/// With the labels that dcgm-exporter gives to the metrics of a GPU.
fn write_gpus(text: &mut Exposition, node: &str, offers: &[Offer], leases: &[Lease]) {
    let uses: Vec<(&Offer, GpuMemoryUse)> = offers
        .iter()
        .map(|offer| {
            let all = leases.iter().flat_map(|lease| &lease.slices);
            let slices: Vec<&Slice> = all.filter(|slice| slice.gpu == offer.gpu.uuid).collect();
            (offer, GpuMemoryUse::of(offer, &slices))
        })
        .collect();
    let mut family = |name, help: &str, value: fn(&Offer, &GpuMemoryUse) -> u64| {
        text.family(MetricKind::Gauge, name, help);
        for (offer, used) in &uses {
            let index = offer.gpu.index.to_string();
            let labels = [
                ("gpu", index.as_str()),
                ("UUID", &offer.gpu.uuid.0),
                ("modelName", &offer.gpu.model),
                ("Hostname", node),
                ("mode", used.mode),
            ];
            text.sample(&labels, precise(value(offer, used)));
        }
    };
    family("cantle_driver_gpu_memory_bytes", "Memory of a GPU of the node.", |offer, _| {
        offer.gpu.memory_bytes
    });
    family("cantle_driver_gpu_allocated_bytes", "What slices count of it.", |_, used| used.allocated_bytes);
    family("cantle_driver_gpu_foreign_bytes", "What processes outside of slices hold of it.", |_, used| {
        used.foreign_bytes
    });
    family("cantle_driver_gpu_free_bytes", "What new slices can have of it.", |_, used| used.free_bytes);
    family("cantle_driver_gpu_healthy", "1 if the GPU answers.", |offer, _| u64::from(!offer.closed));
}

/// With the labels that dcgm-exporter gives to the metrics of a GPU and its pod.
fn write_usage(text: &mut Exposition, node: &str, containers: &Containers, used: &[SliceUsage]) {
    let mut family = |kind, name, help: &str, value: fn(&SliceUsage) -> Option<f64>| {
        text.family(kind, name, help);
        for (slice, value) in used.iter().filter_map(|slice| Some((slice, value(slice)?))) {
            let (namespace, pod) = slice.name.split_once('/').unwrap_or(("", &slice.name));
            let container = containers.get(&slice.lease.0).or_else(|| containers.get(&slice.name));
            let index = slice.gpu.index.to_string();
            let labels = [
                ("gpu", index.as_str()),
                ("UUID", &slice.gpu.uuid.0),
                ("modelName", &slice.gpu.model),
                ("Hostname", node),
                ("GPU_I_PROFILE", slice.mig_profile.as_deref().unwrap_or_default()),
                ("namespace", namespace),
                ("pod", pod),
                ("container", container.map_or("", String::as_str)),
            ];
            text.sample(&labels, value);
        }
    };
    let gauge = MetricKind::Gauge;
    family(gauge, "cantle_driver_memory_limit_bytes", "What the pod may use of the GPU's memory.", |slice| {
        Some(precise(slice.memory_limit_bytes))
    });
    family(gauge, "cantle_driver_memory_used_bytes", "What the pod uses of the GPU's memory.", |slice| {
        Some(precise(slice.memory_used_bytes))
    });
    let help = "Allocations beyond the pod's limit, refused.";
    family(MetricKind::Counter, "cantle_driver_refused_allocations", help, |slice| {
        Some(precise(slice.refused))
    });
    let help = "Part of the GPU's compute time that the pod may count on.";
    family(gauge, "cantle_driver_compute_request_ratio", help, |slice| {
        Some(f64::from(slice.compute?.share.request_milli.0) / 1e3)
    });
    let help = "Part of the compute time that the pod had of what such pods used in the last second.";
    family(gauge, "cantle_driver_compute_share_ratio", help, |slice| {
        Some(f64::from(slice.compute?.share_ppm?) / 1e6)
    });
    let help = "GPU time that the pod was charged.";
    family(MetricKind::Counter, "cantle_driver_compute_seconds", help, |slice| {
        Some(precise(slice.compute?.granted_us) / 1e6)
    });
    let help = "Time that the pod's threads have waited for their turn.";
    family(MetricKind::Counter, "cantle_driver_compute_wait_seconds", help, |slice| {
        Some(precise(slice.compute?.gate_wait_us) / 1e6)
    });
}
