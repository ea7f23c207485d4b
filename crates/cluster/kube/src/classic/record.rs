//! Writes a node's annotations.

use cantle_kube_model::classic::record::NodeRecord;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::KubeError;

/// Others write into nodes too: the kubelet every few minutes, and any other scheduler.
const TRIES: usize = 20;

/// Changes the record of a node if the node has not changed meanwhile; otherwise reads it again.
///
/// # Errors
/// The error of `change`; [`KubeError::Contended`] if others are always quicker.
pub(super) async fn change<T>(
    nodes: &Api<Node>,
    name: &str,
    change: impl Fn(&mut NodeRecord) -> Result<T, KubeError>,
) -> Result<T, KubeError> {
    for _ in 0..TRIES {
        let node = nodes.get(name).await?;
        let before = NodeRecord::of(&node)?;
        let mut record = before.clone();
        let answer = change(&mut record)?;
        if record == before {
            return Ok(answer);
        }
        let annotations = record.annotations()?;
        let metadata = json!({"resourceVersion": node.resource_version(), "annotations": annotations});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match nodes.patch_metadata(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            patched => return Ok(patched.map(|_| answer)?),
        }
    }
    Err(KubeError::Contended(name.to_owned()))
}
