//! Checks that a pod has the slice that it requests, by reading the pod that the API server has created. An injector
//! that was not called leaves no other trace, and the pod would have all GPUs of its node.

use k8s_openapi::api::core::v1::Pod;

use super::containers::ContainerList;
use super::target::CLAIM;
use super::{Rules, SLICE_LABEL, read};
use crate::ObjectExt as _;
use crate::claim::claim_of;
use crate::names::SLICE_RESOURCE;
use crate::slice_name::SliceName;

/// Why a pod does not have the slice that it asks for; none if it has it, or asks for none.
pub fn missing_slice(pod: &Pod) -> Option<String> {
    let asked = match read::asked(pod, &Rules::default()) {
        Ok(asked) => asked?,
        Err(denial) => return Some(denial.to_string()),
    };
    let is_labeled = pod.labels().get(SLICE_LABEL) == Some(&asked.slice_name.to_string());
    if is_labeled && (has_claim(pod, &asked.slice_name) || has_slot(pod)) {
        return None;
    }
    let namespace = pod.namespace().unwrap_or_default();
    Some(format!(
        "the pod asks for a slice ({}) and was made without one: cantle's injector does not see namespace {namespace}",
        asked.by
    ))
}

fn has_claim(pod: &Pod, slice: &SliceName) -> bool {
    let is_named = claim_of(pod).is_some_and(|reference| reference.slice == *slice);
    let is_used = ContainerList::containers(pod).any(|(_, _, container)| {
        let claims = container.resources.as_ref().and_then(|resources| resources.claims.as_ref());
        claims.is_some_and(|claims| claims.iter().any(|claim| claim.name == CLAIM))
    });
    is_named && is_used
}

/// On the classic path.
fn has_slot(pod: &Pod) -> bool {
    ContainerList::containers(pod).any(|(_, _, container)| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.is_some_and(|limits| limits.get(SLICE_RESOURCE).is_some_and(|amount| amount.0 == "1"))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::CALL;
    use super::super::{InjectionMode, LABEL, inject};
    use super::*;

    fn missing(pod: &Value) -> Option<String> {
        missing_slice(&serde_json::from_value(pod.clone()).unwrap())
    }

    fn asking(metadata: Value) -> Value {
        let mut pod = json!({"metadata": metadata, "spec": {"containers": [{"name": "task"}]}});
        pod["metadata"]["namespace"] = json!("jobs");
        pod
    }

    #[test]
    fn only_what_the_injector_wrote_counts() {
        let classic = InjectionMode::Classic { scheduler: "s".to_owned(), mig_resources: true };
        for metadata in [
            json!({"labels": {LABEL: "0.500"}}),
            json!({"labels": {LABEL: "2"}}),
            json!({"annotations": {"gpu-fraction": "0.3"}}),
            json!({"annotations": {"gpu-memory": "4096"}}),
            json!({"annotations": {"mig-profile": "1g.10gb"}}),
            json!({"annotations": {"gpu-fraction": "0.3", "cantle.dev/compute": "fair"}}),
        ] {
            let pod = asking(metadata);
            let why = missing(&pod).expect("no injector has changed it");
            assert!(why.contains("does not see namespace jobs"), "{why}");
            for mode in [InjectionMode::Claim, classic.clone()] {
                let injected = inject(&pod, &Rules { mode, ..Rules::default() }, CALL).unwrap();
                assert_eq!(missing(&injected), None);
            }
        }
        assert_eq!(missing(&asking(json!({}))), None, "it asks for nothing");
        assert!(missing(&asking(json!({"labels": {LABEL: "0.333"}}))).unwrap().contains("0.333"));
    }

    /// As an injector would leave it that knows slices and no shares of compute.
    #[test]
    fn a_slice_without_its_share_of_compute_is_missing() {
        let fair = json!({"gpu-fraction": "0.5", "cantle.dev/compute": "fair"});
        let mut pod =
            inject(&asking(json!({"annotations": {"gpu-fraction": "0.5"}})), &Rules::default(), CALL)
                .unwrap();
        assert_eq!(missing(&pod), None);
        pod["metadata"]["annotations"] = fair;
        assert!(missing(&pod).is_some(), "half a GPU, and no share of its time");
    }

    #[test]
    fn half_of_it_is_not_enough() {
        let whole = inject(&asking(json!({"labels": {LABEL: "0.500"}})), &Rules::default(), CALL).unwrap();
        let without = |pointer: &str, key: &str| {
            let mut pod = whole.clone();
            pod.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(key);
            missing(&pod)
        };
        assert!(without("/metadata/labels", SLICE_LABEL).is_some());
        assert!(without("/spec", "resourceClaims").is_some());
        assert!(without("/spec/containers/0", "resources").is_some());
        let mut other = whole.clone();
        other["spec"]["resourceClaims"][0]["resourceClaimName"] =
            json!("cantle-fraction-7500-0123456789abcdef");
        assert!(missing(&other).is_some(), "of another size");
    }
}
