//! The label that makes a node's GPUs serve MIG instances.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::time::sleep;

use super::{LOOK_EVERY, NodeConfig, ticks};
use crate::KubeError;
use cantle_kube_model::names::{PARTITIONING, PARTITIONING_MIG};

/// Wait before an API server that did not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// The label of a node, as it changes.
pub(crate) struct Label(Api<PartialObjectMeta<Node>>, watcher::Config);

impl Label {
    /// `None` where a list of GPUs decides instead.
    pub(crate) fn of(client: &Client, config: &NodeConfig) -> Option<Self> {
        let this = watcher::Config::default().fields(&format!("metadata.name={}", config.node));
        config.mig.is_none().then(|| Self(Api::all(client.clone()), this))
    }
}

/// Are the node's GPUs to serve MIG instances?
pub(super) fn is_for_mig(node: &impl ResourceExt) -> bool {
    node.labels().get(PARTITIONING).is_some_and(|value| value == PARTITIONING_MIG)
}

/// Makes GPUs serve MIG instances once the node has the label. Those with slices follow when they have none any more, so it
/// is tried again and again. Without the label they stay as they are, and from Hopper on serve any pod.
pub(crate) async fn keep_partitioned(
    label: Option<Label>,
    turn_mig_on: impl AsyncFn() -> Result<(), KubeError>,
) -> Infallible {
    let Some(Label(nodes, this)) = label else { return pending().await };
    let mut changes = pin!(watcher(nodes, this).touched_objects());
    let mut look = ticks(LOOK_EVERY);
    let mut is_wanted = false;
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(node)) => is_wanted = is_for_mig(&node),
                _ => sleep(AGAIN).await,
            },
            _ = look.tick() => {}
        }
        if is_wanted && let Err(error) = turn_mig_on().await {
            tracing::warn!(%error, "GPUs keep their mode");
        }
    }
}
