//! Metadata of objects.

use std::collections::BTreeMap;

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

static NONE: BTreeMap<String, String> = BTreeMap::new();

/// The common metadata of objects, without `Option`s.
pub trait ObjectExt {
    /// The metadata.
    fn meta(&self) -> &ObjectMeta;

    /// The name; the prefix of it while the API server has not completed it.
    fn name_any(&self) -> String {
        self.meta().name.clone().or_else(|| self.meta().generate_name.clone()).unwrap_or_default()
    }

    /// The namespace.
    fn namespace(&self) -> Option<String> {
        self.meta().namespace.clone()
    }

    /// The UID.
    fn uid(&self) -> Option<String> {
        self.meta().uid.clone()
    }

    /// When it was made.
    fn creation_timestamp(&self) -> Option<Time> {
        self.meta().creation_timestamp.clone()
    }

    /// Its labels.
    fn labels(&self) -> &BTreeMap<String, String> {
        self.meta().labels.as_ref().unwrap_or(&NONE)
    }

    /// Its annotations.
    fn annotations(&self) -> &BTreeMap<String, String> {
        self.meta().annotations.as_ref().unwrap_or(&NONE)
    }

    /// Its owners.
    fn owner_references(&self) -> &[OwnerReference] {
        self.meta().owner_references.as_deref().unwrap_or_default()
    }
}

impl<T: Metadata<Ty = ObjectMeta>> ObjectExt for T {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
}

/// The owner of what a node publishes, so that it goes when the node goes.
pub(crate) fn node_owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}
