//! What is asked of the kubelet: to know the plugin, and which pod has a slot.

use std::path::Path;

use cantle_kube_model::classic::reserve::{Devices, HeldDevice};
use cantle_kube_model::names::{GPU_RESOURCE, SLICE_RESOURCE};
use tonic::transport::{Channel, Endpoint};

use crate::KubeError;

/// Generated from `proto/deviceplugin.proto`.
#[expect(unreachable_pub, reason = "generated")]
pub(super) mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// Generated from `proto/podresources.proto`.
#[expect(unreachable_pub, reason = "generated")]
mod podresources {
    tonic::include_proto!("v1");
}

use deviceplugin::registration_client::RegistrationClient;
use deviceplugin::{DevicePluginOptions, RegisterRequest};
use podresources::pod_resources_lister_client::PodResourcesListerClient;
use podresources::{AllocatableResourcesRequest, ListPodResourcesRequest, PodResources};

/// The version of the protocol, as the kubelet wants to hear it.
const VERSION: &str = "v1beta1";

/// The socket of pod-resources in the kubelet's directory.
const POD_RESOURCES: &str = "pod-resources/kubelet.sock";

/// The plugin's options, which the kubelet asks for twice.
pub(super) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: false };

async fn channel(path: &Path) -> Result<Channel, KubeError> {
    let failed = |error: tonic::transport::Error| {
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        KubeError::Kubelet { path: path.to_owned(), why }
    };
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).map_err(failed)?;
    endpoint.connect().await.map_err(failed)
}

/// Registers the plugin with the kubelet whose socket is `path`. The plugin's socket, `endpoint`, is in the same directory.
///
/// # Errors
/// If it does not answer, or refuses.
pub(super) async fn register(path: &Path, endpoint: String) -> Result<(), KubeError> {
    let request = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint,
        resource_name: SLICE_RESOURCE.to_owned(),
        options: Some(OPTIONS),
    };
    let answer = RegistrationClient::new(channel(path).await?).register(request).await;
    answer.map(drop).map_err(|status| refused(path, &status))
}

fn refused(path: &Path, status: &tonic::Status) -> KubeError {
    KubeError::Kubelet { path: path.to_owned(), why: status.message().to_owned() }
}

/// All slots that pods have, as the kubelet whose directory is `dir` counts them.
///
/// # Errors
/// If it does not answer.
pub(super) async fn slots(dir: &Path) -> Result<Vec<HeldDevice>, KubeError> {
    held(dir, SLICE_RESOURCE).await
}

/// What NVIDIA's device plugin gives out on this node.
///
/// # Errors
/// If the kubelet does not answer.
pub(super) async fn devices(dir: &Path) -> Result<Devices, KubeError> {
    let path = dir.join(POD_RESOURCES);
    let mut lister = PodResourcesListerClient::new(channel(&path).await?);
    let answer = lister.get_allocatable_resources(AllocatableResourcesRequest {}).await;
    let devices = answer.map_err(|status| refused(&path, &status))?.into_inner().devices;
    let gpus = devices.into_iter().filter(|devices| devices.resource_name == GPU_RESOURCE);
    Ok(Devices { all: gpus.flat_map(|gpus| gpus.device_ids).collect(), held: held(dir, GPU_RESOURCE).await? })
}

async fn held(dir: &Path, resource: &str) -> Result<Vec<HeldDevice>, KubeError> {
    let path = dir.join(POD_RESOURCES);
    let mut lister = PodResourcesListerClient::new(channel(&path).await?);
    let answer = lister.list(ListPodResourcesRequest {}).await.map_err(|status| refused(&path, &status))?;
    Ok(answer.into_inner().pod_resources.into_iter().flat_map(|pod| of_pod(pod, resource)).collect())
}

fn of_pod(pod: PodResources, resource: &str) -> Vec<HeldDevice> {
    let devices = pod.containers.into_iter().flat_map(|container| container.devices);
    let wanted = devices.filter(|devices| devices.resource_name == resource);
    let held = |id| HeldDevice { id, namespace: pod.namespace.clone(), pod: pod.name.clone() };
    wanted.flat_map(|devices| devices.device_ids).map(held).collect()
}
