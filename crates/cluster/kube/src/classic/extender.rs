//! Answers kube-scheduler about pods that request a slice: which nodes have capacity (filter), which is best (prioritize),
//! and the placement itself (bind). It has no state: the nodes record what is allocated.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use cantle_kube_model::classic::wire::{
    ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, ExtenderFilterResult, HostPriority,
    slice_of_pod,
};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bind::Binder;
use super::changes::Changes;
use super::metrics::Metrics;
use super::quota::Quotas;
use super::reserve::Reserver;
use super::wake::Waker;
use crate::KubeError;
use crate::observe::show;
use crate::watched::{follow, keep};
use cantle_kube_model::classic::record::NodeRecord;
use cantle_kube_model::classic::reserve::{ReservationKind, best, has_room};
use cantle_kube_model::names::RESERVATION_NAMESPACE;

/// A call names every node of the cluster.
const MAX_BODY_BYTES: usize = 8 << 20;
/// The most that a node can get in `prioritize`.
const SCORE_MAX: i64 = 10;

/// Serves until `stop` ends. It answers when it knows the nodes. `observers` is where `/healthz`, `/readyz` and `/metrics` are.
/// Pods of this kind reserve the GPUs where NVIDIA's device plugin allocates them.
///
/// # Errors
/// If the listener fails.
pub async fn serve_extender(
    client: Client,
    listener: TcpListener,
    observers: Option<TcpListener>,
    reservation: Option<ReservationKind>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), KubeError> {
    let (mut background, news) = (JoinSet::new(), watch::Sender::new(()));
    let waker = Arc::<Waker>::default();
    let (seen, changed) = (Arc::clone(&waker), news.clone());
    let nodes = follow(&mut background, Api::all(client.clone()), Config::default(), keep, move |event| {
        seen.see(event);
        changed.send_replace(());
    });
    let (seen, all) = (Arc::clone(&waker), Api::<ResourceQuota>::all(client.clone()));
    let quotas = follow(&mut background, all, Config::default(), keep, move |event| seen.see_quota(event));
    let quotas = Quotas { nodes: nodes.clone(), quotas, turns: Arc::default() };
    let reserver = reservation.map(|kind| {
        let pods = Api::namespaced(client.clone(), RESERVATION_NAMESPACE);
        let changed = news.clone();
        let pods = follow(&mut background, pods, Config::default(), keep, move |_| changed.send_replace(()));
        Reserver { client: client.clone(), kind, nodes: nodes.clone(), pods }
    });
    let metrics = Arc::<Metrics>::default();
    background.spawn(known(quotas.clone(), Arc::clone(&metrics)));
    background.spawn(waker.run(Api::all(client.clone()), Arc::clone(&metrics)));
    if let Some(observers) = observers {
        background.spawn(show(observers, Arc::clone(&metrics)));
    }
    let changes = Changes::of(&news);
    if let Some((reserver, changes)) = reserver.clone().map(|reserver| (reserver, changes.clone())) {
        background.spawn(async move { match reserver.run(changes).await {} });
    }
    let binder = Binder { client, nodes, reserver, quotas, changes, turn: Arc::default() };
    let app = Router::new()
        .route("/healthz", get(healthz))
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/bind", post(bind))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(Extension(metrics))
        .with_state(binder);
    let listener = tokio::net::TcpListener::from_std(listener).map_err(KubeError::Serve)?;
    tracing::info!("the extender is ready");
    axum::serve(listener, app).with_graceful_shutdown(stop).await.map_err(KubeError::Serve)
}

async fn known(Quotas { nodes, quotas, .. }: Quotas, metrics: Arc<Metrics>) {
    if nodes.wait_until_ready().await.is_ok() && quotas.wait_until_ready().await.is_ok() {
        metrics.ready();
    }
}

async fn healthz(State(binder): State<Binder>) -> &'static str {
    // An error means that no watch runs any more; then the program is ending.
    let _ = binder.nodes.wait_until_ready().await;
    "ok\n"
}

type Counted = Extension<Arc<Metrics>>;

async fn filter(
    State(binder): State<Binder>,
    Extension(metrics): Counted,
    Json(args): Json<ExtenderArgs>,
) -> Json<ExtenderFilterResult> {
    let begun = Instant::now();
    let answer = filtered(&binder, args);
    metrics.filter.ended(usize::from(answer.node_names.is_empty()), begun.elapsed());
    Json(answer)
}

fn filtered(binder: &Binder, args: ExtenderArgs) -> ExtenderFilterResult {
    let mut answer =
        ExtenderFilterResult { node_names: Vec::new(), failed_nodes: BTreeMap::new(), error: String::new() };
    let slice_name = match slice_of_pod(&args.pod) {
        Ok(slice_name) => slice_name,
        Err(why) => return ExtenderFilterResult { error: why, ..answer },
    };
    let uid = args.pod.uid().unwrap_or_default();
    let names = args.node_names.unwrap_or_default();
    if let Some(why) = binder.quotas.refusal(&args.pod.namespace().unwrap_or_default(), &uid, &slice_name) {
        answer.failed_nodes = names.into_iter().map(|name| (name, why.clone())).collect();
        return answer;
    }
    for name in names {
        match binder.record(&name).and_then(|record| has_room(&record, &slice_name, &uid)) {
            Ok(()) => answer.node_names.push(name),
            Err(why) => drop(answer.failed_nodes.insert(name, why)),
        }
    }
    answer
}

/// The node that cantle's own scheduler would take gets all there is, the others nothing.
async fn prioritize(
    State(binder): State<Binder>,
    Extension(metrics): Counted,
    Json(args): Json<ExtenderArgs>,
) -> Json<Vec<HostPriority>> {
    let begun = Instant::now();
    let names = args.node_names.unwrap_or_default();
    let records: Vec<NodeRecord> = names.iter().filter_map(|name| binder.record(name).ok()).collect();
    let uid = args.pod.uid().unwrap_or_default();
    let best =
        slice_of_pod(&args.pod).map(|slice_name| best(&records, &slice_name, &uid)).unwrap_or_default();
    let score = |host: String| HostPriority { score: if host == best { SCORE_MAX } else { 0 }, host };
    let scores = names.into_iter().map(score).collect();
    metrics.prioritize.ended(0, begun.elapsed());
    Json(scores)
}

async fn bind(
    State(binder): State<Binder>,
    Extension(metrics): Counted,
    Json(asked): Json<ExtenderBindingArgs>,
) -> Json<ExtenderBindingResult> {
    let begun = Instant::now();
    let error = match binder.bind(&asked).await {
        Ok(()) => String::new(),
        Err(error) => {
            tracing::warn!(pod = asked.name, namespace = asked.namespace, node = asked.node, %error, "not placed");
            error.to_string()
        }
    };
    metrics.bind.ended(usize::from(!error.is_empty()), begun.elapsed());
    Json(ExtenderBindingResult { error })
}
