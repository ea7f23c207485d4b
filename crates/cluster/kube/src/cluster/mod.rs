//! The GPUs of a cluster, kept up to date by watching it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::KubeError;

use crate::version::serves_claims;
use crate::watched::follow;
use cantle_kube_model::cluster::ClusterView;
use cantle_kube_model::names::{CLASS_WHOLE, DRIVER, GPU_RESOURCE};

/// Limit of the time until the first list.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Pods that have a place and are not over: they hold what a device plugin gives.
const PLACED: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// The API server's objects about GPUs.
pub(crate) struct Watched {
    nodes: Store<Node>,
    pods: Store<Pod>,
    /// Set where the cluster serves claims on devices.
    claims: Option<(Store<ResourceSlice>, Store<ResourceClaim>)>,
    /// As it was at the start.
    gpu_is_claimed: bool,
    /// Ends with this.
    _background: JoinSet<()>,
}

impl Watched {
    /// Begins to watch.
    ///
    /// # Errors
    /// If the API server does not list its resources.
    pub(crate) async fn begin(client: &Client) -> Result<Self, KubeError> {
        let mut background = JoinSet::new();
        let all = Config::default;
        let nodes = |node: &mut Node| {
            node.metadata.managed_fields = None;
            node.status.iter_mut().for_each(|status| status.images = None);
        };
        let nodes = follow(&mut background, Api::all(client.clone()), all(), nodes, |_| {});
        let pods = follow(&mut background, Api::all(client.clone()), all().fields(PLACED), strip, |_| {});
        let has_claims = serves_claims(client).await?;
        let gpu_is_claimed = has_claims && is_gpu_claimed(client).await?;
        let claims = if has_claims {
            let ours = all().fields(&format!("spec.driver={DRIVER}"));
            let slices = |slice: &mut ResourceSlice| slice.metadata.managed_fields = None;
            let slices = follow(&mut background, Api::all(client.clone()), ours, slices, |_| {});
            let claims = |claim: &mut ResourceClaim| claim.metadata.managed_fields = None;
            let claims = follow(&mut background, Api::all(client.clone()), all(), claims, |_| {});
            Some((slices, claims))
        } else {
            None
        };
        Ok(Self { nodes, pods, claims, gpu_is_claimed, _background: background })
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes.state()
    }

    /// Pods that have a place and are not over.
    pub(crate) fn placed(&self) -> Vec<Arc<Pod>> {
        self.pods.state()
    }

    /// The devices that nodes publish, and all claims, where the cluster serves them.
    pub(crate) const fn claims(&self) -> Option<&(Store<ResourceSlice>, Store<ResourceClaim>)> {
        self.claims.as_ref()
    }

    /// As it is now.
    ///
    /// # Errors
    /// [`KubeError::Unseen`] if it cannot be read.
    pub(crate) async fn view(&self) -> Result<ClusterView, KubeError> {
        let ready = async {
            self.nodes.wait_until_ready().await?;
            self.pods.wait_until_ready().await?;
            if let Some((slices, claims)) = &self.claims {
                slices.wait_until_ready().await?;
                claims.wait_until_ready().await?;
            }
            Ok::<(), reflector::store::WriterDropped>(())
        };
        if !matches!(timeout(FIRST_LOOK, ready).await, Ok(Ok(()))) {
            return Err(KubeError::Unseen);
        }
        let (slices, claims) =
            self.claims.as_ref().map(|(slices, claims)| (slices.state(), claims.state())).unwrap_or_default();
        let mut view = ClusterView::of(&self.nodes.state(), &slices, &claims, &self.pods.state())?;
        view.gpu_is_claimed = self.gpu_is_claimed;
        Ok(view)
    }
}

async fn is_gpu_claimed(client: &Client) -> Result<bool, KubeError> {
    let class = Api::<DeviceClass>::all(client.clone()).get_opt(CLASS_WHOLE).await?;
    Ok(class.and_then(|class| class.spec.extended_resource_name).is_some_and(|name| name == GPU_RESOURCE))
}

/// Keeps only the slices of a pod that this controller did not create.
pub(crate) fn strip(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    // Its labels are what PodDisruptionBudgets go by.
    pod.metadata.annotations = None;
    pod.status = None;
    let Some(spec) = &mut pod.spec else { return };
    spec.volumes = None;
    spec.init_containers = None;
    for container in &mut spec.containers {
        let (name, resources) = (std::mem::take(&mut container.name), container.resources.take());
        *container = k8s_openapi::api::core::v1::Container { name, resources, ..Default::default() };
    }
}
