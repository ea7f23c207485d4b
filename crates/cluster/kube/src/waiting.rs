//! The metrics of waiting pods: why they wait, what they request, and what was done for them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cantle_kube_model::demand::{DemandAmount, PodDemand};
use cantle_metrics::{Exposition, MetricKind, precise};

/// Something that was done for a waiting pod.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    /// A node was nominated for it.
    Nominated,
    /// kube-scheduler took its nomination away: the pod did not fit there.
    Withdrawn,
    /// A pod of lower priority was evicted.
    Evicted,
    /// Its claim was for other GPUs than there are, and was created again.
    Outdated,
    /// kube-scheduler did not try it, and its claim was created again.
    Missed,
}

impl Counted {
    const COUNT: usize = 5;
}

/// The counts of one replica.
#[derive(Default)]
pub(crate) struct WaitingPods {
    leads: AtomicBool,
    counts: [AtomicU64; Counted::COUNT],
    demand: Mutex<PodDemand>,
}

impl WaitingPods {
    /// This replica serves waiting pods, or another one does.
    pub(crate) fn leads(&self, leads: bool) {
        self.leads.store(leads, Ordering::Relaxed);
    }

    pub(crate) fn count(&self, what: Counted) {
        self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The pods that wait now.
    pub(crate) fn see(&self, demand: PodDemand) {
        *self.demand.lock().unwrap_or_else(PoisonError::into_inner) = demand;
    }

    fn sample(&self, text: &mut Exposition, labels: &[(&str, &str)], what: Counted) {
        text.sample(labels, precise(self.counts[what as usize].load(Ordering::Relaxed)));
    }

    pub(crate) fn write(&self, text: &mut Exposition) {
        let leads = self.leads.load(Ordering::Relaxed);
        text.family(
            MetricKind::Gauge,
            "cantle_webhook_leader",
            "1 for the replica that serves waiting pods.",
        );
        text.sample(&[], precise(u64::from(leads)));
        let demand = self.demand.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Another replica counts them now.
        let demand = if leads { demand } else { PodDemand::new() };
        let mut family = |name, help, value: fn(&DemandAmount) -> Option<f64>| {
            text.family(MetricKind::Gauge, name, help);
            for (kind, value) in demand.iter().filter_map(|(kind, amount)| Some((kind, value(amount)?))) {
                let (cause, slice, product) = (kind.cause.name(), kind.slice.as_str(), kind.product.as_str());
                text.sample(&[("cause", cause), ("slice", slice), ("product", product)], value);
            }
        };
        let pods = |amount: &DemandAmount| Some(precise(amount.pods));
        family(
            "cantle_webhook_waiting_pods",
            "Pods with slices that have no node, by cause; of the leader.",
            pods,
        );
        family("cantle_webhook_waiting_gpus", "GPUs that these pods request together.", |amount| amount.gpus);
        let help = "Nodes that were nominated for pods, and nominations that did not help.";
        text.family(MetricKind::Counter, "cantle_webhook_nominations", help);
        self.sample(text, &[("answer", "made")], Counted::Nominated);
        self.sample(text, &[("answer", "withdrawn")], Counted::Withdrawn);
        text.family(
            MetricKind::Counter,
            "cantle_webhook_evictions",
            "Pods that were evicted for others of higher priority.",
        );
        self.sample(text, &[], Counted::Evicted);
        text.family(
            MetricKind::Counter,
            "cantle_webhook_claims_replaced",
            "Claims that were created again, by cause.",
        );
        self.sample(text, &[("cause", "outdated")], Counted::Outdated);
        self.sample(text, &[("cause", "missed")], Counted::Missed);
    }
}
