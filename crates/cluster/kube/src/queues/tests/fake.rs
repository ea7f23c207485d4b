//! A cluster and a ClearML server in memory. All calls are recorded in one list, so their order can be checked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use cantle_clearml::{Credentials, TaskRequest, subcode};
use cantle_kube_model::inject::{Rules, inject};
use cantle_kube_model::queues::QueueFile;
use cantle_kube_model::queues::builder::{PodBuilder, ServerAccess, ServerKeys};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::leader::Leader;
use crate::queues::controller::{Controller, Memory};
use crate::queues::logs::Logs;
use crate::queues::metrics::Metrics;
use crate::queues::quotas::Quotas;
use crate::queues::server::Server;

const VALUES: &str = "agentk8sglue: {queue: q, queues: {q: {queueSettings: {maxPods: 2}}}}";
const SHARES: &str =
    "agentk8sglue: {queues: {q: {templateOverrides: {labels: {clearml-injector/fraction: '0.500'}}}}}";
const NAMESPACE: &str = "jobs";

/// The objects of the cluster and the server.
#[derive(Default)]
pub(super) struct Things {
    pub(super) calls: Vec<String>,
    /// By name.
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) lease: Option<Value>,
    version: u64,
    /// By id: status, message, reason.
    pub(super) tasks: BTreeMap<String, Value>,
    pub(super) queue: Vec<String>,
    /// The project has no quota left.
    pub(super) is_over_quota: bool,
    /// The queue's pods request half a GPU; nobody injects a claim unless `has_injector`.
    pub(super) asks_share: bool,
    /// Pods that ask for a share get their claim.
    pub(super) has_injector: bool,
    /// Another replica takes the Lease as soon as a pod is created.
    pub(super) steals_lease: bool,
}

/// The world of the test.
#[derive(Clone, Default)]
pub(super) struct World(Arc<Mutex<Things>>);

impl World {
    pub(super) fn things(&self) -> MutexGuard<'_, Things> {
        self.0.lock().unwrap()
    }

    /// The calls since the last time, without those that only read what every turn reads.
    pub(super) fn calls(&self) -> Vec<String> {
        let calls = std::mem::take(&mut self.things().calls);
        let is_telling = |call: &String| !call.starts_with("read ");
        calls.into_iter().filter(is_telling).collect()
    }

    pub(super) fn change_pod(&self, name: &str, change: impl FnOnce(&mut Value)) {
        change(self.things().pods.get_mut(name).unwrap());
    }

    pub(super) fn add_task(&self, id: &str) {
        let mut things = self.things();
        let request = TaskRequest { command: vec!["train".to_owned()], ..TaskRequest::default() };
        let command = request.to_hyperparams();
        things.tasks.insert(id.to_owned(), json!({"id": id, "status": "queued", "hyperparams": command}));
        things.queue.push(id.to_owned());
    }

    /// A replica that has not begun, and what it watches.
    pub(super) async fn replica(&self, identity: &str) -> Replica {
        let client = Client::new(Router::new().fallback(api_server).with_state(self.clone()), NAMESPACE);
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let clearml = Router::new().fallback(clearml_server).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, clearml).await });
        let keys = Credentials { access_key: "A".to_owned(), secret_key: "S".to_owned() };
        let server = Arc::new(Server { client: cantle_clearml::Client::new(&url, keys).unwrap() });
        let (known, shows): (Store<Pod>, Writer<Pod>) = store();
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        let access = ServerAccess { url, keys: ServerKeys::Secret("keys".to_owned()) };
        let values = if self.things().asks_share { SHARES } else { VALUES };
        let file = QueueFile::parse(values).unwrap();
        let reporter = Reporter { controller: "test".to_owned(), instance: None };
        let lease = Duration::from_secs(60);
        let controller = Controller {
            events: Recorder::new(client.clone(), reporter),
            quotas: Quotas::new(client.clone()),
            leader: Leader::new(client, NAMESPACE, "cantle".to_owned(), identity.to_owned(), lease),
            builder: PodBuilder { owner: "cantle".to_owned(), file, access },
            logs: Logs::new(pods.clone(), Arc::clone(&server)),
            image_grace: Duration::from_secs(60),
            metrics: Arc::new(Metrics::new(known.clone())),
            namespace: NAMESPACE.to_owned(),
            ids: vec!["id-q".to_owned()],
            memory: Memory::default(),
            pods,
            known,
            server,
        };
        Replica { controller, shows, world: self.clone() }
    }
}

/// A replica of the controller.
pub(super) struct Replica {
    pub(super) controller: Controller,
    shows: Writer<Pod>,
    world: World,
}

impl Replica {
    /// The watch shows the pods as they are.
    pub(super) fn watch(&mut self) {
        let pods: Vec<Value> = self.world.things().pods.values().cloned().collect();
        self.shows.apply_watcher_event(&Event::Init);
        for pod in pods {
            self.shows.apply_watcher_event(&Event::InitApply(serde_json::from_value(pod).unwrap()));
        }
        self.shows.apply_watcher_event(&Event::InitDone);
    }

    /// One turn; returns what it called.
    pub(super) async fn turn(&mut self) -> Vec<String> {
        self.controller.turn().await;
        self.world.calls()
    }
}

fn refused(code: StatusCode, reason: &str) -> Response {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason,
        "message": reason, "code": code.as_u16(),
    });
    answer(code, &status)
}

fn answer(code: StatusCode, body: &Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn api_server(State(world): State<World>, method: Method, uri: Uri, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let things = &mut *world.things();
    let (kind, name) = match uri.path().split('/').collect::<Vec<_>>().as_slice() {
        [.., "namespaces", _, kind, name] => (*kind, Some((*name).to_owned())),
        [.., kind] => (*kind, None),
        [] => ("", None),
    };
    match (kind, name) {
        ("leases", name) => lease(things, &method, name.is_some(), body),
        ("pods", None) if method == Method::GET => {
            things.calls.push("list pods".to_owned());
            let pods: Vec<&Value> = things.pods.values().collect();
            answer(
                StatusCode::OK,
                &json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods}),
            )
        }
        ("pods", None) => create_pod(things, body),
        ("events", _) => {
            things.calls.push(format!("event {}", body["reason"].as_str().unwrap_or_default()));
            answer(StatusCode::CREATED, &body)
        }
        ("pods", Some(name)) => change_pod(things, &method, &name, &body),
        _ => refused(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn lease(things: &mut Things, method: &Method, is_named: bool, mut body: Value) -> Response {
    let known = things.lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
    if *method == Method::GET {
        return match &things.lease {
            Some(lease) => answer(StatusCode::OK, lease),
            None => refused(StatusCode::NOT_FOUND, "NotFound"),
        };
    }
    if is_named && known != Some(body["metadata"]["resourceVersion"].clone()) {
        things.calls.push("renew lease: refused".to_owned());
        return refused(StatusCode::CONFLICT, "Conflict");
    }
    things.calls.push(if is_named { "renew lease" } else { "create lease" }.to_owned());
    things.version += 1;
    body["metadata"]["resourceVersion"] = json!(things.version.to_string());
    things.lease = Some(body.clone());
    answer(StatusCode::OK, &body)
}

fn create_pod(things: &mut Things, mut pod: Value) -> Response {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if things.pods.contains_key(&name) {
        return refused(StatusCode::CONFLICT, "AlreadyExists");
    }
    things.calls.push(format!("create pod {name}"));
    pod["metadata"]["uid"] = json!(format!("uid-{name}"));
    pod["metadata"]["namespace"] = json!(NAMESPACE);
    if things.has_injector {
        pod = inject(&pod, &Rules::default(), "9f86d081-884c-4d65-9a2f-eaa0c55ad015").unwrap();
    }
    pod["status"] = json!({"phase": "Pending"});
    things.pods.insert(name, pod.clone());
    if things.steals_lease
        && let Some(lease) = &mut things.lease
    {
        lease["metadata"]["resourceVersion"] = json!("stolen");
        lease["spec"]["holderIdentity"] = json!("b");
    }
    answer(StatusCode::CREATED, &pod)
}

fn change_pod(things: &mut Things, method: &Method, name: &str, body: &Value) -> Response {
    let Some(pod) = things.pods.get_mut(name) else { return refused(StatusCode::NOT_FOUND, "NotFound") };
    match *method {
        Method::DELETE => {
            things.calls.push(format!("delete pod {name}"));
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            pod["metadata"]["deletionGracePeriodSeconds"] = json!(0);
        }
        Method::PATCH if body["spec"].get("schedulingGates").is_some() => {
            things.calls.push(format!("lift gate {name}"));
            pod["spec"]["schedulingGates"] = body["spec"]["schedulingGates"].clone();
        }
        Method::PATCH if body["spec"].get("activeDeadlineSeconds").is_some() => {
            things.calls.push(format!("stop pod {name}"));
            pod["spec"]["activeDeadlineSeconds"] = body["spec"]["activeDeadlineSeconds"].clone();
        }
        Method::PATCH => {
            things.calls.push(format!("drop finalizer {name}"));
            pod["metadata"]["finalizers"] = body["metadata"]["finalizers"].clone();
        }
        _ => {}
    }
    let pod = pod.clone();
    let finalizers = pod["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    if pod["metadata"].get("deletionTimestamp").is_some() && finalizers == 0 {
        things.pods.remove(name);
    }
    answer(StatusCode::OK, &pod)
}

async fn clearml_server(State(world): State<World>, uri: Uri, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let endpoint = uri.path().trim_start_matches('/');
    let things = &mut *world.things();
    let task = body["task"].as_str().unwrap_or_default().to_owned();
    let is_read = endpoint.ends_with("get_all") || endpoint == "auth.login" || endpoint == "cantle.get_fleet";
    things.calls.push(if is_read {
        format!("read {endpoint}")
    } else {
        format!("{endpoint} {task}").trim_end().to_owned()
    });
    let data = match endpoint {
        "auth.login" => json!({"token": "t"}),
        "queues.get_all" => {
            let entries: Vec<Value> =
                things.queue.iter().map(|task| json!({"task": task, "added": ""})).collect();
            json!({"queues": [{"id": "id-q", "name": "q", "entries": entries}]})
        }
        "tasks.get_all" => {
            let ids: Vec<&str> =
                body["id"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let tasks: Vec<&Value> = ids.iter().filter_map(|id| things.tasks.get(*id)).collect();
            json!({"tasks": tasks})
        }
        "queues.get_next_task" => {
            let is_there = things.queue.contains(&task);
            things.queue.retain(|queued| *queued != task);
            if is_there { json!({"entry": {"task": task, "added": ""}}) } else { json!({"entry": null}) }
        }
        "tasks.dequeue" => {
            things.tasks.get_mut(&task).unwrap()["status"] = json!("in_progress");
            things.tasks.get_mut(&task).unwrap()["status_reason"] = body["status_reason"].clone();
            json!({"dequeued": 1, "updated": 1})
        }
        "tasks.enqueue" => {
            things.tasks.get_mut(&task).unwrap()["status"] = json!("queued");
            things.queue.push(task);
            json!({"queued": 1, "updated": 1})
        }
        "cantle.report_task" if things.is_over_quota => {
            let meta = json!({"result_code": 400, "result_subcode": subcode::OVER_QUOTA, "result_msg": "over quota"});
            return answer(StatusCode::BAD_REQUEST, &json!({"meta": meta, "data": {}}));
        }
        _ => json!({}),
    };
    answer(StatusCode::OK, &json!({"meta": {"result_code": 200}, "data": data}))
}
