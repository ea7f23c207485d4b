//! The device plugin. It offers slots without a meaning; a slot becomes a slice when the container that has it is about
//! to start.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cantle_runtime::cdi;
use futures_util::{Stream, stream};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::kubelet::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::kubelet::deviceplugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateRequest, ContainerAllocateResponse,
    Device, DevicePluginOptions, Empty, ListAndWatchResponse, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse,
};
use super::kubelet::{OPTIONS, register};
use super::manager::Manager;
use crate::KubeError;
use crate::socket::{listen, stopped};

/// More than pods that a node can have.
const SLOTS: u32 = 256;
/// The kubelet's socket in the directory of plugins.
const KUBELET_SOCKET: &str = "kubelet.sock";
/// The plugin's.
const SOCKET: &str = "cantle.dev-slice.sock";
/// Interval of the check that the kubelet still knows the plugin.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Which slots work. The kubelet shows it in the status of the pods that have them, and gives the others to pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotHealth {
    /// Is there a GPU that answers?
    pub(super) has_gpus: bool,
    /// Those of pods whose GPU is lost.
    pub(super) lost: BTreeSet<String>,
}

impl SlotHealth {
    fn devices(&self) -> ListAndWatchResponse {
        let device = |at| {
            let id = format!("slot-{at:03}");
            let is_healthy = self.has_gpus && !self.lost.contains(&id);
            Device { id, health: if is_healthy { "Healthy" } else { "Unhealthy" }.to_owned() }
        };
        ListAndWatchResponse { devices: (0..SLOTS).map(device).collect() }
    }
}

struct Plugin {
    manager: Arc<Manager>,
    health: watch::Receiver<SlotHealth>,
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut health = self.health.clone();
        // The first answer has what is known now.
        health.mark_changed();
        let changes = stream::unfold(health, async |mut health| {
            health.changed().await.ok()?;
            let devices = health.borrow_and_update().devices();
            Some((Ok(devices), health))
        });
        Ok(Response::new(Box::pin(changes)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("one slot is as good as another"))
    }

    /// A name for each slot; what it means is written before the container is made.
    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let answer = |container: ContainerAllocateRequest| {
            let name = |slot: &String| CdiDevice { name: cdi::qualified(slot) };
            ContainerAllocateResponse { cdi_devices: container.device_ids.iter().map(name).collect() }
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(answer).collect();
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        for slot in &request.get_ref().device_ids {
            let begun = Instant::now();
            let prepared = self.manager.prepare(slot).await;
            self.manager.metrics.prepared.ended(usize::from(prepared.is_err()), begun.elapsed());
            prepared.map_err(|error| {
                tracing::warn!(slot, %error, "no slice");
                Status::failed_precondition(error.to_string())
            })?;
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Serves the kubelet whose plugins are in `dir` until `stop` is set. A starting kubelet empties the directory and knows no
/// plugin, so the registration starts again.
///
/// # Errors
/// If the socket cannot be made, or fails.
pub(super) async fn serve(
    manager: Arc<Manager>,
    health: watch::Receiver<SlotHealth>,
    dir: &Path,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeError> {
    let own = dir.join(SOCKET);
    loop {
        let socket = listen(&own)?;
        let plugin = Plugin { manager: Arc::clone(&manager), health: health.clone() };
        let served =
            Server::builder().add_service(DevicePluginServer::new(plugin)).serve_with_incoming(socket);
        tokio::select! {
            () = stopped(stop.clone()) => break,
            () = known(&manager, dir, &own) => tracing::info!("the kubelet has restarted"),
            served = served => {
                let why = io::Error::other(served.err().map_or_else(|| "it ended".to_owned(), |e| e.to_string()));
                return Err(KubeError::Socket { path: own, why });
            }
        }
    }
    // The kubelet takes the end of this file for the plugin's.
    let _ = fs::remove_file(&own);
    Ok(())
}

/// Registers with the kubelet; ends when that is not so any more.
async fn known(manager: &Manager, dir: &Path, own: &Path) {
    let kubelet = dir.join(KUBELET_SOCKET);
    loop {
        let seen = file_id(&kubelet);
        match register(&kubelet, SOCKET.to_owned()).await {
            Ok(()) => {
                tracing::info!("registered with the kubelet");
                manager.metrics.registered();
                while seen.is_some() && file_id(&kubelet) == seen && own.exists() {
                    sleep(LOOK_EVERY).await;
                }
                return;
            }
            Err(error) => tracing::debug!(%error, "waiting for the kubelet"),
        }
        sleep(LOOK_EVERY).await;
    }
}

/// A socket that was created again is another file, and has another time if it got the same number.
fn file_id(path: &Path) -> Option<(u64, i64, i64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec()))
}
