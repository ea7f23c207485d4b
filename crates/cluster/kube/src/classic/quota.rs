//! Keeps namespaces within their quotas of GPUs ([`cantle_kube_model::gpu_quota`]). A pod counts from its placement on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};

use cantle_kube_model::SliceName;
use cantle_kube_model::classic::record::NodeRecord;
use cantle_kube_model::gpu_quota::{limits_gpus, refusal};
use k8s_openapi::api::core::v1::{Node, ResourceQuota};
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// The quotas of all namespaces, and what they count.
#[derive(Clone)]
pub(super) struct Quotas {
    pub(super) nodes: Store<Node>,
    pub(super) quotas: Store<ResourceQuota>,
    /// Of each namespace with a quota, one pod is placed at a time.
    pub(super) turns: Arc<Lock<BTreeMap<String, Arc<Mutex<()>>>>>,
}

impl Quotas {
    /// Why a pod may not be placed now.
    pub(super) fn refusal(&self, namespace: &str, uid: &str, slice_name: &SliceName) -> Option<String> {
        let quotas = self.of(namespace);
        if quotas.is_empty() {
            return None;
        }
        let record = |node: &Arc<Node>| match NodeRecord::of(node) {
            Ok(record) => Some(record),
            Err(error) => {
                let node = node.name_any();
                tracing::warn!(node, %error, "a node cannot be read; its pods do not count against quotas of GPUs");
                None
            }
        };
        let records: Vec<NodeRecord> = self.nodes.state().iter().filter_map(record).collect();
        refusal(&records, &quotas, namespace, uid, slice_name)
    }

    fn of(&self, namespace: &str) -> Vec<Arc<ResourceQuota>> {
        let is_its = |quota: &Arc<ResourceQuota>| {
            limits_gpus(quota) && quota.namespace().as_deref() == Some(namespace)
        };
        self.quotas.state().into_iter().filter(is_its).collect()
    }

    /// The turn to place a pod of this namespace; none where nothing is counted. It waits until the quotas are known.
    pub(super) async fn turn(&self, namespace: &str) -> Option<OwnedMutexGuard<()>> {
        // An error means that the program is ending.
        let _ = self.quotas.wait_until_ready().await;
        if self.of(namespace).is_empty() {
            return None;
        }
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(turns.entry(namespace.to_owned()).or_default())
        };
        Some(turn.lock_owned().await)
    }
}
