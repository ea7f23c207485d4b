//! `cantle controller node`: the driver of one node, until it is told to stop.

use std::path::PathBuf;
use std::time::Duration;

use cantle_agent::{Grants, MigAtStart};
use cantle_driver::Source;
use cantle_model::GpuList;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::driver::Driver;
use super::plugin::serve;
use super::publish::Publisher;
use crate::names::{PARTITIONING, PARTITIONING_MIG};
use crate::{KubeError, Version, server_version};

/// How often the GPUs are asked whether they are as published.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often it is looked at what pods hold.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// How often claims are looked for that are gone.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// An API server that does not answer is asked again in so long.
const AGAIN: Duration = Duration::from_secs(1);

/// What the driver of a node has to know.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the node in the cluster.
    pub node: String,
    /// Where the GPUs come from.
    pub source: Source,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// The kubelet's folder, usually `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Where the container engine reads CDI specs, usually `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// GPUs to put into MIG mode at the start. Without a list the node's label says it, as with ClearML's operator.
    pub mig: Option<GpuList>,
}

/// Serves until `stop` is set. Pods go on with their slices, and the next driver finds them.
///
/// # Errors
/// If it can't start, or the cluster does not have what it needs.
pub async fn run(client: Client, config: NodeConfig, stop: watch::Receiver<bool>) -> Result<(), KubeError> {
    let version = server_version(&client).await?;
    if version < Version::FLOOR {
        return Err(KubeError::TooOld { found: version });
    }
    if version < Version::MIXED {
        tracing::warn!(%version, needs = %Version::MIXED, "each GPU is published as one kind of device only");
    }
    let grants = config.open(&client).await?;
    let NodeConfig { node, kubelet_dir, cdi_dir, .. } = config;
    let driver = Driver::new(client.clone(), &node, version, cdi_dir, grants);
    let publisher = Publisher::new(&client, &node);
    // What can't be published at all is an error of the start; later ones pass.
    publisher.publish(&driver.inventory().await?).await?;
    tokio::select! {
        served = serve(driver.clone(), &kubelet_dir, stop) => served,
        never = keep_published(&driver, &publisher) => match never {},
        never = keep_watch(&driver) => match never {},
        never = keep_swept(&driver) => match never {},
    }
}

impl NodeConfig {
    /// Takes the node's GPUs.
    ///
    /// # Errors
    /// If there are none, or another agent has them.
    pub(crate) async fn open(&self, client: &Client) -> Result<Grants, KubeError> {
        let mig = match &self.mig {
            Some(list) => MigAtStart::Listed(list.clone()),
            None => labelled(client, &self.node).await?,
        };
        let Self { node, source, lib_dir, .. } = self.clone();
        let opened = tokio::task::spawn_blocking(move || Grants::open(&source, &lib_dir, &node, &mig)).await;
        Ok(opened.map_err(|panicked| KubeError::Lost(panicked.to_string()))??)
    }
}

/// What the label of the node says about its GPUs.
async fn labelled(client: &Client, node: &str) -> Result<MigAtStart, KubeError> {
    let node = Api::<Node>::all(client.clone()).get(node).await?;
    let is_mig = node.labels().get(PARTITIONING).is_some_and(|value| value == PARTITIONING_MIG);
    Ok(if is_mig { MigAtStart::AllThatCan } else { MigAtStart::AsTheyAre })
}

/// After every change of the slices at the API server, and of the GPUs.
async fn keep_published(driver: &Driver, publisher: &Publisher) -> std::convert::Infallible {
    let mut changes = std::pin::pin!(publisher.changes());
    let mut look = interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut published = None;
    loop {
        let changed = tokio::select! {
            change = changes.next() => {
                if !matches!(change, Some(Ok(_))) {
                    sleep(AGAIN).await;
                }
                true
            }
            _ = look.tick() => false,
        };
        let inventory = match driver.inventory().await {
            Ok(inventory) => inventory,
            Err(error) => {
                tracing::error!(%error, "what is published stays as it is");
                continue;
            }
        };
        if !changed && published.as_ref() == Some(&inventory) {
            continue;
        }
        match publisher.publish(&inventory).await {
            Ok(()) => published = Some(inventory),
            Err(error) => {
                tracing::warn!(%error, "not published; trying again");
                published = None;
            }
        }
    }
}

async fn keep_watch(driver: &Driver) -> std::convert::Infallible {
    let mut look = interval(WATCH_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        driver.watch().await;
    }
}

async fn keep_swept(driver: &Driver) -> std::convert::Infallible {
    let mut look = interval(SWEEP_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if let Err(error) = driver.sweep().await {
            tracing::warn!(%error, "claims are looked through later");
        }
    }
}
