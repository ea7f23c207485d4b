//! Counts the evictions that PodDisruptionBudgets allow.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::ObjectExt as _;

/// A PodDisruptionBudget, as far as it counts here.
#[derive(Clone, Debug)]
pub struct DisruptionBudget {
    namespace: String,
    selector: Option<LabelSelector>,
    /// The number of its pods that may be evicted now.
    pub(super) allowed: i32,
}

impl DisruptionBudget {
    /// As the API server has it. A budget without a status allows nothing.
    #[must_use]
    pub fn of(budget: &PodDisruptionBudget) -> Self {
        Self {
            namespace: budget.namespace().unwrap_or_default(),
            selector: budget.spec.as_ref().and_then(|spec| spec.selector.clone()),
            allowed: budget.status.as_ref().map_or(0, |status| status.disruptions_allowed.unwrap_or(0)),
        }
    }

    /// Is the pod one of those that it protects?
    pub(super) fn covers(&self, pod: &Pod) -> bool {
        let selector = self.selector.as_ref();
        pod.namespace().as_ref() == Some(&self.namespace)
            && selector.is_some_and(|selector| selects(selector, pod.labels()))
    }
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut equal = selector.match_labels.iter().flatten();
    let mut others = selector.match_expressions.iter().flatten();
    equal.all(|(key, value)| labels.get(key) == Some(value))
        && others.all(|each| {
            let value = labels.get(&each.key);
            let is_one = value.is_some_and(|value| each.values.iter().flatten().any(|one| one == value));
            match each.operator.as_str() {
                "In" => is_one,
                "NotIn" => !is_one,
                "Exists" => value.is_some(),
                "DoesNotExist" => value.is_none(),
                // An unknown budget may protect it.
                _ => true,
            }
        })
}
