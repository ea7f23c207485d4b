//! Commands in tasks ([`cantle_clearml::exec`]): the user's program and the agent of the task's node both connect to this server,
//! which passes the bytes of each to the other. It keeps a connection's worth of bytes of each, so that a side that does not read
//! holds up the other one, and nothing grows here.
//!
//! An entry is made by `cantle.open_exec`, which the table of rights guards, and lasts until one side is gone, the task
//! has ended, or the right is taken away. Entries are in the memory of one server: with several servers, both sides have to reach the same one.

mod relay;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use cantle_clearml::exec::{AskedExec, EXEC_PROTOCOL, ExecStart};
use cantle_clearml::{Envelope, Meta};
use cantle_model::TaskStatus;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::timeout;

use crate::api::{Api, text};
use crate::app::{App, Call};
use crate::clock::new_id;
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::{Right, act, is_of_node};

/// Commands at once, and those of one user.
const MOST: usize = 256;
const MOST_OF_USER: usize = 64;
/// For the agent to connect. It asks all the time; one that is older than this server never does.
const NODE_WITHIN: Duration = Duration::from_secs(20);
/// Nothing leads into such a task.
const OF_CLEARML: &str = "the task runs with an agent of ClearML, which cannot run a command in it";
/// An entry to which its user does not connect within this time is dropped when the next one is made.
const UNJOINED_US: i64 = 30_000_000;

/// A connection that has left HTTP.
type Stream = TokioIo<Upgraded>;

/// The commands of this server.
#[derive(Debug, Default)]
pub(crate) struct Execs {
    open: Mutex<BTreeMap<String, Exec>>,
    /// A command waits for its node.
    asked: Notify,
    /// The server stops: no caller waits any longer.
    closed: watch::Sender<bool>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Exec {
    /// The caller that opened it, with the rights of that moment.
    pub(crate) call: Call,
    pub(crate) task: String,
    pub(crate) start: ExecStart,
    pub(crate) waits: bool,
    pub(crate) ends_task: bool,
    is_joined: bool,
    /// The node that the task runs on, until it has taken the command.
    wanted_of: Option<String>,
    /// Where the connection of the node is awaited, and which node may come.
    node: Option<(String, oneshot::Sender<Stream>)>,
}

impl Exec {
    pub(crate) const fn new(
        call: Call,
        task: String,
        start: ExecStart,
        waits: bool,
        ends_task: bool,
    ) -> Self {
        Self { call, task, start, waits, ends_task, is_joined: false, wanted_of: None, node: None }
    }
}

impl Execs {
    fn open(&self) -> MutexGuard<'_, BTreeMap<String, Exec>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one.
    pub(crate) fn add(&self, id: String, exec: Exec) -> Result<(), ApiError> {
        let mut open = self.open();
        let now_us = exec.call.now_us;
        open.retain(|_, other| other.is_joined || now_us < other.call.now_us.saturating_add(UNJOINED_US));
        let of_user = open.values().filter(|other| other.call.who.user == exec.call.who.user).count();
        if open.len() >= MOST || of_user >= MOST_OF_USER {
            let text = format!(
                "too many commands in tasks at once: {MOST} on this server, {MOST_OF_USER} of one user"
            );
            return Err(ApiError::new(429, 0, text));
        }
        open.insert(id, exec);
        Ok(())
    }

    /// The commands for the tasks of a node that were not given out yet.
    pub(crate) fn take(&self, node: &str) -> Vec<AskedExec> {
        let mut open = self.open();
        let wanted = open.iter_mut().filter(|(_, exec)| exec.wanted_of.as_deref() == Some(node));
        wanted
            .map(|(id, exec)| {
                exec.wanted_of = None;
                AskedExec { exec: id.clone(), task: exec.task.clone(), start: exec.start.clone() }
            })
            .collect()
    }

    /// Waits until [`Self::take`] has something; `false`: the server stops.
    pub(crate) async fn asked(&self, node: &str) -> bool {
        let mut closed = self.closed.subscribe();
        loop {
            let asked = self.asked.notified();
            let mut asked = std::pin::pin!(asked);
            // From here on nothing is missed.
            asked.as_mut().enable();
            if self.open().values().any(|exec| exec.wanted_of.as_deref() == Some(node)) {
                return true;
            }
            tokio::select! {
                () = asked => {}
                _ = closed.wait_for(|closed| *closed) => return false,
            }
        }
    }

    /// Ends all waits, for a server that stops.
    pub(crate) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Asks the node of the task for it; its connection arrives at the receiver.
    fn want(&self, id: &str, node: &str) -> oneshot::Receiver<Stream> {
        let (sender, receiver) = oneshot::channel();
        if let Some(exec) = self.open().get_mut(id) {
            exec.wanted_of = Some(node.to_owned());
            exec.node = Some((node.to_owned(), sender));
        }
        self.asked.notify_waiters();
        receiver
    }

    /// Opens one whose user's side is in this server.
    fn add_joined(&self, id: String, exec: Exec) -> Result<(), ApiError> {
        self.add(id, Exec { is_joined: true, ..exec })
    }

    fn remove(&self, id: &str) {
        self.open().remove(id);
    }
}

/// The side of the node of a command that this server itself runs for a caller.
pub(crate) struct Entered {
    pub(crate) stream: TokioIo<Upgraded>,
    pub(crate) entry: Entry,
}

/// The place of a command among the open ones, until it is dropped.
pub(crate) struct Entry {
    app: Arc<App>,
    id: String,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.app.execs.remove(&self.id);
    }
}

/// Runs a command in a running task for a caller who may enter it.
pub(crate) async fn enter(call: &Call, task: &str, start: ExecStart) -> Result<Entered, ApiError> {
    call.task::<act::Enter>(task).await?;
    let row = call.app.store.task(task).await?;
    let away = |why: &str| ApiError::new(502, 0, why.to_owned());
    let node = match (row.index.status, row.node) {
        (TaskStatus::InProgress, Some(node)) => node,
        (TaskStatus::InProgress, None) => return Err(away(OF_CLEARML)),
        (status, _) => return Err(away(&format!("the task does not run: it is {status}"))),
    };
    let id = new_id();
    let exec = Exec::new(call.clone(), task.to_owned(), start, false, false);
    call.app.execs.add_joined(id.clone(), exec)?;
    let entry = Entry { app: Arc::clone(&call.app), id };
    let arrived = timeout(NODE_WITHIN, call.app.execs.want(&entry.id, &node)).await;
    match arrived {
        Ok(Ok(stream)) => Ok(Entered { stream, entry }),
        _ => Err(away(&format!("node {node} did not answer within {} s", NODE_WITHIN.as_secs()))),
    }
}

/// The addresses at which both sides connect.
pub(crate) fn router(api: Api) -> Router<Api> {
    Router::new()
        .route("/cantle/exec/{id}", get(join_user))
        .route("/cantle/exec/{id}/node", get(join_node))
        .with_state(api)
}

async fn join_user(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    answer(arrive(&api, &peer, request).await.and_then(|Arrival { call, authorization, upgrade }| {
        let mut open = api.app.execs.open();
        let own = open.get_mut(&id).filter(|exec| !exec.is_joined && exec.call.who.user == call.who.user);
        let exec = own.ok_or_else(no_exec)?;
        exec.is_joined = true;
        let job = relay::Job {
            id,
            call: exec.call.clone(),
            task: exec.task.clone(),
            waits: exec.waits,
            ends_task: exec.ends_task,
            authorization,
        };
        tokio::spawn(relay::run(api.clone(), job, upgrade));
        Ok(())
    }))
}

async fn join_node(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(id): Path<String>,
    request: Request,
) -> Response {
    answer(arrive(&api, &peer, request).await.and_then(|Arrival { call, upgrade, .. }| {
        if !call.who.may_everywhere(Right::Serve) {
            return Err(ApiError::forbidden(&call.who, Right::Serve, "the node's end of a command", None));
        }
        let mut open = api.app.execs.open();
        let exec = open.get_mut(&id).ok_or_else(no_exec)?;
        let is_its = |node: &str| call.who.node.as_deref().is_none_or(|own| is_of_node(node, own));
        let (_, sender) = exec.node.take_if(|(node, _)| is_its(node)).ok_or_else(no_exec)?;
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                // The user may be gone.
                let _ = sender.send(TokioIo::new(upgraded));
            }
        });
        Ok(())
    }))
}

/// A connection whose caller is known and that can leave HTTP.
struct Arrival {
    call: Call,
    authorization: Option<String>,
    upgrade: OnUpgrade,
}

/// Refuses a connection before it changes anything: an end that never leaves HTTP would keep its command open without end.
async fn arrive(api: &Api, peer: &Peer, mut request: Request) -> Result<Arrival, ApiError> {
    let authorization = text(request.headers(), header::AUTHORIZATION.as_str()).map(str::to_owned);
    let leaves = text(request.headers(), header::UPGRADE.as_str()) == Some(EXEC_PROTOCOL);
    let call = api.app.call(authorization.as_deref(), peer.address.ip(), "cantle.open_exec").await?;
    peer.standing.has_shown_a_key();
    if !leaves {
        return Err(ApiError::invalid(format!("write Upgrade: {EXEC_PROTOCOL}")));
    }
    Ok(Arrival { call, authorization, upgrade: hyper::upgrade::on(&mut request) })
}

/// The command belongs to another user, has ended, or never existed: the answer does not reveal which.
fn no_exec() -> ApiError {
    ApiError::new(404, 0, "there is no such command, or it has ended")
}

fn answer(joined: Result<(), ApiError>) -> Response {
    if let Err(error) = joined {
        let meta = Meta { result_code: error.code, result_msg: error.message, ..Meta::default() };
        let status = StatusCode::from_u16(meta.result_code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        return (status, axum::Json(Envelope { meta, data: serde_json::json!({}) })).into_response();
    }
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("upgrade")),
        (header::UPGRADE, HeaderValue::from_static(EXEC_PROTOCOL)),
    ];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}
