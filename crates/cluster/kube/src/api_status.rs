//! The meaning of the API server's refusals, by code and reason.

use kube::core::Status;

/// `NamespaceTerminatingCause` of the Kubernetes API.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
/// A webhook answers with a code and reason of its own choice, so that only this prefix, which the API server puts before
/// the webhook's message (`ToStatusErr` in `k8s.io/apiserver`), tells its 403 from one of RBAC or of a resource quota.
const ADMISSION_WEBHOOK: &str = "admission webhook \"";

/// Nothing can be created in the namespace: it is being deleted, with all that is in it.
pub(crate) fn is_namespace_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403 && causes.into_iter().any(|cause| cause.reason == NAMESPACE_TERMINATING)
}

/// An admission webhook refuses the object as it is.
pub(crate) fn is_denied_by_webhook(status: &Status) -> bool {
    matches!(status.code, 400 | 403) && status.message.starts_with(ADMISSION_WEBHOOK)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(code: u16, reason: &str, message: &str, details: &Value) -> Status {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure",
            "code": code, "reason": reason, "message": message, "details": details,
        });
        serde_json::from_value(status).unwrap()
    }

    fn terminating() -> Status {
        let cause = json!({
            "reason": "NamespaceTerminating",
            "message": "namespace team is being terminated",
            "field": "metadata.namespace",
        });
        let message = "pods \"p\" is forbidden: unable to create new content in namespace team because it is being \
                       terminated";
        status(403, "Forbidden", message, &json!({"name": "p", "kind": "pods", "causes": [cause]}))
    }

    fn over_quota() -> Status {
        let message =
            "pods \"p\" is forbidden: exceeded quota: being terminated, requested: pods=1, used: pods=1";
        status(403, "Forbidden", message, &json!({"name": "p", "kind": "pods"}))
    }

    fn denied(code: u16, reason: &str) -> Status {
        let message =
            "admission webhook \"inject.cantle.dev\" denied the request: annotation gpu-fraction is \"2\"";
        status(code, reason, message, &Value::Null)
    }

    #[test]
    fn a_namespace_on_its_way_out() {
        assert!(is_namespace_terminating(&terminating()));
        for other in [over_quota(), denied(403, "Forbidden")] {
            assert!(!is_namespace_terminating(&other), "{other:?}");
        }
    }

    #[test]
    fn a_webhooks_denial() {
        assert!(is_denied_by_webhook(&denied(403, "Forbidden")));
        assert!(is_denied_by_webhook(&denied(400, "")), "a webhook that gives no code");
        let away =
            "Internal error occurred: failed calling webhook \"inject.cantle.dev\": connection refused";
        for other in [terminating(), over_quota(), status(500, "InternalError", away, &Value::Null)] {
            assert!(!is_denied_by_webhook(&other), "{other:?}");
        }
    }
}
