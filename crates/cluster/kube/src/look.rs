//! Reads the GPUs of a cluster once, without a cantle server: one list of each kind of object.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::ListParams;
use kube::{Api, Client};

use crate::KubeError;
use crate::version::serves_claims;
use cantle_kube_model::classic::record::NodeRecord;
use cantle_kube_model::classic::wire::slice_of_pod;
use cantle_kube_model::cluster::ClusterView;
use cantle_kube_model::cluster::report::{self, GpuReport, NamespaceReport, PodReport};
use cantle_kube_model::gpu_quota;

/// A cluster at one moment.
#[derive(Debug)]
pub struct ClusterReport {
    view: ClusterView,
    nodes: Vec<Node>,
    pods: Vec<Pod>,
    quotas: Vec<ResourceQuota>,
    namespace: String,
}

impl ClusterReport {
    /// Of the cluster as it is now.
    ///
    /// # Errors
    /// If the API server does not answer, or this user may not list nodes, pods, resource slices, claims and quotas.
    pub async fn read(client: &Client) -> Result<Self, KubeError> {
        let all = ListParams::default();
        let nodes = Api::<Node>::all(client.clone()).list(&all).await?.items;
        let pods = Api::<Pod>::all(client.clone()).list(&all).await?.items;
        let quotas = Api::<ResourceQuota>::all(client.clone()).list(&all).await?.items;
        let (slices, claims) = if serves_claims(client).await? {
            let slices = Api::<ResourceSlice>::all(client.clone()).list(&all).await?.items;
            (slices, Api::<ResourceClaim>::all(client.clone()).list(&all).await?.items)
        } else {
            Default::default()
        };
        let view = ClusterView::of(&nodes, &slices, &claims, &report::placed(&pods))?;
        Ok(Self { view, nodes, pods, quotas, namespace: client.default_namespace().to_owned() })
    }

    /// All GPUs, by node and index.
    #[must_use]
    pub fn gpus(&self) -> Vec<GpuReport> {
        report::gpus(&self.view)
    }

    /// All namespaces whose pods have slices or wait for some.
    #[must_use]
    pub fn namespaces(&self) -> Vec<NamespaceReport> {
        report::namespaces(&self.view, &self.pods, &self.quotas)
    }

    /// Why a pod waits, or what it has; none if there is no such pod. `name` is `namespace/pod`, or a pod of the kubeconfig's
    /// namespace.
    #[must_use]
    pub fn pod(&self, name: &str) -> Option<PodReport> {
        let (namespace, name) = name.split_once('/').unwrap_or((&self.namespace, name));
        let is_it = |pod: &&Pod| {
            pod.metadata.name.as_deref() == Some(name) && pod.metadata.namespace.as_deref() == Some(namespace)
        };
        let pod = self.pods.iter().find(is_it)?;
        let beyond = self.beyond(namespace, pod);
        Some(report::pod(&self.view, &self.nodes, &self.pods, pod, beyond.as_deref()))
    }

    /// The quota that keeps a pod waiting.
    fn beyond(&self, namespace: &str, pod: &Pod) -> Option<String> {
        let uid = pod.metadata.uid.as_deref()?;
        if !self.view.is_classic {
            let no_one = BTreeSet::new();
            return gpu_quota::beyond(&self.view, &self.quotas, &self.pods, &no_one).remove(uid);
        }
        gpu_quota::refusal(
            &NodeRecord::all(&self.nodes),
            &self.quotas,
            namespace,
            uid,
            &slice_of_pod(pod).ok()?,
        )
    }
}
