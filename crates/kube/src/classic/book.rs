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
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reserve::is_ours;
use crate::KubeError;
use crate::names::{GPUS_ANNOTATION, PLACEMENTS_ANNOTATION, RESERVATIONS_ANNOTATION};

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
    /// Who has it, where NVIDIA's device plugin gives it out; none where it is cantle's alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holder: Option<Holder>,
    /// The plugin gives each GPU out several times (time-slicing), and nobody can ask for one of them: how many devices are all
    /// of the node's together, which can be had at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) together: Option<u32>,
}

/// Who has a GPU that NVIDIA's device plugin gives out, as the kubelet says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Holder {
    /// It can be had.
    Nobody,
    /// The pod `namespace/name`.
    Pod(String),
    /// Nobody can have all of it; why.
    Barred(String),
}

impl Holder {
    /// The pod that has it and is none of cantle's, as `namespace/name`.
    pub(crate) fn stranger(&self) -> Option<&str> {
        match self {
            Self::Pod(pod) if !is_ours(self) => Some(pod),
            _ => None,
        }
    }
}

/// A pod of cantle's that takes a GPU from the other device plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reservation {
    /// When it was asked for, in milliseconds since 1970.
    pub(crate) asked_ms: i64,
    /// Has there been a slice on a GPU of its?
    pub(crate) used: bool,
    /// It is being given back; nothing is placed on its GPU any more.
    pub(crate) leaving: bool,
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
    /// By the name of their pods.
    pub(crate) reservations: BTreeMap<String, Reservation>,
}

impl Book {
    /// As the node has it.
    ///
    /// # Errors
    /// [`KubeError::Object`] if an annotation is not as cantle writes it.
    pub(crate) fn of(node: &Node) -> Result<Self, KubeError> {
        Ok(Self {
            node: node.name_any(),
            gpus: read(node, GPUS_ANNOTATION)?,
            placements: read(node, PLACEMENTS_ANNOTATION)?,
            reservations: read(node, RESERVATIONS_ANNOTATION)?,
        })
    }
}

/// Are the GPUs of this node another device plugin's to give?
pub(crate) fn is_reserving(node: &Node) -> bool {
    Book::of(node).is_ok_and(|book| book.gpus.iter().any(|offered| offered.holder.is_some()))
}

fn read<T: DeserializeOwned + Default>(node: &Node, annotation: &str) -> Result<T, KubeError> {
    let text = node.annotations().get(annotation).map(|text| serde_json::from_str(text));
    Ok(text.transpose().map_err(KubeError::Object)?.unwrap_or_default())
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
        let annotations = json!({
            GPUS_ANNOTATION: text(&book.gpus, book.gpus.is_empty())?,
            PLACEMENTS_ANNOTATION: text(&book.placements, book.placements.is_empty())?,
            RESERVATIONS_ANNOTATION: text(&book.reservations, book.reservations.is_empty())?,
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
