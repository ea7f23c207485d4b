//! The listener of notebooks.

use std::future::IntoFuture as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig as TlsConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{NotebookAddress, router};
use crate::api::Api;
use crate::door::{Door, Peer};
use crate::{ServerConfig, ServerError};

/// Opens it, if there is one: the address that the configuration names, or any free port where the server is reached from this
/// machine only.
pub(crate) async fn bind(
    config: &ServerConfig,
    server: SocketAddr,
) -> Result<Option<(TcpListener, NotebookAddress)>, ServerError> {
    let listen = match &config.notebook_listen {
        Some(listen) => listen.clone(),
        None if server.ip().is_loopback() => SocketAddr::new(server.ip(), 0).to_string(),
        None if config.notebook_url.is_some() => return Err(ServerError::NotebookUrl),
        None => return Ok(None),
    };
    let busy = |source| ServerError::Listen { listen: listen.clone(), source };
    let listener = TcpListener::bind(&listen).await.map_err(busy)?;
    let address = listener.local_addr().map_err(busy)?;
    crate::may_listen(config, Some(address).filter(|address| !address.ip().is_loopback()))?;
    let url =
        config.notebook_url.as_deref().map(|url| crate::public_url("--notebook-url", url)).transpose()?;
    Ok(Some((listener, NotebookAddress::new(url, address))))
}

/// Answers at it until the future completes.
pub(crate) async fn serve(
    listener: TcpListener,
    api: Api,
    silence: Duration,
    tls: Option<watch::Receiver<Arc<TlsConfig>>>,
) {
    let app = Arc::clone(&api.app);
    let service = router(api).into_make_service_with_connect_info::<Peer>();
    let served = tokio::select! {
        served = axum::serve(Door::new(listener, silence, tls), service).into_future() => served,
        () = app.notebooks.connections.close_idle() => Ok(()),
    };
    if let Err(error) = served {
        tracing::error!("the address of notebooks is not served any more: {error}");
    }
}
