//! What kube-scheduler asks about pods that want a slice: which nodes have room (filter), which is best (prioritize), and to
//! put it there (bind). It holds nothing: what is given out stands in the nodes.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::Store;
use kube::runtime::watcher::Config;
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bind::Binder;
use super::book::Book;
use super::changes::Changes;
use super::metrics::Metrics;
use super::reserve::{Kind, Reserver, best, has_room};
use super::wake::Waker;
use crate::KubeError;
use crate::ask::Ask;
use crate::inject::SLICE_LABEL;
use crate::names::{RESERVATION_NAMESPACE, SLICE_RESOURCE};
use crate::observe::show;
use crate::watched::{follow, keep};

/// A call names every node of the cluster.
const MAX_BODY_BYTES: usize = 8 << 20;
/// The most that a node can get in `prioritize`.
const SCORE_MAX: i64 = 10;

/// Wire format of `k8s.io/kube-scheduler/extender/v1`, which has no tags for JSON and therefore Go's own names.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Args {
    pod: Pod,
    #[serde(default)]
    node_names: Option<Vec<String>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Filtered {
    node_names: Vec<String>,
    failed_nodes: BTreeMap<String, String>,
    error: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Score {
    host: String,
    score: i64,
}

/// Put this pod there.
#[derive(Deserialize)]
pub(super) struct Bind {
    #[serde(rename = "PodName")]
    pub(super) name: String,
    #[serde(rename = "PodNamespace")]
    pub(super) namespace: String,
    #[serde(rename = "PodUID")]
    pub(super) uid: String,
    #[serde(rename = "Node")]
    pub(super) node: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Bound {
    error: String,
}

/// Serves until `stop` ends. It answers when it knows the nodes. `observers` is where `/healthz`, `/readyz` and `/metrics` are.
/// Where NVIDIA's device plugin gives out the GPUs, they are reserved by pods of this kind.
///
/// # Errors
/// If the listener fails.
pub async fn serve_extender(
    client: Client,
    listener: TcpListener,
    observers: Option<TcpListener>,
    reservation: Option<Kind>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), KubeError> {
    let (mut background, news) = (JoinSet::new(), watch::Sender::new(()));
    let waker = Arc::<Waker>::default();
    let (seen, changed) = (Arc::clone(&waker), news.clone());
    let nodes = follow(&mut background, Api::all(client.clone()), Config::default(), keep, move |event| {
        seen.see(event);
        changed.send_replace(());
    });
    let reserver = reservation.map(|kind| {
        let pods = Api::namespaced(client.clone(), RESERVATION_NAMESPACE);
        let changed = news.clone();
        let pods = follow(&mut background, pods, Config::default(), keep, move |_| changed.send_replace(()));
        Reserver { client: client.clone(), kind, nodes: nodes.clone(), pods }
    });
    let metrics = Arc::<Metrics>::default();
    background.spawn(known(nodes.clone(), Arc::clone(&metrics)));
    background.spawn(waker.run(Api::all(client.clone()), Arc::clone(&metrics)));
    if let Some(observers) = observers {
        background.spawn(show(observers, Arc::clone(&metrics)));
    }
    let changes = Changes::of(&news);
    if let Some((reserver, changes)) = reserver.clone().map(|reserver| (reserver, changes.clone())) {
        background.spawn(async move { match reserver.run(changes).await {} });
    }
    let binder = Binder { client, nodes, reserver, changes, turn: Arc::default() };
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

async fn known(nodes: Store<Node>, metrics: Arc<Metrics>) {
    if nodes.wait_until_ready().await.is_ok() {
        metrics.ready();
    }
}

async fn healthz(State(binder): State<Binder>) -> &'static str {
    // An error means that nobody watches any more; then the program is ending.
    let _ = binder.nodes.wait_until_ready().await;
    "ok\n"
}

/// What the pod asks for.
///
/// # Errors
/// If it does not ask as the injector writes it.
pub(super) fn ask(pod: &Pod) -> Result<Ask, String> {
    let label = pod.labels().get(SLICE_LABEL);
    let label = label.ok_or_else(|| {
        format!(
            "{SLICE_RESOURCE} without label {SLICE_LABEL}: ask by clearml-injector/fraction or gpu-fraction"
        )
    })?;
    let spec = pod.spec.iter();
    let containers =
        spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    let limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()?.get(SLICE_RESOURCE));
    let amounts: Vec<&str> = limits.map(|amount| amount.0.as_str()).collect();
    if amounts != ["1"] {
        return Err(format!("one container may ask for {SLICE_RESOURCE}, and for 1 of it"));
    }
    label.parse().map_err(|error: crate::NotATemplate| error.to_string())
}

type Counted = Extension<Arc<Metrics>>;

async fn filter(
    State(binder): State<Binder>,
    Extension(metrics): Counted,
    Json(args): Json<Args>,
) -> Json<Filtered> {
    let begun = Instant::now();
    let answer = filtered(&binder, args);
    metrics.filter.ended(usize::from(answer.node_names.is_empty()), begun.elapsed());
    Json(answer)
}

fn filtered(binder: &Binder, args: Args) -> Filtered {
    let mut answer = Filtered { node_names: Vec::new(), failed_nodes: BTreeMap::new(), error: String::new() };
    let ask = match ask(&args.pod) {
        Ok(ask) => ask,
        Err(why) => return Filtered { error: why, ..answer },
    };
    let uid = args.pod.uid().unwrap_or_default();
    for name in args.node_names.unwrap_or_default() {
        match binder.book(&name).and_then(|book| has_room(&book, &ask, &uid)) {
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
    Json(args): Json<Args>,
) -> Json<Vec<Score>> {
    let begun = Instant::now();
    let names = args.node_names.unwrap_or_default();
    let books: Vec<Book> = names.iter().filter_map(|name| binder.book(name).ok()).collect();
    let uid = args.pod.uid().unwrap_or_default();
    let best = ask(&args.pod).map(|ask| best(&books, &ask, &uid)).unwrap_or_default();
    let score = |host: String| Score { score: if host == best { SCORE_MAX } else { 0 }, host };
    let scores = names.into_iter().map(score).collect();
    metrics.prioritize.ended(0, begun.elapsed());
    Json(scores)
}

async fn bind(
    State(binder): State<Binder>,
    Extension(metrics): Counted,
    Json(asked): Json<Bind>,
) -> Json<Bound> {
    let begun = Instant::now();
    let error = match binder.bind(&asked).await {
        Ok(()) => String::new(),
        Err(error) => {
            tracing::warn!(pod = asked.name, namespace = asked.namespace, node = asked.node, %error, "not placed");
            error.to_string()
        }
    };
    metrics.bind.ended(usize::from(!error.is_empty()), begun.elapsed());
    Json(Bound { error })
}
