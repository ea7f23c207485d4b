//! What both paths do on a node: take its GPUs, work with them, watch what pods hold.

mod label;
mod metrics;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_driver::Installation;
use cantle_kube_model::SliceDecision;
use cantle_model::GpuList;
use cantle_node::{AllocatableGpus, Allocation, LOOK_INTERVAL, MigAtStart, SlicePlacement};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::observe::show;
use crate::{KubeError, listen};
use label::is_for_mig;
pub(crate) use label::{Label, keep_partitioned};
pub(crate) use metrics::Metrics;

/// How often the GPUs are asked whether they are as published.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What the driver of a node has to know.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the node in the cluster.
    pub node: String,
    /// Where the GPUs come from.
    pub installation: Installation,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// Where copies of the driver's files are made for pods, at the same path here and on the node. Without it pods get the files
    /// from where they are for this process.
    pub driver_files_dir: Option<PathBuf>,
    /// The kubelet's directory, usually `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Where the container engine reads CDI specs, usually `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// GPUs to put into MIG mode at the start. Without a list the node's label says it, as with ClearML's operator, and may do so
    /// at any time.
    pub mig: Option<GpuList>,
    /// Where `/healthz`, `/readyz` and `/metrics` are; nowhere without it.
    pub observe: Option<SocketAddr>,
}

impl NodeConfig {
    /// Takes the node's GPUs.
    ///
    /// # Errors
    /// If there are none, or another agent has them.
    pub(crate) async fn open(&self, client: &Client) -> Result<Arc<AllocatableGpus>, KubeError> {
        let mig = match &self.mig {
            Some(list) => MigAtStart::Listed(list.clone()),
            None => labeled(client, &self.node).await?,
        };
        let Self { node, installation, lib_dir, driver_files_dir, .. } = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            AllocatableGpus::open(&installation, &lib_dir, driver_files_dir.as_deref(), &node, &mig)
        });
        let opened = opened.await;
        Ok(Arc::new(opened.map_err(|panicked| KubeError::Lost(panicked.to_string()))??))
    }

    /// Shows what the driver counts, until what this gives is dropped.
    ///
    /// # Errors
    /// If the address can't be had.
    pub(crate) fn show(&self, metrics: &Arc<Metrics>) -> Result<JoinSet<()>, KubeError> {
        let mut shown = JoinSet::new();
        if let Some(at) = self.observe {
            shown.spawn(show(listen(at)?, Arc::clone(metrics)));
        }
        Ok(shown)
    }
}

/// What the label of the node says about its GPUs.
async fn labeled(client: &Client, node: &str) -> Result<MigAtStart, KubeError> {
    let node = Api::<Node>::all(client.clone()).get(node).await?;
    Ok(if is_for_mig(&node) { MigAtStart::AllThatCan } else { MigAtStart::AsTheyAre })
}

/// A decision, in the words of what carries it out.
pub(crate) fn allocation(decision: &SliceDecision) -> Allocation {
    let SliceDecision { lease, task, name, request, gpus } = decision.clone();
    let placements = gpus.into_iter().map(|gpu| SlicePlacement { gpu: gpu.gpu, start: gpu.start }).collect();
    Allocation { lease, task, name, request, placements }
}

/// Work with the GPUs, on a thread of its own: those that answer calls must not wait.
pub(crate) async fn blocking<T: Send + 'static>(
    grants: &Arc<AllocatableGpus>,
    work: impl FnOnce(&AllocatableGpus) -> Result<T, KubeError> + Send + 'static,
) -> Result<T, KubeError> {
    let grants = Arc::clone(grants);
    let done = tokio::task::spawn_blocking(move || work(&grants)).await;
    done.unwrap_or_else(|panicked| Err(KubeError::Lost(panicked.to_string())))
}

/// Watches what the pods really hold, without end.
pub(crate) async fn keep_watch(grants: &Arc<AllocatableGpus>) -> Infallible {
    let mut look = ticks(LOOK_INTERVAL);
    loop {
        look.tick().await;
        let found = blocking(grants, |grants| Ok(grants.watch())).await.unwrap_or_default();
        for (lease, what) in found {
            tracing::warn!(pod = lease.name, "{what}");
        }
    }
}

/// Ticks that wait for whoever comes late.
pub(crate) fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
