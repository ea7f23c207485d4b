//! Wakes pods that wait for capacity.
//!
//! kube-scheduler looks at a waiting pod again when a node changes, and asks the extender at once. If the extender receives
//! that change a moment later than the scheduler, it refuses the pod once more, and nothing would trigger another attempt
//! before the next change in the cluster. So a node with new free capacity is changed a second time, when every cache has
//! the first change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::Event;
use serde_json::json;

use super::metrics::Metrics;
use crate::node::ticks;
use cantle_kube_model::classic::record::{NodeRecord, OfferedGpu, PluginHolder};
use cantle_kube_model::gpu_quota::limits_gpus;
use cantle_kube_model::names::FREED_ANNOTATION;

/// Longer than any cache is behind.
const AFTER: Duration = Duration::from_secs(2);

/// Does so, for pods that this replica refused. One changed node wakes them all.
#[derive(Default)]
pub(super) struct Waker(Mutex<Freed>);

impl Waker {
    /// Something happened to a node.
    pub(super) fn see(&self, event: &Event<Node>) {
        let (Event::Apply(node) | Event::InitApply(node)) = event else { return };
        // Unreadable records are reported where calls are answered.
        if let Ok(record) = NodeRecord::of(node) {
            self.freed().see(&record);
        }
    }

    /// Something happened to a quota: it may have room, whatever the nodes have.
    pub(super) fn see_quota(&self, event: &Event<ResourceQuota>) {
        let (Event::Apply(quota) | Event::Delete(quota)) = event else { return };
        if limits_gpus(quota) {
            self.freed().anywhere();
        }
    }

    fn freed(&self) -> MutexGuard<'_, Freed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs forever.
    pub(super) async fn run(self: Arc<Self>, nodes: Api<Node>, metrics: Arc<Metrics>) {
        let (mut turn, mut refused) = (ticks(AFTER), 0);
        loop {
            turn.tick().await;
            let freed = self.freed().turn();
            let Some(node) = freed.filter(|_| metrics.refused() != refused) else { continue };
            refused = metrics.refused();
            if let Err(error) = touch(&nodes, &node).await {
                tracing::warn!(node, %error, "waiting pods may learn late of free capacity");
            }
        }
    }
}

/// The nodes with new free capacity.
#[derive(Default)]
struct Freed {
    /// Each node as it was last.
    nodes: BTreeMap<String, NodeCapacity>,
    /// In this turn.
    now: Option<String>,
    /// In the one before.
    before: Option<String>,
}

/// The capacity of a node that pods can have.
struct NodeCapacity {
    /// The number of placements, and of GPUs that other pods have.
    taken: usize,
    /// Its GPUs, free or not.
    gpus: Vec<OfferedGpu>,
}

impl NodeCapacity {
    fn of(record: &NodeRecord) -> Self {
        let is_taken = |of: &&OfferedGpu| matches!(of.holder, Some(PluginHolder::Pod(_)));
        let taken = record.placements.len() + record.gpus.iter().filter(is_taken).count();
        let gpus = record.gpus.iter().map(|of| OfferedGpu { holder: None, ..of.clone() }).collect();
        Self { taken, gpus }
    }

    /// Pods have ended since then, or a GPU has come or serves something else.
    fn has_more_than(&self, before: &Self) -> bool {
        self.taken < before.taken || self.gpus.iter().any(|of| !before.gpus.contains(of))
    }
}

impl Freed {
    fn see(&mut self, record: &NodeRecord) {
        let seen = NodeCapacity::of(record);
        if self.nodes.get(&record.node).is_some_and(|before| seen.has_more_than(before)) {
            self.now = Some(record.node.clone());
        }
        self.nodes.insert(record.node.clone(), seen);
    }

    /// Any node will do.
    fn anywhere(&mut self) {
        self.now = self.nodes.keys().next().cloned();
    }

    /// A node on which room came free at least a turn ago; each time is reported once.
    fn turn(&mut self) -> Option<String> {
        std::mem::replace(&mut self.before, self.now.take())
    }
}

async fn touch(nodes: &Api<Node>, name: &str) -> Result<(), kube::Error> {
    let annotations = json!({FREED_ANNOTATION: Timestamp::now().to_string()});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    nodes.patch_metadata(name, &PatchParams::default(), &patch).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cantle_kube_model::classic::record::PlacedPod;
    use cantle_model::{Gpu, GpuUuid};

    #[test]
    fn free_room_is_told_once_and_a_whole_turn_later() {
        let mut freed = Freed::default();
        let see = |freed: &mut Freed, pods: &[&str]| {
            let placement =
                PlacedPod { pod: String::new(), slice_name: String::new(), slices: Vec::new(), placed_ms: 0 };
            let placements = pods.iter().map(|uid| ((*uid).to_owned(), placement.clone())).collect();
            freed.see(&NodeRecord { node: "n".to_owned(), placements, ..NodeRecord::default() });
        };
        see(&mut freed, &["a", "b"]);
        see(&mut freed, &["a", "b", "c"]);
        assert_eq!((freed.turn(), freed.turn()), (None, None), "nothing came free");
        see(&mut freed, &["b", "c"]);
        assert_eq!((freed.turn(), freed.turn(), freed.turn()), (None, Some("n".to_owned()), None));
    }

    #[test]
    fn a_gpu_that_comes_is_free_room() {
        let offered = |index| {
            let uuid = GpuUuid(format!("GPU-{index}"));
            let gpu = Gpu { uuid, index, model: "A100".to_owned(), memory_bytes: 40 << 30, mig: false };
            OfferedGpu { gpu, table: None, switches: false, holder: None, together: None }
        };
        let mut freed = Freed::default();
        let mut tells = |gpus: Vec<OfferedGpu>| {
            freed.see(&NodeRecord { node: "n".to_owned(), gpus, ..NodeRecord::default() });
            freed.turn();
            freed.turn().is_some()
        };
        assert!(!tells(vec![offered(0), offered(1)]), "a node that is new");
        assert!(!tells(vec![offered(1)]), "one is lost");
        assert!(tells(vec![offered(0), offered(1)]));
        let held = OfferedGpu { holder: Some(PluginHolder::Nobody), ..offered(0) };
        assert!(!tells(vec![held, offered(1)]), "the same GPU");
        assert!(
            tells(vec![offered(0), OfferedGpu { switches: true, ..offered(1) }]),
            "it serves instances too"
        );
    }
}
