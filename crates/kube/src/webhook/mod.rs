//! The injector as a service: HTTPS for the API server, and a plain port for probes and metrics.

mod authorities;
mod manager;
mod metrics;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use axum_server::Handle;
use kube::Client;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

pub use authorities::CertificateLifetimes;
pub use manager::Certificates;

use crate::KubeError;
use crate::observe::show;
use crate::pending::{PendingSettings, keep_serving};
use cantle_kube_model::inject::{Rules, answer};
use manager::Manager;
use metrics::Metrics;

/// A pod has at most 1.5 MiB, and a review of a change has two of them.
const MAX_BODY_BYTES: usize = 8 << 20;

/// Calls that have begun are answered before the program ends.
const GRACE: Duration = Duration::from_secs(10);

/// Listens on an address.
///
/// # Errors
/// If that can't be.
pub fn listen(at: SocketAddr) -> Result<TcpListener, KubeError> {
    let bound = TcpListener::bind(at).and_then(|bound| bound.set_nonblocking(true).map(|()| bound));
    bound.map_err(|error| KubeError::Listen(at, error))
}

/// The settings of the webhook.
#[derive(Debug)]
pub struct WebhookSettings {
    /// Address for the API server's calls.
    pub calls: TcpListener,
    /// Address of `/healthz`, `/readyz` and `/metrics`.
    pub observers: TcpListener,
    /// The source of certificates.
    pub certificates: Certificates,
    /// The forbidden settings of pods.
    pub rules: Rules,
    /// How waiting pods get their claims; none on the classic path.
    pub pending: Option<PendingSettings>,
}

struct Shared {
    rules: Rules,
    metrics: Arc<Metrics>,
}

/// Serves until `stop` ends.
///
/// # Errors
/// If a listener fails.
pub async fn serve_webhook(
    client: Client,
    settings: WebhookSettings,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), KubeError> {
    let metrics = Arc::<Metrics>::default();
    let shared = Arc::new(Shared { rules: settings.rules, metrics: Arc::clone(&metrics) });
    let mut background = JoinSet::new();
    background.spawn(show(settings.observers, metrics));
    let mut stop = Box::pin(stop);
    let (stopping, stopped) = watch::channel(());
    let mut servers = JoinSet::new();
    if let Some(pending) = settings.pending {
        servers.spawn(keep_serving(client.clone(), pending, ended(stopped)));
    }
    let mut manager = Manager::new(client, settings.certificates);
    let tls = tokio::select! {
        tls = manager.start() => tls,
        () = &mut stop => return Ok(()),
    };
    let handle = Handle::new();
    let served = handle.clone();
    background.spawn(async move {
        stop.await;
        drop(stopping);
        served.graceful_shutdown(Some(GRACE));
    });
    background.spawn(manager.keep());
    shared.metrics.ready();
    tracing::info!("the injector is ready");
    let app = Router::new()
        .route("/mutate", post(mutate))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(shared);
    let server = axum_server::from_tcp_rustls(settings.calls, tls).map_err(KubeError::Serve)?;
    let served = server.handle(handle).serve(app.into_make_service()).await;
    let _given_up = timeout(GRACE, servers.join_next()).await;
    served.map_err(KubeError::Serve)
}

async fn mutate(State(shared): State<Arc<Shared>>, Json(review): Json<Value>) -> Response {
    let begun = Instant::now();
    let answered = answer(&review, &shared.rules);
    match answered {
        Ok(answered) => {
            if let Some(denial) = &answered.denial {
                let namespace = review["request"]["namespace"].as_str().unwrap_or_default();
                let user = review["request"]["userInfo"]["username"].as_str().unwrap_or_default();
                tracing::info!(namespace, user, "pod refused: {denial}");
            }
            shared.metrics.answered(answered.outcome, begun.elapsed());
            Json(answered.review).into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}\n")).into_response(),
    }
}

/// Ends when the sender is gone.
async fn ended(mut stopped: watch::Receiver<()>) {
    while stopped.changed().await.is_ok() {}
}
