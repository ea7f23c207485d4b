//! Makes and deletes the pods that the nodes' annotations ask for. Every replica of the extender does so: the names are
//! fixed, so each replica finds what another has created, and a write to a node names the version that it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{sleep, timeout};

use crate::KubeError;
use crate::classic::changes::Changes;
use crate::classic::record::change;
use cantle_kube_model::classic::record::NodeRecord;
use cantle_kube_model::classic::reserve::{ReservationKind, SeenPod, node_of, settle};
use cantle_kube_model::names::{RESERVATION_NAMESPACE, RESERVATIONS_ANNOTATION};
use cantle_kube_model::phase::has_ended;

/// Time passes without a change too: unused ones are returned.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// After one change more often follow.
const TOGETHER: Duration = Duration::from_millis(50);

/// Looks after reservations.
#[derive(Clone)]
pub(in crate::classic) struct Reserver {
    pub(in crate::classic) client: Client,
    pub(in crate::classic) kind: ReservationKind,
    pub(in crate::classic) nodes: Store<Node>,
    /// Those of the reservations' namespace.
    pub(in crate::classic) pods: Store<Pod>,
}

impl Reserver {
    /// Looks after them, without end.
    pub(in crate::classic) async fn run(&self, mut changes: Changes) -> Infallible {
        loop {
            // It looks at everything, after a change and without one.
            let _ = timeout(LOOK_EVERY, changes.next()).await;
            sleep(TOGETHER).await;
            let pods = self.pods.state();
            let with_pods: BTreeSet<&str> = pods.iter().filter_map(|pod| node_of(pod)).collect();
            for node in self.nodes.state() {
                let has_reservations = node.annotations().contains_key(RESERVATIONS_ANNOTATION);
                if !has_reservations && !with_pods.contains(node.name_any().as_str()) {
                    continue;
                }
                if let Err(error) = self.look_at(&node, &pods).await {
                    tracing::warn!(node = node.name_any(), %error, "reservations are checked again later");
                }
            }
        }
    }

    async fn look_at(&self, node: &Node, pods: &[Arc<Pod>]) -> Result<(), KubeError> {
        let name = node.name_any();
        let here: BTreeMap<String, Arc<Pod>> = pods
            .iter()
            .filter(|pod| node_of(pod) == Some(&name))
            .map(|pod| (pod.name_any(), Arc::clone(pod)))
            .collect();
        let seen: BTreeMap<String, SeenPod> =
            here.iter().map(|(name, pod)| (name.clone(), seen(pod))).collect();
        let now_ms = Timestamp::now().as_millisecond();
        // The cached state of the node may be old; if it leaves nothing to do, the next change is waited for.
        let known = NodeRecord::of(node)?;
        let mut record = known.clone();
        if settle(&mut record, &seen, now_ms) == Default::default() && record == known {
            return Ok(());
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let steps = change(&nodes, &name, |record| Ok(settle(record, &seen, now_ms))).await?;
        for (pod, devices) in &steps.create {
            self.create(pod, node, *devices).await?;
        }
        for pod in steps.delete.iter().filter_map(|pod| here.get(pod)) {
            self.delete(pod).await?;
        }
        Ok(())
    }

    fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), RESERVATION_NAMESPACE)
    }

    async fn create(&self, name: &str, node: &Node, devices: u32) -> Result<(), KubeError> {
        match self.api().create(&PostParams::default(), &self.kind.pod(name, node, devices)?).await {
            Ok(_) => tracing::info!(pod = name, node = node.name_any(), devices, "GPU is being reserved"),
            // Another replica was quicker.
            Err(kube::Error::Api(status)) if status.is_already_exists() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn delete(&self, pod: &Pod) -> Result<(), KubeError> {
        // Not one that was created again under the same name.
        let preconditions = Some(Preconditions { uid: pod.uid(), resource_version: None });
        let deleting = DeleteParams { preconditions, ..DeleteParams::default() };
        match self.api().delete(&pod.name_any(), &deleting).await {
            Ok(_) => tracing::info!(pod = pod.name_any(), "its reservation is released"),
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The reason why the requested GPUs of this node are not available yet.
    pub(in crate::classic) fn why_not_yet(&self, node: &str, record: &NodeRecord) -> String {
        let said = |name: &String| {
            let pod = self.pods.get(&ObjectRef::new(name).within(RESERVATION_NAMESPACE))?;
            let status = pod.status.as_ref()?;
            if has_ended(&pod) {
                // The kubelet's message about what the plugin answered.
                return status.message.clone();
            }
            let mut conditions = status.conditions.iter().flatten();
            conditions.find(|c| c.type_ == "PodScheduled" && c.status == "False")?.message.clone()
        };
        let why = record.reservations.keys().find_map(said);
        let why = why.unwrap_or_else(|| "it has not started yet".to_owned());
        format!("a pod in {RESERVATION_NAMESPACE} is to reserve a GPU of {node} first: {why}")
    }
}

fn seen(pod: &Pod) -> SeenPod {
    let made_ms = pod.creation_timestamp().map_or(0, |made| made.0.as_millisecond());
    SeenPod { ended: has_ended(pod), deleting: pod.metadata.deletion_timestamp.is_some(), made_ms }
}
