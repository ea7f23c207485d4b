//! `cantle controller node`: the driver of one node, until it is stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cantle_decide::Offer;
use cantle_kube_model::dra::devices::Inventory;
use cantle_model::Lease;
use cantle_node::AllocatableGpus;
use futures_util::StreamExt as _;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::driver::Driver;
use super::plugin::serve;
use super::publish::Publisher;
use crate::node::{
    GpuObjects, LOOK_EVERY, Label, Metrics, blocking, keep_containers, keep_gpu_objects, keep_partitioned,
    keep_watch, ticks,
};
use crate::{KubeError, NodeConfig, Version, server_version};

/// Interval of the search for deleted claims.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Interval of a comparison with what the API server has: a restored one reports no change.
const COMPARE_EVERY: Duration = Duration::from_secs(300);
/// Foreign use that lasts this long keeps new pods away.
const FOREIGN_LASTS: Duration = Duration::from_secs(4);
/// Wait before an API server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Serves until `stop` is set. Pods keep their slices, and the next driver finds them.
///
/// # Errors
/// If it cannot start, or the cluster does not have what it needs.
pub async fn run(client: Client, config: NodeConfig, stop: watch::Receiver<bool>) -> Result<(), KubeError> {
    let version = server_version(&client).await?;
    if version < Version::FLOOR {
        return Err(KubeError::TooOld { found: version });
    }
    if version < Version::MIXED {
        tracing::warn!(%version, needs = %Version::MIXED, "each GPU is published as one kind of device only");
    }
    let grants = config.open(&client).await?;
    let metrics = Arc::new(Metrics::new(Arc::clone(&grants), &config.node));
    let _shown = config.show(&metrics)?;
    let label = Label::of(&client, &config);
    let mut objects = GpuObjects::of(&client, &config, version);
    let NodeConfig { node, kubelet_dir, cdi_dir, .. } = config;
    let driver =
        Driver::new(client.clone(), &node, version, cdi_dir, Arc::clone(&grants), Arc::clone(&metrics));
    let publisher = Publisher::new(&client, &node);
    // A failure of the first publication is an error of the start; later ones are retried.
    publisher.publish(&driver.inventory().await?).await?;
    let served = tokio::select! {
        served = serve(driver.clone(), &kubelet_dir, stop) => served,
        never = keep_published(&driver, &publisher) => match never {},
        never = keep_watch(&grants) => match never {},
        never = keep_containers(metrics, kubelet_dir.clone()) => match never {},
        never = keep_swept(&driver) => match never {},
        never = keep_partitioned(label, async || driver.turn_mig_on().await) => match never {},
        never = keep_gpu_objects(objects.as_mut(), async || held(&grants).await) => match never {},
    };
    if let Some(objects) = &objects {
        objects.remove().await;
    }
    served
}

/// The GPUs, and the slices on them.
async fn held(grants: &Arc<AllocatableGpus>) -> Result<(Vec<Offer>, Vec<Lease>), KubeError> {
    blocking(grants, |grants| Ok((grants.offers()?, grants.active()?))).await
}

/// After every change of the slices at the API server, and of the GPUs.
async fn keep_published(driver: &Driver, publisher: &Publisher) -> Infallible {
    let mut changes = pin!(publisher.changes());
    let mut look = ticks(LOOK_EVERY);
    let mut published = None;
    let mut foreign_since = BTreeMap::new();
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
            Ok(inventory) => lasting(inventory, &mut foreign_since),
            Err(error) => {
                tracing::error!(%error, "the published devices do not change");
                continue;
            }
        };
        let is_known = published.as_ref().is_some_and(|(at, known): &(Instant, Inventory)| {
            *known == inventory && at.elapsed() < COMPARE_EVERY
        });
        if !changed && is_known {
            continue;
        }
        match publisher.publish(&inventory).await {
            Ok(()) => published = Some((Instant::now(), inventory)),
            Err(error) => {
                tracing::warn!(%error, "not published; trying again");
                published = None;
            }
        }
    }
}

/// Without the marks of foreign use that has just begun: it may be a pod's last moment.
fn lasting(mut inventory: Inventory, since: &mut BTreeMap<u32, Instant>) -> Inventory {
    let foreign: BTreeSet<u32> =
        inventory.devices.iter().filter(|device| device.foreign).map(|device| device.index).collect();
    since.retain(|index, _| foreign.contains(index));
    for index in &foreign {
        since.entry(*index).or_insert_with(Instant::now);
    }
    for device in inventory.devices.iter_mut().filter(|device| device.foreign) {
        device.foreign = since.get(&device.index).is_some_and(|at| at.elapsed() >= FOREIGN_LASTS);
    }
    inventory
}

async fn keep_swept(driver: &Driver) -> Infallible {
    let mut look = ticks(SWEEP_EVERY);
    loop {
        look.tick().await;
        if let Err(error) = driver.sweep().await {
            tracing::warn!(%error, "claims are checked again later");
        }
    }
}
