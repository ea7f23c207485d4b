//! The phase of a pod, from its status.

use k8s_openapi::api::core::v1::Pod;

/// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending")
}

/// Have all its containers come to their end?
pub fn has_ended(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}
