//! What kube-scheduler asks about pods that want a slice: which nodes have room (filter), which is best (prioritize), and to
//! put it there (bind). It holds nothing: what is given out stands in the nodes.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use futures_util::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::book::{Book, Placement, change};
use super::choose::choose;
use super::metrics::Metrics;
use super::wake::keep_awake;
use crate::KubeError;
use crate::ask::Ask;
use crate::inject::SLICE_LABEL;
use crate::names::SLICE_RESOURCE;
use crate::observe::show;

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

#[derive(Deserialize)]
struct Bind {
    #[serde(rename = "PodName")]
    name: String,
    #[serde(rename = "PodNamespace")]
    namespace: String,
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "Node")]
    node: String,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Bound {
    error: String,
}

#[derive(Clone)]
struct Extender {
    client: Client,
    nodes: Store<Node>,
}

/// Serves until `stop` ends. It answers when it knows the nodes. `observers` is where `/healthz`, `/readyz` and `/metrics` are.
///
/// # Errors
/// If the listener fails.
pub async fn serve_extender(
    client: Client,
    listener: TcpListener,
    observers: Option<TcpListener>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), KubeError> {
    let (nodes, nodes_in) = store();
    let events = reflector(nodes_in, watcher(Api::all(client.clone()), watcher::Config::default()));
    let told = events.default_backoff().for_each(async |event| {
        if let Err(error) = event {
            tracing::warn!("watching nodes: {error}");
        }
    });
    let mut background = tokio::task::JoinSet::new();
    background.spawn(told);
    let metrics = Arc::<Metrics>::default();
    background.spawn(known(nodes.clone(), Arc::clone(&metrics)));
    background.spawn(keep_awake(client.clone(), Arc::clone(&metrics)));
    if let Some(observers) = observers {
        background.spawn(show(observers, Arc::clone(&metrics)));
    }
    let app = Router::new()
        .route("/healthz", get(healthz))
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/bind", post(bind))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(Extension(metrics))
        .with_state(Extender { client, nodes });
    let listener = tokio::net::TcpListener::from_std(listener).map_err(KubeError::Serve)?;
    tracing::info!("the extender is ready");
    axum::serve(listener, app).with_graceful_shutdown(stop).await.map_err(KubeError::Serve)
}

async fn known(nodes: Store<Node>, metrics: Arc<Metrics>) {
    if nodes.wait_until_ready().await.is_ok() {
        metrics.ready();
    }
}

async fn healthz(State(extender): State<Extender>) -> &'static str {
    // An error means that nobody watches any more; then the program is ending.
    let _ = extender.nodes.wait_until_ready().await;
    "ok\n"
}

impl Extender {
    fn book(&self, name: &str) -> Result<Book, String> {
        let node = self.nodes.get(&ObjectRef::new(name)).ok_or("it is not known yet")?;
        Book::of(&node).map_err(|error| error.to_string())
    }

    /// Gives the pod its place, then binds it. Whatever fails in between is done again: the place is the pod's already.
    async fn bind(&self, asked: &Bind) -> Result<(), KubeError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &asked.namespace);
        let pod = pods.get(&asked.name).await?;
        let full = format!("{}/{}", asked.namespace, asked.name);
        let wrong = |why: String| KubeError::Slice { pod: full.clone(), why };
        if pod.uid().as_deref() != Some(asked.uid.as_str()) {
            return Err(wrong("it was made anew".to_owned()));
        }
        let ask = ask(&pod).map_err(wrong)?;
        let placed_ms = Timestamp::now().as_millisecond();
        let place = |book: &mut Book| {
            if book.placements.contains_key(&asked.uid) {
                return Ok(());
            }
            let (_, slices) = choose(&[book], &ask, &asked.uid).map_err(wrong)?;
            let placement = Placement { pod: full.clone(), ask: ask.to_string(), slices, placed_ms };
            book.placements.insert(asked.uid.clone(), placement);
            Ok(())
        };
        let nodes: Api<Node> = Api::all(self.client.clone());
        change(&nodes, &asked.node, place).await?;
        let binding = json!({
            "metadata": {"name": asked.name, "namespace": asked.namespace, "uid": asked.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked.node},
        });
        // If this fails, the node itself takes the place back, once it is sure that the pod is not there.
        let post = PostParams::default();
        pods.create_subresource::<_, Value>("binding", &asked.name, &post, &binding).await?;
        tracing::info!(pod = full, node = asked.node, %ask, "placed");
        Ok(())
    }
}

/// What the pod asks for.
fn ask(pod: &Pod) -> Result<Ask, String> {
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
    State(extender): State<Extender>,
    Extension(metrics): Counted,
    Json(args): Json<Args>,
) -> Json<Filtered> {
    let begun = Instant::now();
    let answer = filtered(&extender, args);
    metrics.filter.ended(usize::from(answer.node_names.is_empty()), begun.elapsed());
    Json(answer)
}

fn filtered(extender: &Extender, args: Args) -> Filtered {
    let mut answer = Filtered { node_names: Vec::new(), failed_nodes: BTreeMap::new(), error: String::new() };
    let ask = match ask(&args.pod) {
        Ok(ask) => ask,
        Err(why) => return Filtered { error: why, ..answer },
    };
    let uid = args.pod.uid().unwrap_or_default();
    for name in args.node_names.unwrap_or_default() {
        match extender.book(&name).and_then(|book| choose(&[&book], &ask, &uid)) {
            Ok(_) => answer.node_names.push(name),
            Err(why) => drop(answer.failed_nodes.insert(name, why)),
        }
    }
    answer
}

/// The node that cantle's own scheduler would take gets all there is, the others nothing.
async fn prioritize(
    State(extender): State<Extender>,
    Extension(metrics): Counted,
    Json(args): Json<Args>,
) -> Json<Vec<Score>> {
    let begun = Instant::now();
    let names = args.node_names.unwrap_or_default();
    let books: Vec<Book> = names.iter().filter_map(|name| extender.book(name).ok()).collect();
    let uid = args.pod.uid().unwrap_or_default();
    let best = ask(&args.pod).and_then(|ask| choose(&books.iter().collect::<Vec<_>>(), &ask, &uid));
    let best = best.map(|(node, _)| node).unwrap_or_default();
    let score = |host: String| Score { score: if host == best { SCORE_MAX } else { 0 }, host };
    let scores = names.into_iter().map(score).collect();
    metrics.prioritize.ended(0, begun.elapsed());
    Json(scores)
}

async fn bind(
    State(extender): State<Extender>,
    Extension(metrics): Counted,
    Json(asked): Json<Bind>,
) -> Json<Bound> {
    let begun = Instant::now();
    let error = match extender.bind(&asked).await {
        Ok(()) => String::new(),
        Err(error) => {
            tracing::warn!(pod = asked.name, namespace = asked.namespace, node = asked.node, %error, "not placed");
            error.to_string()
        }
    };
    metrics.bind.ended(usize::from(!error.is_empty()), begun.elapsed());
    Json(Bound { error })
}
