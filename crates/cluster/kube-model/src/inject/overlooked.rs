//! Finds requests of pods that were not fulfilled, because nothing processed them. The chart's policies warn the user who
//! creates such a pod; this module finds the pods that exist already.

use k8s_openapi::api::core::v1::Pod;

use super::read::{ANNOTATIONS, LABEL};
use super::{SLICE_LABEL, compute, missing_slice};
use crate::ObjectExt as _;
use crate::phase::has_ended;

/// Kubernetes' own scheduler.
const SCHEDULER: &str = "default-scheduler";

/// The reason why a pod's setting has no effect, with the same text for all such pods of a namespace.
pub fn overlooked(pod: &Pod) -> Option<String> {
    if has_ended(pod) {
        return None;
    }
    if pod.annotations().contains_key(LABEL) && !pod.labels().contains_key(LABEL) {
        return Some(format!("annotation {LABEL} has no effect: it has to be a label"));
    }
    let mut annotations = ANNOTATIONS.iter().chain(&compute::ANNOTATIONS);
    if let Some(name) = annotations.find(|name| pod.labels().contains_key(**name)) {
        return Some(format!("label {name} has no effect: it has to be an annotation"));
    }
    if let Some(why) = missing_slice(pod) {
        return Some(why);
    }
    let spec = pod.spec.as_ref()?;
    let scheduler = spec.scheduler_name.as_deref().unwrap_or(SCHEDULER);
    let waits = spec.node_name.is_none() && spec.resource_claims.is_some();
    let is_foreign = pod.labels().contains_key(SLICE_LABEL) && waits && scheduler != SCHEDULER;
    is_foreign
        .then(|| format!("scheduler {scheduler} may not know claims on devices, and the pod has no node yet"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::CALL;
    use super::super::{Rules, inject};
    use super::*;

    fn said(pod: &Value) -> String {
        overlooked(&serde_json::from_value(pod.clone()).unwrap()).unwrap_or_default()
    }

    fn pod(metadata: Value) -> Value {
        json!({"metadata": metadata, "spec": {"containers": [{"name": "main"}]}})
    }

    #[test]
    fn what_has_no_effect_is_found() {
        let annotation = pod(json!({"annotations": {LABEL: "0.500"}}));
        assert!(said(&annotation).starts_with("annotation clearml-injector/fraction has no effect"));
        let label = pod(json!({"labels": {"gpu-memory": "4096"}}));
        assert!(said(&label).starts_with("label gpu-memory has no effect"));
        let mut asking = pod(json!({"namespace": "kube-system", "labels": {LABEL: "0.500"}}));
        assert!(said(&asking).contains("does not see namespace kube-system"));
        let mut injected = inject(&asking, &Rules::default(), CALL).unwrap();
        assert_eq!(said(&injected), "");
        injected["spec"]["schedulerName"] = json!("volcano");
        assert!(said(&injected).starts_with("scheduler volcano may not know"));
        injected["spec"]["nodeName"] = json!("n1");
        assert_eq!(said(&injected), "", "it does know them");
        asking["status"] = json!({"phase": "Succeeded"});
        assert_eq!(said(&asking), "", "it is over");
        assert_eq!(said(&pod(json!({}))), "");
    }
}
