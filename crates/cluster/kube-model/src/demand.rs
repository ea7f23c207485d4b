//! Sums up the pods with slices that have no node, for metrics: the reason why each waits, its request, and the kind of GPU that it names. Pure.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::GpuRequest;
use k8s_openapi::api::core::v1::Pod;

use crate::SliceName;
use crate::names::PRODUCT;
use crate::nominate::slice_of;
use crate::queues::outcome::is_unschedulable;

/// The cause of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitCause {
    /// A quota of its namespace.
    Quota,
    /// kube-scheduler finds no node for it.
    Room,
    /// kube-scheduler has not tried it yet, or something else holds it.
    Turn,
}

impl WaitCause {
    /// As a label's value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Room => "room",
            Self::Turn => "turn",
        }
    }
}

/// Pods of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DemandKind {
    /// The cause of their wait.
    pub cause: WaitCause,
    /// Their slices.
    pub slice: String,
    /// `nvidia.com/gpu.product` of their node selector; empty for any.
    pub product: String,
}

/// The amount of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DemandAmount {
    /// Number of pods.
    pub pods: u64,
    /// GPUs that they request together. None for amounts of memory and for MIG profiles: they are different parts of different GPUs.
    pub gpus: Option<f64>,
}

/// The waiting pods by their kind.
pub type PodDemand = BTreeMap<DemandKind, DemandAmount>;

/// The demand of these pods. `held`: the UIDs of those that a quota holds.
pub fn demand<'a>(waiting: impl IntoIterator<Item = &'a Pod>, held: &BTreeSet<&str>) -> PodDemand {
    let mut all = PodDemand::new();
    for pod in waiting {
        let Some(slice) = slice_of(pod) else { continue };
        let cause = match pod {
            pod if pod.metadata.uid.as_deref().is_some_and(|uid| held.contains(uid)) => WaitCause::Quota,
            pod if is_unschedulable(pod) => WaitCause::Room,
            _ => WaitCause::Turn,
        };
        let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
        let product = selector.and_then(|selector| selector.get(PRODUCT)).cloned().unwrap_or_default();
        let gpus = gpus_of(&slice);
        let sum = all.entry(DemandKind { cause, slice: slice.to_string(), product }).or_default();
        sum.pods += 1;
        sum.gpus = gpus.map(|gpus| gpus + sum.gpus.unwrap_or_default());
    }
    all
}

fn gpus_of(slice: &SliceName) -> Option<f64> {
    match slice.request([]) {
        GpuRequest::Fraction(part) => {
            Some(f64::from(part.ten_thousandths()) * f64::from(slice.devices()) / 10_000.0)
        }
        GpuRequest::Gpus(gpus) => Some(f64::from(gpus)),
        GpuRequest::Memory(_) | GpuRequest::MigProfile(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inject::SLICE_LABEL;

    fn pod(uid: &str, slice: &str, product: Option<&str>, is_unplaced: bool) -> Pod {
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"});
        serde_json::from_value(json!({
            "metadata": {"uid": uid, "labels": {SLICE_LABEL: slice}},
            "spec": {"containers": [], "nodeSelector": product.map(|product| json!({PRODUCT: product}))},
            "status": {"conditions": if is_unplaced { vec![condition] } else { vec![] }},
        }))
        .unwrap()
    }

    #[test]
    fn waiting_pods_are_summed_by_cause_request_and_kind_of_gpu() {
        let pods = [
            pod("a", "cantle-fraction-1250", None, true),
            pod("b", "cantle-fraction-1250", None, true),
            pod("c", "cantle-fraction-5000-x2", Some("L4"), true),
            pod("d", "cantle-whole-2", None, false),
            pod("e", "cantle-memory-4096", None, true),
            pod("f", "cantle-whole-1", None, false),
            pod("g", "cantle-fraction-2500-fair-r0750", None, true),
            pod("h", "of mine", None, true),
        ];
        let demand = demand(&pods, &BTreeSet::from(["f"]));
        let line = |(kind, amount): (&DemandKind, &DemandAmount)| {
            let DemandKind { cause, slice, product } = kind;
            format!("{} {slice} {product} {} {:?}", cause.name(), amount.pods, amount.gpus)
        };
        let lines: Vec<String> = demand.iter().map(line).collect();
        let wanted = [
            "quota cantle-whole-1  1 Some(1.0)",
            "room cantle-fraction-1250  2 Some(0.25)",
            "room cantle-fraction-2500-fair-r0750  1 Some(0.75)",
            "room cantle-fraction-5000-x2 L4 1 Some(1.0)",
            "room cantle-memory-4096  1 None",
            "turn cantle-whole-2  1 Some(2.0)",
        ];
        assert_eq!(lines, wanted);
    }
}
