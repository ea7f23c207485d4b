//! Keeps what the API server has of a node's ResourceSlices equal to what the node offers.

use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};

use super::devices::Inventory;
use super::slices::slices;
use crate::names::DRIVER;
use crate::{KubeError, Version};

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

    /// What happens to the node's slices, whoever does it: the kubelet removes them when it thinks that the driver is gone.
    pub(super) fn changes(
        &self,
    ) -> impl futures_util::Stream<Item = Result<watcher::Event<ResourceSlice>, watcher::Error>> + use<> {
        watcher(self.api.clone(), watcher::Config::default().fields(&self.selector()))
    }

    /// Publishes the inventory, if it is not what is there already. Every change is a new generation of the pool: the
    /// scheduler uses none that is not complete.
    ///
    /// # Errors
    /// If the API server can't be reached, or drops what it does not know ([`KubeError::Dropped`]).
    pub(super) async fn publish(&self, inventory: &Inventory) -> Result<(), KubeError> {
        let node = self.nodes.get(&self.node).await?;
        let keeps_taints = self.keeps_taints.load(Ordering::Relaxed);
        let wanted =
            if keeps_taints { slices(inventory, &node) } else { slices(&inventory.without_lost(), &node) };
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
            if tainted(&stored.spec) != tainted(&slice.spec) {
                // The next attempt leaves lost GPUs out.
                self.keeps_taints.store(false, Ordering::Relaxed);
                return Err(KubeError::Dropped { gate: "DRADeviceTaints", since: Version::TAINTS });
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

fn is_as_wanted(there: &[ResourceSlice], wanted: &[ResourceSlice], generation: i64) -> bool {
    let same = |slice: &ResourceSlice| {
        wanted.iter().any(|wanted| {
            let mut spec = wanted.spec.clone();
            spec.pool.generation = generation;
            wanted.name_any() == slice.name_any()
                && spec.into_canonical() == slice.spec.clone().into_canonical()
                && wanted.owner_references() == slice.owner_references()
        })
    };
    there.len() == wanted.len() && there.iter().all(same)
}

/// The API server writes quantities its own way, `40960Mi` comes back as `40Gi`, and when a taint came.
trait Canonical {
    fn into_canonical(self) -> Self;
}

impl Canonical for ResourceSliceSpec {
    fn into_canonical(mut self) -> Self {
        for taint in self.devices.iter_mut().flatten().filter_map(|device| device.taints.as_mut()).flatten() {
            // The API server's, as everything that is not told.
            taint.time_added = None;
        }
        let devices = self.devices.iter_mut().flatten();
        for capacity in devices.filter_map(|device| device.capacity.as_mut()).flat_map(|c| c.values_mut()) {
            let policy = capacity.request_policy.as_mut();
            let range = policy.map(|policy| (policy.default.as_mut(), policy.valid_range.as_mut()));
            let (default, range) = range.unwrap_or_default();
            let range = range.into_iter().flat_map(|range| {
                [Some(&mut range.min), range.max.as_mut(), range.step.as_mut()].into_iter().flatten()
            });
            for quantity in [&mut capacity.value].into_iter().chain(default).chain(range) {
                if let Some(bytes) = super::claim::bytes(quantity) {
                    quantity.0 = bytes.to_string();
                }
            }
        }
        self
    }
}

fn tainted(spec: &ResourceSliceSpec) -> usize {
    spec.devices.iter().flatten().filter(|device| device.taints.is_some()).count()
}

/// An API server whose feature gates are off stores what is left, and the scheduler would give out whole GPUs as shares.
fn refuse_dropped(sent: &ResourceSliceSpec, stored: &ResourceSliceSpec) -> Result<(), KubeError> {
    let of = |spec: &ResourceSliceSpec| {
        let devices = spec.devices.iter().flatten();
        let shared = devices.clone().filter(|device| device.allow_multiple_allocations == Some(true)).count();
        let counted = devices.filter(|device| device.consumes_counters.is_some()).count();
        (shared, counted, spec.shared_counters.as_ref().map_or(0, Vec::len))
    };
    let ((shared, counted, sets), kept) = (of(sent), of(stored));
    if kept.0 != shared {
        return Err(KubeError::Dropped { gate: "DRAConsumableCapacity", since: Version::MIXED });
    }
    if (kept.1, kept.2) != (counted, sets) {
        return Err(KubeError::Dropped { gate: "DRAPartitionableDevices", since: Version::MIXED });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::devices::tests::offers;
    use super::*;

    fn wanted() -> Vec<ResourceSlice> {
        slices(&Inventory::of(&offers(1, true, true), Version::MIXED), &Node::default())
    }

    #[test]
    fn what_is_there_already_is_not_written_again() {
        let mut there = wanted();
        for slice in &mut there {
            slice.spec.pool.generation = 7;
            for device in slice.spec.devices.iter_mut().flatten() {
                for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
                    capacity.value.0 = capacity.value.0.replace("81920Mi", "80Gi");
                }
            }
        }
        assert!(is_as_wanted(&there, &wanted(), 7));
        assert!(!is_as_wanted(&there[1..], &wanted(), 7), "one was removed");
        there[0].spec.pool.generation = 6;
        assert!(!is_as_wanted(&there, &wanted(), 7), "they belong to two generations");
    }

    #[test]
    fn gates_that_are_off_are_noticed() {
        let sent = wanted().remove(1).spec;
        assert!(refuse_dropped(&sent, &sent).is_ok());
        let mut stored = sent.clone();
        stored.devices.iter_mut().flatten().for_each(|device| device.allow_multiple_allocations = None);
        let said = refuse_dropped(&sent, &stored).unwrap_err().to_string();
        assert!(said.contains("DRAConsumableCapacity"), "{said}");
        let mut stored = sent.clone();
        stored.devices.iter_mut().flatten().for_each(|device| device.consumes_counters = None);
        assert!(refuse_dropped(&sent, &stored).is_err());
    }
}
