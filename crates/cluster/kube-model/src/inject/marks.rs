//! Refuses pods that have the injector's marks and no request: the label of a slice, the gate, or a claim by the name of the
//! injector's own. Of a pod with a request, the injector replaces them. The API server asks before any other call, because the
//! injector takes the resource that is a request out of a pod.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::{Denial, Rules, SLICE_LABEL, read};
use crate::names::PACKING_GATE;
use crate::slice_name::is_reserved;

/// # Errors
/// If the pod has marks that no call of the injector has made.
pub(super) fn check(pod: &Value, rules: &Rules) -> Result<(), Denial> {
    let pod: Pod = serde_json::from_value(pod.clone()).map_err(|error| Denial::NotAPod(error.to_string()))?;
    match mark(&pod) {
        Some(what) if read::asked(&pod, rules)?.is_none() => Err(Denial::Marked(what)),
        _ => Ok(()),
    }
}

/// The first mark, for people.
fn mark(pod: &Pod) -> Option<String> {
    let has_label = pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(SLICE_LABEL));
    let mut claims = pod.spec.iter().flat_map(|spec| &spec.resource_claims).flatten();
    let names = |claim: &k8s_openapi::api::core::v1::PodResourceClaim| {
        let named = [claim.resource_claim_name.clone(), claim.resource_claim_template_name.clone()];
        named.into_iter().flatten().find(|name| is_reserved(name))
    };
    let mut gates = pod.spec.iter().flat_map(|spec| &spec.scheduling_gates).flatten();
    let label = || has_label.then(|| format!("label {SLICE_LABEL}"));
    let claim = claims.find_map(names).map(|name| format!("resource claim \"{name}\""));
    let gate = gates.any(|gate| gate.name == PACKING_GATE).then(|| format!("scheduling gate {PACKING_GATE}"));
    label().or(claim).or(gate)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::inject::inject;
    use crate::inject::tests::CALL;

    fn pod(metadata: &Value, more: &Value) -> Value {
        let mut spec = json!({"containers": [{"name": "main"}]});
        let more = more.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(more);
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }

    #[test]
    fn forged_marks_are_refused() {
        let claim = |word: &str, name: &str| json!({"resourceClaims": [{"name": "cantle-gpu", word: name}]});
        let says = |pod: &Value| check(pod, &Rules::default()).unwrap_err().to_string();
        let label = json!({"labels": {SLICE_LABEL: "cantle-whole-1"}});
        let labeled = says(&pod(&label, &claim("resourceClaimName", "cantle-whole-1-deadbeefdeadbeef")));
        assert!(labeled.starts_with("label cantle.dev/slice is set by cantle's injector"), "{labeled}");
        let named = says(&pod(&json!({}), &claim("resourceClaimName", "cantle-whole-1-deadbeefdeadbeef")));
        assert!(named.starts_with("resource claim \"cantle-whole-1-deadbeefdeadbeef\" is set"), "{named}");
        let template = says(&pod(&json!({}), &claim("resourceClaimTemplateName", "cantle-fraction-5000")));
        assert!(template.starts_with("resource claim \"cantle-fraction-5000\" is set"), "{template}");
        let gate = says(&pod(&json!({}), &json!({"schedulingGates": [{"name": PACKING_GATE}]})));
        assert!(gate.starts_with("scheduling gate cantle.dev/packing is set"), "{gate}");
    }

    #[test]
    fn others_pods_and_those_with_a_request_pass() {
        let rules = Rules { packs: true, ..Rules::default() };
        let mine =
            pod(&json!({}), &json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}));
        assert_eq!(check(&mine, &rules), Ok(()));
        let asking = pod(&json!({"labels": {"clearml-injector/fraction": "0.500"}}), &json!({}));
        let injected = inject(&asking, &rules, CALL).unwrap();
        assert_eq!(check(&injected, &rules), Ok(()), "a copy of a pod has another claim");
    }
}
