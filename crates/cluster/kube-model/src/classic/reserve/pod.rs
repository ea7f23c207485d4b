//! Builds the pod of a reservation.

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::json;

use crate::names::{GPU_RESOURCE, RESERVATION_NAMESPACE};
use crate::{ObjectError, ObjectExt as _};

/// The common fields of all reservation pods.
#[derive(Clone, Debug)]
pub struct ReservationKind {
    /// An image with `sleep`, which is on the nodes anyway: cantle's own.
    pub image: String,
    /// The chart's: a reservation preempts no pod, and no pod preempts a reservation, because the slices would continue
    /// to run.
    pub priority_class: String,
}

/// The node that a reservation's pod is for.
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.metadata.owner_references.iter().flatten().next().map(|owner| owner.name.as_str())
}

impl ReservationKind {
    /// The pod `name`, which takes this number of devices of `node`: a GPU, or all that its GPUs are shared as. The
    /// cluster's scheduler places it, so that it cannot get a GPU that was allocated to another pod at the same moment.
    /// It bears all taints: a pod that asked for a slice has been found fit for the node, and as long as its slice is
    /// there, the reservation stays too.
    ///
    /// # Errors
    /// Never, if the cluster's objects are as they should be.
    pub fn pod(&self, name: &str, node: &Node, devices: u32) -> Result<Pod, ObjectError> {
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node.name_any()]}]);
        let amounts = json!({"cpu": "10m", "memory": "16Mi", GPU_RESOURCE: devices.to_string()});
        let pod = json!({
            "metadata": {
                "name": name,
                "namespace": RESERVATION_NAMESPACE,
                "labels": {"app.kubernetes.io/name": "cantle", "app.kubernetes.io/component": "reservation"},
                // Karpenter and the cluster autoscaler leave a node with such pods alone.
                "annotations": {
                    "karpenter.sh/do-not-disrupt": "true",
                    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Node", "name": node.name_any(), "uid": node.uid(), "controller": true,
                }],
            },
            "spec": {
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": fields}],
                }}},
                "tolerations": [{"operator": "Exists"}],
                "priorityClassName": self.priority_class,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "hold",
                    "image": self.image,
                    "command": ["sleep", "infinity"],
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }],
            },
        });
        Ok(serde_json::from_value(pod)?)
    }
}
