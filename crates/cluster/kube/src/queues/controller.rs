//! The queues controller: its clients, its settings, and its state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cantle_kube_model::queues::admit::queue_of;
use cantle_kube_model::queues::builder::{OWNER_LABEL, PodBuilder};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::events::Recorder;
use kube::runtime::reflector::Store;
use tokio::time::Instant;

use super::logs::Logs;
use super::metrics::{Metrics, known_uid};
use super::quotas::Quotas;
use super::server::Server;
use crate::KubeError;
use crate::leader::Leader;

/// Queues by id, with the tasks that wait in them.
pub(super) type Backlog = BTreeMap<String, Vec<String>>;

/// The controller.
pub(super) struct Controller {
    pub(super) pods: Api<Pod>,
    pub(super) namespace: String,
    pub(super) known: Store<Pod>,
    pub(super) server: Arc<Server>,
    /// Ids of the file's queues.
    pub(super) ids: Vec<String>,
    pub(super) builder: PodBuilder,
    pub(super) leader: Leader,
    pub(super) logs: Logs,
    pub(super) events: Recorder,
    pub(super) image_grace: Duration,
    pub(super) quotas: Quotas,
    pub(super) metrics: Arc<Metrics>,
    pub(super) memory: Memory,
}

/// The state that one turn leaves to the next. All of it may be lost: the next leader has none of it.
#[derive(Default)]
pub(super) struct Memory {
    /// Time of the last check of the Lease, while another replica led.
    pub(super) asked_at: Option<Instant>,
    /// Since it leads it has compared the watch with a list.
    pub(super) is_compared: bool,
    /// Time of the last report to the server that the queues are served.
    pub(super) reported_at: Option<Instant>,
    /// Status messages of tasks about their pods; by uid, as the next two.
    pub(super) messages: BTreeMap<String, String>,
    /// Nothing more is to be done about these; the watch has yet to see that they are gone.
    pub(super) finished: BTreeSet<String>,
    /// Since when a gated pod's task is in no queue.
    pub(super) orphaned_at: BTreeMap<String, Instant>,
    /// Tasks that could not be given a pod, and when.
    pub(super) held_at: BTreeMap<String, Instant>,
}

/// The result of an action.
pub(super) enum ActionResult {
    Nothing,
    /// The task has this status message now.
    Reported(String),
    /// This controller no longer manages the pod.
    Finished,
}

impl Controller {
    /// All pods of this controller, as they are now.
    pub(super) async fn list(&self) -> Result<Vec<Pod>, KubeError> {
        let ours = ListParams::default().labels(&format!("{OWNER_LABEL}={}", self.builder.owner));
        Ok(self.pods.list(&ours).await?.items)
    }

    /// The queue that a pod's task came from.
    pub(super) fn queue_at(&self, pod: &Pod) -> Option<usize> {
        let name = queue_of(pod)?;
        self.builder.file.queues.iter().position(|queue| queue.name == *name)
    }

    /// Is it known that a task cannot be given a pod just now?
    pub(super) fn is_held(&self, task: &str) -> bool {
        self.memory.held_at.contains_key(task)
    }

    /// Remembers the outcomes of actions on pods, by uid.
    pub(super) fn note(&mut self, results: Vec<(Option<String>, Result<ActionResult, KubeError>)>) {
        for (uid, result) in results {
            let uid = known_uid(uid);
            match result {
                Ok(ActionResult::Nothing) => {}
                Ok(ActionResult::Reported(message)) => drop(self.memory.messages.insert(uid, message)),
                Ok(ActionResult::Finished) => {
                    self.logs.forget(&uid);
                    self.memory.finished.insert(uid);
                }
                Err(error) => tracing::warn!(uid, "{error}; trying again"),
            }
        }
    }
}
