//! Turns tasks in ClearML's queues into pods. docs/adr/0008 states what holds at each point where the controller may
//! die.

mod act;
mod controller;
mod logs;
mod metrics;
mod quotas;
mod round;
mod server;
#[cfg(test)]
mod tests;

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use cantle_clearml::Client as ClearMl;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use cantle_kube_model::queues::builder::ServerKeys;
pub use cantle_kube_model::queues::{QueueConfig, QueueFile, QueueFileError};

use crate::KubeError;
use crate::leader::Leader;
use crate::node::ticks;
use crate::observe::show;
use crate::watched::follow;
use act::MANAGER;
use cantle_kube_model::queues::builder::{OWNER_LABEL, PodBuilder, ServerAccess};
use controller::{Controller, Memory};
use logs::Logs;
use metrics::Metrics;
use quotas::Quotas;
use server::Server;

/// Interval at which the server is asked for waiting tasks and stop requests.
const POLL: Duration = Duration::from_millis(500);
/// Events of one moment are handled together.
const SETTLE: Duration = Duration::from_millis(100);

/// The settings of the controller.
#[derive(Debug)]
pub struct QueueSettings {
    /// The queues, and the templates of their pods.
    pub file: QueueFile,
    /// The server's address, also for tasks unless the file has another for them.
    pub url: String,
    /// The client that calls the server.
    pub client: ClearMl,
    /// The keys of tasks.
    pub task_keys: ServerKeys,
    /// Where pods and the Lease are.
    pub namespace: String,
    /// Name of the Lease and of the worker, and label of the pods: one per set of queues.
    pub name: String,
    /// Tells this replica from the others.
    pub identity: String,
    /// Another replica takes over when the leader has not renewed the Lease for this time.
    pub lease_duration: Duration,
    /// How long a pod may fail to get its image.
    pub image_grace: Duration,
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    pub observers: Option<TcpListener>,
}

/// Serves until `stop` ends.
///
/// # Errors
/// At the start only: a queue that the server does not have. Everything else is logged and tried again.
pub async fn serve_queues(
    client: Client,
    mut settings: QueueSettings,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), KubeError> {
    let mut stop = std::pin::pin!(stop);
    if !settings.file.without_effect.is_empty() {
        let keys = settings.file.without_effect.join(", ");
        tracing::warn!(
            "agentk8sglue: these are settings of ClearML's own agent and change nothing here: {keys}"
        );
    }
    let server = Arc::new(Server { client: settings.client });
    let mut background = JoinSet::new();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &settings.namespace);
    let changed = Arc::new(Notify::new());
    let ours = Config::default().labels(&format!("{OWNER_LABEL}={}", settings.name));
    // The managed fields are half of a pod's size, and nothing here reads them.
    let lean = |pod: &mut Pod| pod.managed_fields_mut().clear();
    let notify = Arc::clone(&changed);
    let known = follow(&mut background, pods.clone(), ours, lean, move |_| notify.notify_one());
    let metrics = Arc::new(Metrics::new(known.clone()));
    if let Some(observers) = settings.observers.take() {
        background.spawn(show(observers, Arc::clone(&metrics)));
    }
    let ids = tokio::select! {
        ids = queue_ids(&server, &settings.file) => ids?,
        () = &mut stop => return Ok(()),
    };
    metrics.ready();
    let (name, namespace) = (settings.name, settings.namespace);
    let reporter = Reporter { controller: MANAGER.to_owned(), instance: Some(settings.identity.clone()) };
    let mut controller = Controller {
        events: Recorder::new(client.clone(), reporter),
        quotas: Quotas::new(client.clone()),
        leader: Leader::new(client, &namespace, name.clone(), settings.identity, settings.lease_duration),
        builder: PodBuilder {
            owner: name,
            file: settings.file,
            access: ServerAccess { url: settings.url, keys: settings.task_keys },
        },
        logs: Logs::new(pods.clone(), Arc::clone(&server)),
        image_grace: settings.image_grace,
        pods,
        namespace,
        known,
        server,
        ids,
        metrics,
        memory: Memory::default(),
    };
    let mut poll = ticks(POLL);
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            () = changed.notified() => sleep(SETTLE).await,
            _ = poll.tick() => {}
        }
        controller.turn().await;
    }
    controller.leave().await;
    Ok(())
}

/// The server may come up later than we do.
async fn queue_ids(server: &Server, file: &QueueFile) -> Result<Vec<String>, KubeError> {
    loop {
        match server.queue_ids(file).await {
            Err(KubeError::Server(error)) if error.is_temporary() => tracing::warn!("{error}; trying again"),
            ids => return ids,
        }
        sleep(Duration::from_secs(2)).await;
    }
}
