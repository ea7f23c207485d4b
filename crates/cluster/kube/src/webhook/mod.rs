//! The injector as a service: HTTPS for the API server, and a plain port for probes and metrics.

mod authorities;
mod bodies;
mod clock;
mod manager;
mod metrics;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

pub use authorities::CertificateLifetimes;
pub use manager::Certificates;

use crate::KubeError;
use crate::door::{Door, Peer};
use crate::observe::show;
use crate::pending::{PendingSettings, keep_serving};
use bodies::{Bodies, Refused};
use cantle_kube_model::inject::{Question, Rules, answer};
use manager::Manager;
use metrics::Metrics;

/// Calls that have begun are answered before the program ends.
const GRACE: Duration = Duration::from_secs(10);

/// Listens on an address.
///
/// # Errors
/// If that cannot be.
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
    bodies: Bodies,
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
    let shared =
        Arc::new(Shared { rules: settings.rules, bodies: Bodies::default(), metrics: Arc::clone(&metrics) });
    let mut background = JoinSet::new();
    let waiting = Arc::clone(&metrics.waiting);
    background.spawn(show(settings.observers, metrics));
    let mut stop = Box::pin(stop);
    let (stopping, stopped) = watch::channel(());
    let mut servers = JoinSet::new();
    if let Some(pending) = settings.pending {
        servers.spawn(keep_serving(client.clone(), pending, waiting, ended(stopped.clone())));
    }
    let mut manager = Manager::new(client.clone(), settings.certificates);
    let tls = tokio::select! {
        tls = manager.start() => tls,
        () = &mut stop => return Ok(()),
    };
    background.spawn(async move {
        stop.await;
        drop(stopping);
    });
    background.spawn(manager.keep());
    clock::compare(&client, &shared.metrics).await;
    let compared = clock::keep_compared(client, Arc::clone(&shared.metrics));
    background.spawn(async { match compared.await {} });
    let door = Door::new(settings.calls, Some(tls)).map_err(KubeError::Serve)?;
    shared.metrics.ready();
    tracing::info!("the injector is ready");
    let app = Router::new()
        .route("/mutate", post(async |state, peer, body| reviewed(Question::Slice, state, peer, body).await))
        .route("/marks", post(async |state, peer, body| reviewed(Question::Marks, state, peer, body).await))
        .with_state(shared);
    let served = axum::serve(door, app.into_make_service_with_connect_info::<Peer>());
    let served = served.with_graceful_shutdown(ended(stopped.clone()));
    let given_up = async {
        ended(stopped).await;
        sleep(GRACE).await;
    };
    let served = tokio::select! {
        served = served => served,
        () = given_up => Ok(()),
    };
    let _given_up = timeout(GRACE, servers.join_next()).await;
    served.map_err(KubeError::Serve)
}

async fn reviewed(
    question: Question,
    State(shared): State<Arc<Shared>>,
    ConnectInfo(Peer(guest)): ConnectInfo<Peer>,
    body: Body,
) -> Response {
    let begun = Instant::now();
    let refused = |Refused(status, why): Refused| (status, format!("{why}\n")).into_response();
    let review = match shared.bodies.json(&guest, body).await {
        Ok(review) => review,
        Err(why) => return refused(why),
    };
    match answer(question, &review, &shared.rules) {
        Ok(answered) => {
            guest.is_known_now();
            if let Some(denial) = &answered.denial {
                let namespace = review["request"]["namespace"].as_str().unwrap_or_default();
                let user = review["request"]["userInfo"]["username"].as_str().unwrap_or_default();
                tracing::info!(namespace, user, "pod refused: {denial}");
            }
            shared.metrics.answered(answered.outcome, begun.elapsed());
            Json(answered.review).into_response()
        }
        Err(error) => refused(Refused(StatusCode::BAD_REQUEST, format!("not an AdmissionReview: {error}"))),
    }
}

/// Ends when the sender is gone.
async fn ended(mut stopped: watch::Receiver<()>) {
    while stopped.changed().await.is_ok() {}
}
