//! Keeps a node's ResourceSlices on the API server equal to what the node offers.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};

use crate::KubeError;
use cantle_kube_model::dra::devices::Inventory;
use cantle_kube_model::dra::published::{is_as_wanted, refuse_dropped, refuse_dropped_taints};
use cantle_kube_model::dra::slices::slices;
use cantle_kube_model::names::DRIVER;

/// The slices of one node at the API server.
pub(super) struct Publisher {
    api: Api<ResourceSlice>,
    nodes: Api<Node>,
    node: String,
    /// Does the API server keep taints of devices?
    keeps_taints: AtomicBool,
}

impl Publisher {
    pub(super) fn new(client: &Client, node: &str) -> Self {
        Self {
            api: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            node: node.to_owned(),
            keeps_taints: AtomicBool::new(true),
        }
    }

    fn selector(&self) -> String {
        format!("spec.driver={DRIVER},spec.nodeName={}", self.node)
    }

    /// Changes of the node's slices, by any writer: the kubelet removes them when it thinks that the driver is gone.
    pub(super) fn changes(
        &self,
    ) -> impl futures_util::Stream<Item = Result<watcher::Event<ResourceSlice>, watcher::Error>> + use<> {
        watcher(self.api.clone(), watcher::Config::default().fields(&self.selector()))
    }

    /// Publishes the inventory, if it differs from the published one. Every change is a new generation of the pool: the
    /// scheduler uses none that is not complete.
    ///
    /// # Errors
    /// If the API server cannot be reached, or drops what it does not know ([`KubeError::Dropped`]).
    pub(super) async fn publish(&self, inventory: &Inventory) -> Result<(), KubeError> {
        let node = self.nodes.get(&self.node).await?;
        let keeps_taints = self.keeps_taints.load(Ordering::Relaxed);
        let wanted =
            if keeps_taints { slices(inventory, &node) } else { slices(&inventory.without_taints(), &node) };
        let there = self.api.list(&ListParams::default().fields(&self.selector())).await?.items;
        let generation = there.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0);
        if is_as_wanted(&there, &wanted, generation) {
            return Ok(());
        }
        let generation = generation + 1;
        for mut slice in wanted.iter().cloned() {
            slice.spec.pool.generation = generation;
            let stored = self.put(&there, &slice).await?;
            refuse_dropped(&slice.spec, &stored.spec)?;
            if let Err(dropped) = refuse_dropped_taints(&slice.spec, &stored.spec) {
                // The next attempt leaves lost GPUs out.
                self.keeps_taints.store(false, Ordering::Relaxed);
                return Err(dropped.into());
            }
        }
        let is_left = |slice: &&ResourceSlice| !wanted.iter().any(|w| w.name_any() == slice.name_any());
        for slice in there.iter().filter(is_left) {
            self.remove(slice).await?;
        }
        tracing::info!(node = self.node, generation, devices = inventory.devices.len(), "devices published");
        Ok(())
    }

    async fn put(&self, there: &[ResourceSlice], slice: &ResourceSlice) -> Result<ResourceSlice, KubeError> {
        let name = slice.name_any();
        let Some(old) = there.iter().find(|old| old.name_any() == name) else {
            return Ok(self.api.create(&PostParams::default(), slice).await?);
        };
        let mut slice = slice.clone();
        slice.metadata.resource_version = old.metadata.resource_version.clone();
        Ok(self.api.replace(&name, &PostParams::default(), &slice).await?)
    }

    async fn remove(&self, slice: &ResourceSlice) -> Result<(), KubeError> {
        match self.api.delete(&slice.name_any(), &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }
}
