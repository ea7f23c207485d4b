//! Reads and changes a node's annotations: its GPUs, and the allocations of pods on them.
//!
//! The node object is the only record of allocations. Every change names the version that it was made from, so of two
//! writers that allocate the same memory the second is refused; and users can write anything into their own pods, but
//! nothing into nodes.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use cantle_decide::Offer;
use cantle_mig::Table;
use cantle_model::{Gpu, Slice};
use k8s_openapi::api::core::v1::Node;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::names::{GPUS_ANNOTATION, PLACEMENTS_ANNOTATION, RESERVATION_NAMESPACE, RESERVATIONS_ANNOTATION};
use crate::{ObjectError, ObjectExt as _};

/// A GPU that a node offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedGpu {
    /// The GPU.
    pub gpu: Gpu,
    /// Its profiles, if it is in MIG mode or can change into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<Table>,
    /// Does it switch between shares and instances automatically?
    #[serde(default)]
    pub switches: bool,
    /// Its holder, where NVIDIA's device plugin allocates it; none where it belongs to cantle alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<PluginHolder>,
    /// The plugin allocates each GPU several times (time-slicing), and no request can name one GPU: the number of all
    /// devices of the node together, which can be requested at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<u32>,
}

impl OfferedGpu {
    /// For the scheduler.
    #[must_use]
    pub fn offer(&self) -> Offer {
        let (table, switches) = (self.table.clone().map(Arc::new), self.switches);
        Offer { table, switches, ..Offer::new(self.gpu.clone()) }
    }
}

/// The holder of a GPU that NVIDIA's device plugin allocates, as the kubelet reports it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PluginHolder {
    /// It can be allocated.
    Nobody,
    /// The pod `namespace/name`.
    Pod(String),
    /// No pod can have all of it; the reason.
    Barred(String),
}

impl PluginHolder {
    /// Is it a pod of the reservations?
    #[must_use]
    pub fn is_reservation(&self) -> bool {
        let Self::Pod(pod) = self else { return false };
        pod.split_once('/').is_some_and(|(namespace, _)| namespace == RESERVATION_NAMESPACE)
    }

    /// The pod that has it and is not one of cantle's, as `namespace/name`.
    pub fn stranger(&self) -> Option<&str> {
        match self {
            Self::Pod(pod) if !self.is_reservation() => Some(pod),
            _ => None,
        }
    }
}

/// A pod of cantle's that takes a GPU from the other device plugin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// When it was requested, in milliseconds since 1970.
    pub asked_ms: i64,
    /// Has there been a slice on a GPU of its?
    pub used: bool,
    /// It is being given back; nothing is placed on its GPU any more.
    pub leaving: bool,
}

/// The allocation of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedPod {
    /// `namespace/name`, for people.
    pub pod: String,
    /// Its request, as in its label.
    #[serde(rename = "ask")]
    pub slice_name: String,
    /// Its slices.
    pub slices: Vec<Slice>,
    /// When, in milliseconds since 1970.
    pub placed_ms: i64,
}

/// The allocations on a node, by the UID of the pod.
pub type Placements = BTreeMap<String, PlacedPod>;

/// A node's GPUs and their allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeRecord {
    /// Name of the node.
    pub node: String,
    /// Its offers; none if cantle does not run there.
    pub gpus: Vec<OfferedGpu>,
    /// Its allocations.
    pub placements: Placements,
    /// By the name of their pods.
    pub reservations: BTreeMap<String, Reservation>,
}

impl NodeRecord {
    /// As the node has it.
    ///
    /// # Errors
    /// [`ObjectError`] if an annotation is not as cantle writes it.
    pub fn of(node: &Node) -> Result<Self, ObjectError> {
        Ok(Self {
            node: node.name_any(),
            gpus: read(node, GPUS_ANNOTATION)?,
            placements: read(node, PLACEMENTS_ANNOTATION)?,
            reservations: read(node, RESERVATIONS_ANNOTATION)?,
        })
    }

    /// The records of these nodes, without those that cannot be read.
    pub fn all(nodes: impl IntoIterator<Item = impl Borrow<Node>>) -> Vec<Self> {
        nodes.into_iter().filter_map(|node| Self::of(node.borrow()).ok()).collect()
    }

    /// As annotations of the node; `null` where there is nothing to write down.
    ///
    /// # Errors
    /// [`ObjectError`] if it cannot be written as JSON.
    pub fn annotations(&self) -> Result<Value, ObjectError> {
        Ok(json!({
            GPUS_ANNOTATION: text(&self.gpus, self.gpus.is_empty())?,
            PLACEMENTS_ANNOTATION: text(&self.placements, self.placements.is_empty())?,
            RESERVATIONS_ANNOTATION: text(&self.reservations, self.reservations.is_empty())?,
        }))
    }
}

/// Are the GPUs of this node another device plugin's to give?
pub fn is_reserving(node: &Node) -> bool {
    NodeRecord::of(node).is_ok_and(|record| record.gpus.iter().any(|offered| offered.holder.is_some()))
}

fn read<T: DeserializeOwned + Default>(node: &Node, annotation: &str) -> Result<T, ObjectError> {
    let text = node.annotations().get(annotation).map(|text| serde_json::from_str(text));
    Ok(text.transpose()?.unwrap_or_default())
}

/// An annotation; none where it would be empty.
fn text(value: &impl Serialize, is_empty: bool) -> Result<Option<String>, ObjectError> {
    if is_empty { Ok(None) } else { Ok(Some(serde_json::to_string(value)?)) }
}
