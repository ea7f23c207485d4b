//! `cantle controller node --path classic`: the device plugin of one node, until it is stopped.

use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cantle_node::AllocatableGpus;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::manager::Manager;
use super::plugin::{SlotHealth, serve};
use crate::node::{
    GpuObjects, LOOK_EVERY, Label, Metrics, blocking, keep_containers, keep_gpu_objects, keep_partitioned,
    keep_watch, ticks,
};
use crate::{KubeError, NodeConfig, Version, server_version};

/// The longest time until an end is detected; usually the watch shows it at once.
const SETTLE_EVERY: Duration = Duration::from_secs(5);
/// After the end of one pod more often follow.
const TOGETHER: Duration = Duration::from_millis(200);

/// The settings of the device plugin, in addition to those of every node.
#[derive(Clone, Debug)]
pub struct PluginConfig {
    /// Directory of the kubelet's plugins.
    pub dir: PathBuf,
    /// NVIDIA's device plugin allocates the GPUs: slices only where a pod of cantle's has one.
    pub reservation: bool,
}

/// Serves until `stop` is set. Pods keep their slices, and the next plugin finds them.
///
/// # Errors
/// If it cannot start, or the cluster does not have what it needs.
pub async fn run(
    client: Client,
    config: NodeConfig,
    plugin: PluginConfig,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeError> {
    let version = server_version(&client).await?;
    if version < Version::CLASSIC {
        return Err(KubeError::TooOldForClassic { found: version });
    }
    let grants = config.open(&client).await?;
    let metrics = Arc::new(Metrics::new(Arc::clone(&grants), &config.node));
    let _shown = config.show(&metrics)?;
    let label = Label::of(&client, &config);
    let mut objects = GpuObjects::of(&client, &config, version);
    let manager =
        Manager::new(client.clone(), &config, Arc::clone(&grants), Arc::clone(&metrics), plugin.reservation);
    let manager = Arc::new(manager);
    // A failure of the first publication is an error of the start; later ones are retried.
    let published = manager.publish().await?;
    let (health, receiver) =
        watch::channel(SlotHealth { has_gpus: published.has_gpus, ..SlotHealth::default() });
    let served = tokio::select! {
        served = serve(Arc::clone(&manager), receiver, &plugin.dir, stop) => served,
        never = keep_published(&manager, &health) => match never {},
        never = keep_watch(&grants) => match never {},
        never = keep_containers(metrics, config.kubelet_dir.clone()) => match never {},
        never = keep_partitioned(label, async || turn_mig_on(&grants).await) => match never {},
        never = keep_settled(&manager, client, &config.node) => match never {},
        never = keep_gpu_objects(objects.as_mut(), async || manager.held().await) => match never {},
    };
    if let Some(objects) = &objects {
        objects.remove().await;
    }
    served
}

async fn turn_mig_on(grants: &Arc<AllocatableGpus>) -> Result<(), KubeError> {
    blocking(grants, |grants| Ok(grants.turn_mig_on()?)).await
}

async fn keep_published(manager: &Manager, health: &watch::Sender<SlotHealth>) -> Infallible {
    let mut look = ticks(LOOK_EVERY);
    loop {
        look.tick().await;
        match publish(manager).await {
            Ok(now) => drop(health.send_if_modified(|known| std::mem::replace(known, now.clone()) != now)),
            Err(error) => tracing::warn!(%error, "the published devices do not change"),
        }
    }
}

async fn publish(manager: &Manager) -> Result<SlotHealth, KubeError> {
    let published = manager.publish().await?;
    Ok(SlotHealth { has_gpus: published.has_gpus, lost: manager.slots_of(&published.lost_pods).await? })
}

/// After every change of a pod here, and now and then.
async fn keep_settled(manager: &Manager, client: Client, node: &str) -> Infallible {
    let here = watcher::Config::default().fields(&format!("spec.nodeName={node}"));
    let pods: Api<PartialObjectMeta<Pod>> = Api::all(client);
    let mut changes = pin!(watcher(pods, here));
    loop {
        if let Ok(Some(Err(error))) = timeout(SETTLE_EVERY, changes.next()).await {
            tracing::warn!("watching pods: {error}");
        }
        sleep(TOGETHER).await;
        if let Err(error) = manager.settle().await {
            tracing::warn!(%error, "ended pods are checked again later");
        }
    }
}
