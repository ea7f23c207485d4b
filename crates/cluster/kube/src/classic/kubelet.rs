//! Calls to the kubelet: to register the plugin, and to learn which pod has a slot.

use std::path::Path;

use cantle_kube_model::classic::reserve::{Devices, HeldDevice};
use cantle_kube_model::names::{GPU_RESOURCE, SLICE_RESOURCE};

use crate::KubeError;
use crate::node::kubelet::{channel, lister, podresources, pods, refused};

/// Generated from `proto/deviceplugin.proto`.
#[expect(unreachable_pub, clippy::too_many_lines, reason = "generated")]
pub(super) mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

use deviceplugin::registration_client::RegistrationClient;
use deviceplugin::{DevicePluginOptions, RegisterRequest};
use podresources::{AllocatableResourcesRequest, PodResources};

/// The version of the protocol, as the kubelet expects it.
const VERSION: &str = "v1beta1";

/// The plugin's options, which the kubelet asks for twice.
pub(super) const OPTIONS: DevicePluginOptions =
    DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: false };

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

/// All slots that pods have, as the kubelet whose directory is `dir` counts them.
///
/// # Errors
/// If it does not answer.
pub(super) async fn slots(dir: &Path) -> Result<Vec<HeldDevice>, KubeError> {
    held(dir, SLICE_RESOURCE).await
}

/// The resource of NVIDIA's device plugin on this node.
///
/// # Errors
/// If the kubelet does not answer.
pub(super) async fn devices(dir: &Path) -> Result<Devices, KubeError> {
    let (path, mut lister) = lister(dir).await?;
    let answer = lister.get_allocatable_resources(AllocatableResourcesRequest {}).await;
    let devices = answer.map_err(|status| refused(&path, &status))?.into_inner().devices;
    let gpus = devices.into_iter().filter(|devices| devices.resource_name == GPU_RESOURCE);
    Ok(Devices { all: gpus.flat_map(|gpus| gpus.device_ids).collect(), held: held(dir, GPU_RESOURCE).await? })
}

async fn held(dir: &Path, resource: &str) -> Result<Vec<HeldDevice>, KubeError> {
    Ok(pods(dir).await?.into_iter().flat_map(|pod| of_pod(pod, resource)).collect())
}

fn of_pod(pod: PodResources, resource: &str) -> Vec<HeldDevice> {
    let devices = pod.containers.into_iter().flat_map(|container| container.devices);
    let wanted = devices.filter(|devices| devices.resource_name == resource);
    let held = |id| HeldDevice { id, namespace: pod.namespace.clone(), pod: pod.name.clone() };
    wanted.flat_map(|devices| devices.device_ids).map(held).collect()
}
