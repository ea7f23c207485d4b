//! What a node's annotations say: its GPUs, and what of them was given to which pod.
//!
//! The node object is the one ledger. Every change names the version that it was made from, so of two that give out the same
//! room the second is refused; and users, who may write what they like into their own pods, may not write into nodes.

use std::collections::BTreeMap;

use cantle_mig::Table;
use cantle_model::{Gpu, Slice};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::KubeError;
use crate::names::{GPUS_ANNOTATION, PLACEMENTS_ANNOTATION};

/// Others write into nodes too: the kubelet every few minutes, and whoever places pods beside us.
const TRIES: usize = 20;

/// A GPU that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offered {
    /// The GPU.
    pub(crate) gpu: Gpu,
    /// Its profiles, if it is in MIG mode or can change into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<Table>,
    /// Does it change between shares and instances by itself?
    #[serde(default)]
    pub(crate) switches: bool,
}

/// What a pod was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement {
    /// `namespace/name`, for people.
    pub(crate) pod: String,
    /// What it asked for, as in its label.
    pub(crate) ask: String,
    /// What it got.
    pub(crate) slices: Vec<Slice>,
    /// When, in milliseconds since 1970.
    pub(crate) placed_ms: i64,
}

/// What was given out on a node, by the UID of the pod.
pub(crate) type Placements = BTreeMap<String, Placement>;

/// A node's GPUs and who has what of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    /// Name of the node.
    pub(crate) node: String,
    /// What it offers; nothing if cantle does not run there.
    pub(crate) gpus: Vec<Offered>,
    /// What is given out.
    pub(crate) placements: Placements,
}

impl Book {
    /// As the node has it.
    ///
    /// # Errors
    /// [`KubeError::Object`] if an annotation is not as cantle writes it.
    pub(crate) fn of(node: &Node) -> Result<Self, KubeError> {
        let annotations = node.annotations();
        let gpus = annotations.get(GPUS_ANNOTATION).map(|text| serde_json::from_str(text));
        let placements = annotations.get(PLACEMENTS_ANNOTATION).map(|text| serde_json::from_str(text));
        Ok(Self {
            node: node.name_any(),
            gpus: gpus.transpose().map_err(KubeError::Object)?.unwrap_or_default(),
            placements: placements.transpose().map_err(KubeError::Object)?.unwrap_or_default(),
        })
    }
}

/// Changes what is written in a node, if nobody else has changed the node meanwhile; otherwise looks again.
///
/// # Errors
/// What `change` says; [`KubeError::Contended`] if others are always quicker.
pub(super) async fn change<T>(
    nodes: &Api<Node>,
    name: &str,
    change: impl Fn(&mut Book) -> Result<T, KubeError>,
) -> Result<T, KubeError> {
    for _ in 0..TRIES {
        let node = nodes.get(name).await?;
        let before = Book::of(&node)?;
        let mut book = before.clone();
        let answer = change(&mut book)?;
        if book == before {
            return Ok(answer);
        }
        let placements = text(&book.placements, book.placements.is_empty())?;
        let annotations = json!({
            GPUS_ANNOTATION: text(&book.gpus, book.gpus.is_empty())?,
            PLACEMENTS_ANNOTATION: placements,
        });
        let metadata = json!({"resourceVersion": node.resource_version(), "annotations": annotations});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        match nodes.patch_metadata(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            patched => return Ok(patched.map(|_| answer)?),
        }
    }
    Err(KubeError::Contended(name.to_owned()))
}

/// An annotation; none where there is nothing to say.
fn text(value: &impl Serialize, is_empty: bool) -> Result<Option<String>, KubeError> {
    if is_empty { Ok(None) } else { serde_json::to_string(value).map(Some).map_err(KubeError::Object) }
}
