//! Places a pod, then binds it. If the GPU has to be reserved first, this happens after the reservation.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use super::changes::Changes;
use super::quota::Quotas;
use super::record::change;
use super::reserve::Reserver;
use crate::KubeError;
use cantle_kube_model::SliceName;
use cantle_kube_model::classic::record::NodeRecord;
use cantle_kube_model::classic::reserve::{Placed, place};
use cantle_kube_model::classic::wire::{ExtenderBindingArgs, slice_of_pod};

/// The chart lets the scheduler wait for 10 s; when it has given up it asks again, and finds what was reserved meanwhile.
const RESERVED_WITHIN: Duration = Duration::from_secs(8);

/// Binds pods.
#[derive(Clone)]
pub(super) struct Binder {
    pub(super) client: Client,
    pub(super) nodes: Store<Node>,
    /// None where no node is expected to need it.
    pub(super) reserver: Option<Reserver>,
    pub(super) quotas: Quotas,
    pub(super) changes: Changes,
    /// Of those that wait here for the same GPU one writes at a time: it would be refused otherwise, and write again.
    pub(super) turn: Arc<Mutex<()>>,
}

/// A pod that is to be placed.
struct Wish<'a> {
    uid: &'a str,
    full: String,
    slice_name: SliceName,
}

impl Wish<'_> {
    fn wrong(&self, why: String) -> KubeError {
        KubeError::Slice { pod: self.full.clone(), why }
    }

    fn place(&self, record: &mut NodeRecord) -> Result<Placed, KubeError> {
        let now_ms = Timestamp::now().as_millisecond();
        place(record, self.uid, &self.full, &self.slice_name, now_ms).map_err(|why| self.wrong(why))
    }
}

impl Binder {
    /// The known state of a node.
    pub(super) fn record(&self, name: &str) -> Result<NodeRecord, String> {
        let node = self.nodes.get(&ObjectRef::new(name)).ok_or("it is not known yet")?;
        NodeRecord::of(&node).map_err(|error| error.to_string())
    }

    /// A step that fails in between is repeated: the place is the pod's already.
    pub(super) async fn bind(&self, asked: &ExtenderBindingArgs) -> Result<(), KubeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &asked.namespace);
        let pod = pods.get(&asked.name).await?;
        let full = format!("{}/{}", asked.namespace, asked.name);
        let wrong = |why: String| KubeError::Slice { pod: full.clone(), why };
        if pod.uid().as_deref() != Some(asked.uid.as_str()) {
            return Err(wrong("it was deleted and created again".to_owned()));
        }
        let slice_name = slice_of_pod(&pod).map_err(wrong)?;
        let turn = self.quotas.turn(&asked.namespace).await;
        if let Some(why) = self.quotas.refusal(&asked.namespace, &asked.uid, &slice_name) {
            return Err(wrong(why));
        }
        let wish = Wish { uid: &asked.uid, slice_name, full: full.clone() };
        self.put(&wish, &asked.node).await?;
        if turn.is_some() {
            // The next pod of the namespace counts it.
            self.until_known(&wish, &asked.node).await?;
        }
        drop(turn);
        let binding = json!({
            "metadata": {"name": asked.name, "namespace": asked.namespace, "uid": asked.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
        });
        // If this fails, the node itself takes the place back, once it is sure that the pod is not there.
        let post = PostParams::default();
        pods.create_subresource::<_, Value>("binding", &asked.name, &post, &binding).await?;
        tracing::info!(pod = full, node = asked.node, slice_name = %wish.slice_name, "placed");
        Ok(())
    }

    /// Writes the pod's place into the node.
    async fn put(&self, wish: &Wish<'_>, node: &str) -> Result<(), KubeError> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let end = Instant::now() + RESERVED_WITHIN;
        let mut changes = self.changes.clone();
        loop {
            let turn = self.turn.lock().await;
            let place = |record: &mut NodeRecord| match wish.place(record)? {
                Placed::Asked if self.reserver.is_none() => Err(wish.wrong(nobody_reserves(node))),
                placed => Ok(placed),
            };
            let placed = change(&nodes, node, place).await?;
            drop(turn);
            if placed == Placed::Here {
                return Ok(());
            }
            while !self.is_worth_a_try(wish, node) {
                if timeout_at(end, changes.next()).await.is_err() {
                    return Err(wish.wrong(self.why_not_yet(node)));
                }
            }
        }
    }

    /// Until the watch of nodes shows the placement.
    async fn until_known(&self, wish: &Wish<'_>, node: &str) -> Result<(), KubeError> {
        let end = Instant::now() + RESERVED_WITHIN;
        let mut changes = self.changes.clone();
        let is_known = || self.record(node).is_ok_and(|record| record.placements.contains_key(wish.uid));
        while !is_known() {
            let late = |_| wish.wrong(format!("the API server does not show what was placed on {node}"));
            timeout_at(end, changes.next()).await.map_err(late)?;
        }
        Ok(())
    }

    /// Would it be placed now, or request more GPUs, as far as is known here?
    fn is_worth_a_try(&self, wish: &Wish<'_>, node: &str) -> bool {
        let Ok(known) = self.record(node) else { return false };
        let mut record = known.clone();
        !matches!(wish.place(&mut record), Ok(Placed::Asked)) || record != known
    }

    fn why_not_yet(&self, node: &str) -> String {
        match (&self.reserver, self.record(node)) {
            (Some(reserver), Ok(record)) => reserver.why_not_yet(node, &record),
            (_, Err(why)) => why,
            (None, Ok(_)) => "a GPU is to be reserved for it first".to_owned(),
        }
    }
}

fn nobody_reserves(node: &str) -> String {
    format!(
        "the GPUs of {node} are NVIDIA's device plugin's to give: start the extender with --reservation-image"
    )
}
