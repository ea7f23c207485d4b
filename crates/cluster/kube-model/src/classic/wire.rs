//! The messages between kube-scheduler and an extender.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use crate::inject::SLICE_LABEL;
use crate::names::SLICE_RESOURCE;
use crate::{ObjectExt as _, SliceName, SliceNameError};

/// Wire format of `k8s.io/kube-scheduler/extender/v1`, which has no tags for JSON and therefore Go's own names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderArgs {
    /// The pod.
    pub pod: Pod,
    /// The nodes in question.
    #[serde(default)]
    pub node_names: Option<Vec<String>>,
}

/// The nodes where the pod fits.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderFilterResult {
    /// Those where it does.
    pub node_names: Vec<String>,
    /// The others, and why not.
    pub failed_nodes: BTreeMap<String, String>,
    /// Why no node can be named at all.
    pub error: String,
}

/// The score of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Its name.
    pub host: String,
    /// From 0 to 10.
    pub score: i64,
}

/// Put this pod there.
#[derive(Debug, Deserialize)]
pub struct ExtenderBindingArgs {
    /// The pod.
    #[serde(rename = "PodName")]
    pub name: String,
    /// Its namespace.
    #[serde(rename = "PodNamespace")]
    pub namespace: String,
    /// Its UID.
    #[serde(rename = "PodUID")]
    pub uid: String,
    /// The node.
    #[serde(rename = "Node")]
    pub node: String,
}

/// The result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Why not; empty if the pod is bound.
    pub error: String,
}

/// The pod's request.
///
/// # Errors
/// If it does not ask as the injector writes it.
pub fn slice_of_pod(pod: &Pod) -> Result<SliceName, String> {
    let label = pod.labels().get(SLICE_LABEL);
    let label = label.ok_or_else(|| {
        format!(
            "{SLICE_RESOURCE} without label {SLICE_LABEL}: ask by clearml-injector/fraction or gpu-fraction"
        )
    })?;
    let spec = pod.spec.iter();
    let containers =
        spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get(SLICE_RESOURCE));
    let amounts: Vec<&str> = limits.map(|amount| amount.0.as_str()).collect();
    if amounts != ["1"] {
        return Err(format!("one container may ask for {SLICE_RESOURCE}, and for 1 of it"));
    }
    label.parse().map_err(|error: SliceNameError| error.to_string())
}
