//! The steps that both paths share on a node: claim its GPUs, serve them, and watch what pods hold.

mod gpu_objects;
pub(crate) mod kubelet;
mod label;
mod metrics;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use cantle_driver::Installation;
use cantle_kube_model::SliceDecision;
use cantle_kube_model::names::is_fractioned;
use cantle_model::GpuList;
use cantle_node::{AllocatableGpus, Allocation, LOOK_INTERVAL, MigAtStart, NodeError, SlicePlacement};
use cantle_runtime::{MachineRoot, image_hook_trial};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use crate::observe::show;
use crate::{KubeError, listen};
pub(crate) use gpu_objects::{GpuObjects, keep_gpu_objects};
pub(crate) use kubelet::keep_containers;
use label::is_for_mig;
pub(crate) use label::{Label, keep_partitioned};
pub(crate) use metrics::Metrics;

/// A copy of this program, next to the libraries that the node gets from the image.
pub const COVER_PROGRAM: &str = "cantle";

/// Interval of the check that the GPUs are as published.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The settings of a node's driver.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name of the node in the cluster.
    pub node: String,
    /// The source of the GPUs.
    pub installation: Installation,
    /// cantle's libraries (`shim/`, `sim/`).
    pub lib_dir: PathBuf,
    /// Directory for copies of the driver's files for pods, at the same path here and on the node. Without it pods get the
    /// files from where they are for this process.
    pub driver_files_dir: Option<PathBuf>,
    /// The kubelet's directory, usually `/var/lib/kubelet`.
    pub kubelet_dir: PathBuf,
    /// Directory from which the container engine reads CDI specs, usually `/var/run/cdi`.
    pub cdi_dir: PathBuf,
    /// GPUs to put into MIG mode at the start. Without a list, the node's label decides, as with ClearML's operator, and may
    /// change at any time.
    pub mig: Option<GpuList>,
    /// Write an object for each GPU, for `kubectl get gpus.cantle.dev`; the cluster has their definition.
    pub gpu_objects: bool,
    /// Address of `/healthz`, `/readyz` and `/metrics`; none if absent.
    pub observe: Option<SocketAddr>,
}

impl NodeConfig {
    /// Takes the node's GPUs.
    ///
    /// # Errors
    /// If there are none, or another agent or NVIDIA's daemon for fractions has them.
    pub(crate) async fn open(&self, client: &Client) -> Result<Arc<AllocatableGpus>, KubeError> {
        let seen = Api::<Node>::all(client.clone()).get(&self.node).await?;
        if is_fractioned(&seen) {
            return Err(KubeError::Fractioned(self.node.clone()));
        }
        let mig = match &self.mig {
            Some(list) => MigAtStart::Listed(list.clone()),
            None if is_for_mig(&seen) => MigAtStart::AllThatCan,
            None => MigAtStart::AsTheyAre,
        };
        let Self { node, installation, lib_dir, driver_files_dir, .. } = self.clone();
        // The kubelet tells every pod where the API server is.
        let is_pod = driver_files_dir.is_some() || std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let opened = tokio::task::spawn_blocking(move || {
            let opened =
                AllocatableGpus::open(&installation, &lib_dir, driver_files_dir.as_deref(), &node, &mig)?;
            let opened = opened.covering_images(cover_program(&lib_dir));
            let opened = if is_pod {
                opened.mounted_by(MachineRoot::of_engine().map_err(NodeError::NodeUnseen)?)
            } else {
                opened
            };
            // A directory that the pod and the node do not share is wrong from the start, and stays wrong.
            opened.check_files()?;
            Ok::<_, NodeError>(opened)
        });
        let opened = opened.await;
        Ok(Arc::new(opened.map_err(|panicked| KubeError::Lost(panicked.to_string()))??))
    }

    /// Serves the driver's metrics until the returned value is dropped.
    ///
    /// # Errors
    /// If the address is not available.
    pub(crate) fn show(&self, metrics: &Arc<Metrics>) -> Result<JoinSet<()>, KubeError> {
        let mut shown = JoinSet::new();
        if let Some(at) = self.observe {
            shown.spawn(show(listen(at)?, Arc::clone(metrics)));
        }
        Ok(shown)
    }
}

/// The program next to the libraries, which this process and the node have under one path, if the node can run it. It covers
/// what images have of the driver's libraries.
fn cover_program(lib_dir: &Path) -> Option<PathBuf> {
    let program = lib_dir.join(COVER_PROGRAM);
    if !program.exists() {
        return None;
    }
    let mut on_node = Command::new(&program);
    on_node.args(image_hook_trial());
    match on_node.stdin(Stdio::null()).output() {
        Ok(done) if done.status.success() => return Some(program),
        Ok(done) => {
            let why = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            tracing::warn!(why, "the node cannot run cantle: images with their own libcuda are not covered");
        }
        Err(why) => {
            tracing::warn!(%why, "images with their own libcuda are not covered");
        }
    }
    None
}

/// A decision, in the words of what carries it out.
pub(crate) fn allocation(decision: &SliceDecision) -> Allocation {
    let SliceDecision { lease, task, name, request, compute, gpus } = decision.clone();
    let placements =
        gpus.into_iter().map(|gpu| SlicePlacement { gpu: gpu.gpu, allocated: gpu.allocated }).collect();
    Allocation { lease, task, name, request, compute, placements }
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
        let found = blocking(grants, |grants| Ok(grants.watch())).await.unwrap_or_else(|error| {
            tracing::error!(%error, "what the pods hold is not watched now");
            Vec::new()
        });
        for (lease, what) in found {
            tracing::warn!(pod = lease.name, "{what}");
        }
    }
}

/// Ticks that are kept for a receiver that is late.
pub(crate) fn ticks(every: Duration) -> Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
