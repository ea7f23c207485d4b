//! Asks the kubelet about the pods of its node, through its pod-resources socket.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_kube_model::names::SLICE_RESOURCE;
use cantle_runtime::cdi;
use tonic::transport::{Channel, Endpoint};

use super::{LOOK_EVERY, Metrics, ticks};
use crate::KubeError;

/// Generated from `proto/podresources.proto`.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(crate) mod podresources {
    tonic::include_proto!("v1");
}

use podresources::pod_resources_lister_client::PodResourcesListerClient;
use podresources::{ContainerResources, ListPodResourcesRequest, PodResources};

/// The socket in the kubelet's directory.
const POD_RESOURCES: &str = "pod-resources/kubelet.sock";

/// Names of containers that have a slice, by lease, or by pod (`namespace/name`) where a device plugin gave it out.
pub(crate) type Containers = BTreeMap<String, String>;

pub(crate) async fn channel(path: &Path) -> Result<Channel, KubeError> {
    let failed = |error: tonic::transport::Error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        KubeError::Kubelet { path: path.to_owned(), why }
    };
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

pub(crate) fn refused(path: &Path, status: &tonic::Status) -> KubeError {
    KubeError::Kubelet { path: path.to_owned(), why: status.message().to_owned() }
}

/// The socket of the kubelet whose directory is `dir`, and a client of it.
pub(crate) async fn lister(dir: &Path) -> Result<(PathBuf, PodResourcesListerClient<Channel>), KubeError> {
    let path = dir.join(POD_RESOURCES);
    let client = PodResourcesListerClient::new(channel(&path).await?);
    Ok((path, client))
}

/// All pods of the node, and what their containers have.
pub(crate) async fn pods(dir: &Path) -> Result<Vec<PodResources>, KubeError> {
    let (path, mut lister) = lister(dir).await?;
    let answer = lister.list(ListPodResourcesRequest {}).await.map_err(|status| refused(&path, &status))?;
    Ok(answer.into_inner().pod_resources)
}

/// Keeps the metrics informed about which container has which slice, without end. Without the kubelet's answer, only a label
/// is missing.
pub(crate) async fn keep_containers(metrics: Arc<Metrics>, dir: PathBuf) -> Infallible {
    let mut look = ticks(LOOK_EVERY);
    loop {
        look.tick().await;
        match pods(&dir).await {
            Ok(pods) => metrics.know_containers(containers(&pods)),
            Err(error) => tracing::debug!(%error, "the containers of pods are unknown"),
        }
    }
}

fn containers(pods: &[PodResources]) -> Containers {
    let of_pod = |pod: &PodResources| {
        let name = format!("{}/{}", pod.namespace, pod.name);
        pod.containers.iter().flat_map(|container| of_container(&name, container)).collect::<Vec<_>>()
    };
    pods.iter().flat_map(of_pod).collect()
}

fn of_container(pod: &str, container: &ContainerResources) -> Vec<(String, String)> {
    let claims = container.dynamic_resources.iter().flat_map(|resource| &resource.claim_resources);
    let leases = claims.flat_map(|claim| &claim.cdi_devices).filter_map(|device| cdi::lease_of(&device.name));
    let slots = container.devices.iter().filter(|devices| devices.resource_name == SLICE_RESOURCE);
    let slots = slots.map(|_| pod);
    leases.chain(slots).map(|key| (key.to_owned(), container.name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::podresources::{CdiDevice, ClaimResource, ContainerDevices, DynamicResource};
    use super::*;

    #[test]
    fn a_slice_is_found_by_its_claim_or_by_its_slot() {
        let device = CdiDevice { name: cdi::qualified("lease-0") };
        let foreign = CdiDevice { name: "nvidia.com/gpu=0".to_owned() };
        let claim = ClaimResource { cdi_devices: vec![foreign, device] };
        let claimed = ContainerResources {
            name: "train".to_owned(),
            dynamic_resources: vec![DynamicResource { claim_resources: vec![claim] }],
            ..ContainerResources::default()
        };
        let slot = ContainerDevices { resource_name: SLICE_RESOURCE.to_owned(), device_ids: vec![] };
        let slotted = ContainerResources {
            name: "main".to_owned(),
            devices: vec![slot],
            ..ContainerResources::default()
        };
        let pod = |name: &str, container| {
            let containers = vec![
                ContainerResources { name: "other".to_owned(), ..ContainerResources::default() },
                container,
            ];
            PodResources { name: name.to_owned(), namespace: "team".to_owned(), containers }
        };
        let found = containers(&[pod("a", claimed), pod("b", slotted)]);
        let expected = [("lease-0", "train"), ("team/b", "main")];
        assert_eq!(found, expected.map(|(key, name)| (key.to_owned(), name.to_owned())).into());
    }
}
