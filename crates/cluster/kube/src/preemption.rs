//! Evicts pods for others of higher priority that wait for a slice; see [`cantle_kube_model::nominate::preempt`]. It uses
//! the Eviction API, so PodDisruptionBudgets and the pods' grace periods apply in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, PostParams};
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::KubeError;
use crate::waiting::{Counted, WaitingPods};
use cantle_kube_model::nominate::preempt::{
    DisruptionBudget, PreemptedPod, Preemption, Preemptor, is_asked, is_to_wait, priority,
};
use cantle_kube_model::nominate::{Nomination, Nominator};

/// A pod that was evicted is seen to end after this at the latest.
const LATE: Duration = Duration::from_secs(5);
/// Length of an event's text in characters: Kubernetes takes 1,024 bytes.
pub(crate) const NOTE_MAX: usize = 500;
/// Pods of lower priority are not held for longer: what is evicted may take as long as it likes.
const HELD: Duration = Duration::from_secs(120);

/// A pod that others have to go for.
struct Preempting {
    priority: i32,
    /// Where.
    node: String,
    began: Instant,
    seen: Instant,
}

pub(crate) struct Evictor {
    client: Client,
    events: Recorder,
    metrics: Arc<WaitingPods>,
    /// When, by their UIDs.
    evicted: BTreeMap<String, Instant>,
    preempting: BTreeMap<String, Preempting>,
}

impl Evictor {
    pub(crate) const fn new(client: Client, events: Recorder, metrics: Arc<WaitingPods>) -> Self {
        Self { client, events, metrics, evicted: BTreeMap::new(), preempting: BTreeMap::new() }
    }

    /// Would the pod take what others have to go for?
    pub(crate) fn keeps_waiting(&self, pod: &Pod, nomination: Option<&Nomination>) -> bool {
        let all = self.preempting.values().filter(|each| each.began.elapsed() < HELD);
        is_to_wait(pod, nomination, all.map(|each| (each.priority, each.node.as_str())))
    }

    /// Evicts the pods that have to stop. Gives why that helps some of the waiting pods in no way,
    /// by their UIDs.
    pub(crate) async fn turn(
        &mut self,
        nominator: &Nominator<'_>,
        placed: &[Arc<Pod>],
        waiting: &[Arc<Pod>],
        made: &BTreeMap<String, Nomination>,
    ) -> BTreeMap<String, &'static str> {
        self.evicted.retain(|_, at| at.elapsed() < LATE);
        let by_uid: BTreeMap<String, &Arc<Pod>> =
            waiting.iter().filter_map(|pod| Some((pod.uid()?, pod))).collect();
        self.preempting.retain(|uid, each| by_uid.contains_key(uid) && each.seen.elapsed() < LATE);
        if !is_asked(nominator.view, placed, waiting) {
            return BTreeMap::new();
        }
        let budgets = match self.budgets().await {
            Ok(budgets) => budgets,
            Err(error) => {
                tracing::warn!("preemption: {error}; trying again");
                return BTreeMap::new();
            }
        };
        let leaving: BTreeSet<String> = self.evicted.keys().cloned().collect();
        let decided = Preemptor::new(nominator, placed, &budgets, &leaving).decide(waiting, made);
        let mut in_vain = BTreeMap::new();
        for (uid, preemption) in decided {
            let Some(pod) = by_uid.get(&uid) else { continue };
            match preemption {
                Preemption::Evict { reason, node, victims } => {
                    self.note(uid, pod, &node);
                    if let Err(error) = self.evict(pod, &reason, &node, &victims).await {
                        tracing::warn!("preemption: {}: {error}; trying again", pod.name_any());
                    }
                }
                Preemption::Awaited { node } => self.note(uid, pod, &node),
                Preemption::Protected => {
                    in_vain.insert(uid, "PodDisruptionBudgets protect the pods of lower priority");
                }
                Preemption::InVain => {
                    in_vain.insert(uid, "pods of lower priority have too little on every node");
                }
            }
        }
        in_vain
    }

    fn note(&mut self, uid: String, pod: &Pod, node: &str) {
        let (priority, node, now) = (priority(pod), node.to_owned(), Instant::now());
        let began = self.preempting.get(&uid).map_or(now, |known| known.began);
        self.preempting.insert(uid, Preempting { priority, node, began, seen: now });
    }

    async fn budgets(&self) -> Result<Vec<DisruptionBudget>, KubeError> {
        let all = Api::<PodDisruptionBudget>::all(self.client.clone()).list(&ListParams::default()).await?;
        Ok(all.iter().map(DisruptionBudget::of).collect())
    }

    async fn evict(
        &mut self,
        pod: &Pod,
        reason: &str,
        node: &str,
        victims: &[PreemptedPod],
    ) -> Result<(), KubeError> {
        let by = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
        for victim in victims {
            let PreemptedPod { uid, namespace, name, priority: its } = victim;
            let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
            // Another one may have its name.
            let precondition = json!({"preconditions": {"uid": uid}});
            let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": precondition});
            let params = PostParams::default();
            match api.create_subresource::<Value, Value>("eviction", name, &params, &eviction).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(error.into()),
            }
            tracing::info!(pod = format!("{namespace}/{name}"), by, node, "evicted: {reason}");
            self.evicted.insert(uid.clone(), Instant::now());
            self.metrics.count(Counted::Evicted);
            let for_it = format!("by {by} (priority {}), which {reason}", priority(pod));
            self.say("Preempted", for_it, pod_reference(victim), pod.object_ref(&())).await;
            let of_it = format!("{reason}; evicted {namespace}/{name} (priority {its}) from node {node}");
            self.say("Preempting", of_it, pod.object_ref(&()), pod_reference(victim)).await;
        }
        Ok(())
    }

    async fn say(&self, reason: &str, note: String, on: ObjectReference, other: ObjectReference) {
        let event = Event {
            type_: EventType::Normal,
            reason: reason.to_owned(),
            note: Some(note.chars().take(NOTE_MAX).collect()),
            action: "Preempting".to_owned(),
            secondary: Some(other),
        };
        if let Err(error) = self.events.publish(&event, &on).await {
            tracing::warn!("preemption: an event could not be written: {error}");
        }
    }
}

fn pod_reference(victim: &PreemptedPod) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(victim.name.clone()),
        namespace: Some(victim.namespace.clone()),
        uid: Some(victim.uid.clone()),
        ..ObjectReference::default()
    }
}
