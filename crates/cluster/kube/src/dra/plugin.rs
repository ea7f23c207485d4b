//! The two sockets of a DRA driver: one for registration with the kubelet, and one for claims.
//!
//! The kubelet dials the first with its path as gRPC authority, percent-encoded, which no Rust server accepts (h2 answers
//! PROTOCOL_ERROR). A `@` in the file's name makes all before it the user information of the authority, which is fine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::driver::Driver;
use super::health::Health;
use super::proto::health::dra_resource_health_server::DraResourceHealthServer;
use crate::KubeError;
use crate::node::Metrics;
use crate::socket::{listen, stopped};
use cantle_kube_model::names::DRIVER;

/// The version that a kubelet from 1.34 on speaks.
const SERVICE: &str = "v1.DRAPlugin";

use super::proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use super::proto::dra::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use super::proto::registration::registration_server::{Registration, RegistrationServer};
use super::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

#[tonic::async_trait]
impl DraPlugin for Driver {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let mut response = NodePrepareResourcesResponse::default();
        for claim in &request.get_ref().claims {
            let begun = Instant::now();
            let prepared = self.prepare(claim).await;
            self.metrics.prepared.ended(usize::from(prepared.is_err()), begun.elapsed());
            let answer = prepared.map_or_else(
                |error| {
                    tracing::warn!(claim = claim.name, namespace = claim.namespace, %error, "claim is not prepared");
                    NodePrepareResourceResponse { devices: Vec::new(), error: error.to_string() }
                },
                |devices| NodePrepareResourceResponse { devices, error: String::new() },
            );
            response.claims.insert(claim.uid.clone(), answer);
        }
        Ok(Response::new(response))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let mut response = NodeUnprepareResourcesResponse::default();
        for claim in &request.get_ref().claims {
            let error = self.unprepare(&claim.uid).await.err().map(|error| error.to_string());
            let answer = NodeUnprepareResourceResponse { error: error.unwrap_or_default() };
            response.claims.insert(claim.uid.clone(), answer);
        }
        Ok(Response::new(response))
    }
}

/// Tells the kubelet where the driver is.
struct Registrar {
    endpoint: PathBuf,
    metrics: Arc<Metrics>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![SERVICE.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with the kubelet");
            self.metrics.registered();
        } else {
            tracing::error!(error = status.error, "the kubelet refuses the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

/// Serves the kubelet whose directory is `kubelet_dir` until `stop` is set. An announced socket must already answer: the
/// registration comes last and goes first.
///
/// # Errors
/// If a socket cannot be made, or fails.
pub(super) async fn serve(
    driver: Driver,
    kubelet_dir: &Path,
    stop: watch::Receiver<bool>,
) -> Result<(), KubeError> {
    let own = kubelet_dir.join("plugins").join(DRIVER).join("dra.sock");
    let announced = kubelet_dir.join("plugins_registry").join(format!("{DRIVER}@reg.sock"));
    let service = listen(&own)?;
    let registry = listen(&announced)?;
    tracing::info!(directory = %kubelet_dir.display(), "waiting for the kubelet");
    let registrar = Registrar { endpoint: own.clone(), metrics: Arc::clone(&driver.metrics) };
    let registrar = RegistrationServer::new(registrar);
    let goodbye = async {
        stopped(stop.clone()).await;
        // The kubelet takes the end of this file for the driver's.
        let _ = fs::remove_file(&announced);
    };
    let served = tokio::try_join!(
        Server::builder().add_service(registrar).serve_with_incoming_shutdown(registry, goodbye),
        Server::builder()
            .add_service(DraResourceHealthServer::new(Health::new(driver.clone(), stop.clone())))
            .add_service(DraPluginServer::new(driver))
            .serve_with_incoming_shutdown(service, stopped(stop.clone())),
    );
    // The next driver replaces one that stays.
    let _ = fs::remove_file(&own);
    served.map(drop).map_err(|error| KubeError::Socket { path: own, why: io::Error::other(error) })
}
