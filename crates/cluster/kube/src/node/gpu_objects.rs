//! Keeps the GPU objects of a node, which `kubectl get gpus.cantle.dev` lists, equal to its GPUs and their slices. Without
//! them, or without their definition, everything else goes on.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use cantle_decide::Offer;
use cantle_kube_model::Version;
use cantle_kube_model::gpu_object::{GpuObject, GpuObjectAction, gpu_objects, steps};
use cantle_model::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::{LOOK_EVERY, NodeConfig, ticks};
use crate::KubeError;

/// Owner of the fields, for server-side apply.
const FIELD_MANAGER: &str = "cantle-node";
/// Interval of a comparison with what the API server has: nothing is watched, and others may have changed it.
const COMPARE_EVERY: Duration = Duration::from_secs(300);
/// Wait where there is no definition, or no right to use it: only an administrator changes that.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// The node's driver ends in any case.
const REMOVE_WITHIN: Duration = Duration::from_secs(5);

/// The GPU objects of one node at the API server.
pub(crate) struct GpuObjects {
    api: Api<GpuObject>,
    nodes: Api<Node>,
    node: String,
    /// Objects of this node only, where the API server can select them.
    own: ListParams,
    known: Option<PublishedObjects>,
    /// The last error, so that it is logged once.
    failure: Option<String>,
}

/// The objects that the API server has.
struct PublishedObjects {
    node: Node,
    objects: Vec<GpuObject>,
    compared: Instant,
}

impl GpuObjects {
    /// `None` where there are to be none.
    pub(crate) fn of(client: &Client, config: &NodeConfig, version: Version) -> Option<Self> {
        let all = ListParams::default();
        let own = if version >= Version::SELECTABLE_FIELDS {
            all.fields(&format!("spec.nodeName={}", config.node))
        } else {
            all
        };
        config.gpu_objects.then(|| Self {
            api: Api::all(client.clone()),
            nodes: Api::all(client.clone()),
            node: config.node.clone(),
            own,
            known: None,
            failure: None,
        })
    }

    /// Writes what has changed since the last call.
    async fn update(&mut self, offers: &[Offer], leases: &[Lease]) -> Result<(), KubeError> {
        // An error clears this, because it is unknown then which objects were written.
        let known = match self.known.take() {
            Some(known) if known.compared.elapsed() < COMPARE_EVERY => known,
            _ => {
                let (node, objects) = (self.nodes.get(&self.node).await?, self.list().await?);
                PublishedObjects { node, objects, compared: Instant::now() }
            }
        };
        let wanted = gpu_objects(&known.node, offers, leases);
        for step in steps(&wanted, &known.objects) {
            match step {
                GpuObjectAction::Apply(object) => {
                    let params = PatchParams::apply(FIELD_MANAGER).force();
                    self.api.patch(&object.name_any(), &params, &Patch::Apply(&*object)).await?;
                }
                GpuObjectAction::Delete(name) => self.delete(&name).await?,
            }
        }
        self.known = Some(PublishedObjects { objects: wanted, ..known });
        Ok(())
    }

    async fn list(&self) -> Result<Vec<GpuObject>, KubeError> {
        let mut objects = self.api.list(&self.own).await?.items;
        objects.retain(|object| object.spec.node_name == self.node);
        Ok(objects)
    }

    async fn delete(&self, name: &str) -> Result<(), KubeError> {
        match self.api.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Ok(answer.map(drop)?),
        }
    }

    /// Deletes them, because no program keeps them current from now on.
    pub(crate) async fn remove(&self) {
        let all = async {
            for object in self.list().await? {
                self.delete(&object.name_any()).await?;
            }
            Ok::<_, KubeError>(())
        };
        match timeout(REMOVE_WITHIN, all).await {
            Ok(Ok(())) => {}
            // Where the chart is being removed, its rights and the definition may have gone first.
            Ok(Err(error)) => tracing::debug!(%error, "GPU objects are not deleted"),
            Err(_) => tracing::warn!("GPU objects are not deleted: the API server does not answer"),
        }
    }

    /// Logs the first of equal errors, and its end.
    fn report(&mut self, failure: Option<String>) {
        if self.failure != failure {
            match &failure {
                Some(error) => tracing::warn!(error, "GPU objects are not current; pods are not affected"),
                None => tracing::info!("GPU objects are current again"),
            }
        }
        self.failure = failure;
    }
}

/// Keeps the objects current, without end. Several changes between two looks are one.
pub(crate) async fn keep_gpu_objects(
    objects: Option<&mut GpuObjects>,
    held: impl AsyncFn() -> Result<(Vec<Offer>, Vec<Lease>), KubeError>,
) -> Infallible {
    let Some(objects) = objects else { return pending().await };
    let mut look = ticks(LOOK_EVERY);
    loop {
        look.tick().await;
        // If they cannot be read, what publishes the node's devices reports it.
        let Ok((offers, leases)) = held().await else { continue };
        match objects.update(&offers, &leases).await {
            Ok(()) => objects.report(None),
            Err(error) => {
                objects.report(Some(error.to_string()));
                if is_refused(&error) {
                    sleep(REFUSED_FOR).await;
                }
            }
        }
    }
}

fn is_refused(error: &KubeError) -> bool {
    let KubeError::Api(error) = error else { return false };
    matches!(&**error, kube::Error::Api(status) if matches!(status.code, 403 | 404))
}
