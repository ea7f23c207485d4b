//! Notebooks of tasks in a browser: a listener of its own, whose addresses `/TASK/…` lead to the notebook in a task.
//!
//! Code in a notebook is not trusted, and what it sends runs in the browser of its user. So it has another origin than the page and the API, and
//! nothing with which one could call them goes through here: not their cookies, no `Authorization`, and the cookie of this listener is
//! signed with a key of its own. The way in is a ticket that the page gets (`cantle.open_notebook`) and that is good once.

mod admission;
mod forward;
mod listen;
mod pages;
mod tunnel;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use cantle_clearml::TaskRequest;
use cantle_clearml::notebook::{NotebookProgram, notebook_path};
use cantle_clearml::tasks::HyperParams;
use cantle_model::TaskStatus;
use cantle_store::StoreError;
use serde::Deserialize as _;

use self::admission::Admission;
use self::pages::Page;
use self::tunnel::Found;
use crate::api::{Api, text};
use crate::app::Call;
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::act;

pub(crate) use admission::{NotebookKey, Tickets};
pub(crate) use listen::{bind, serve as serve_listener};
pub(crate) use pages::refusal;

/// The first part of the path at which a browser shows its ticket. No task has this id.
const OWN: &str = "-";
/// An agent names its node within this time after it has taken a task.
const CLAIM_US: i64 = 60_000_000;

/// Where notebooks are opened.
#[derive(Clone, Debug)]
pub(crate) struct NotebookAddress {
    /// `https://notebooks.example:8009`, with a `*` where the id of the task is; none: the host by which the browser knows the page, and this port.
    pub(crate) url: Option<String>,
    pub(crate) port: u16,
}

impl NotebookAddress {
    pub(crate) fn new(url: Option<String>, listening: SocketAddr) -> Self {
        Self { url, port: listening.port() }
    }

    /// Each task has an origin of its own.
    pub(crate) fn is_of_one_task(&self) -> bool {
        self.url.as_deref().is_some_and(|url| url.contains('*'))
    }

    /// The address for a browser that knows the page by this `Host`.
    pub(crate) fn of(&self, task: &str, scheme: &str, host: &str) -> String {
        match &self.url {
            Some(url) => url.replace('*', task),
            None => format!("{scheme}://{}:{}", own_host(host), self.port),
        }
    }
}

/// The notebooks that this server has opened.
#[derive(Debug, Default)]
pub(crate) struct Notebooks {
    pub(crate) tickets: Tickets,
    /// Of each task whose notebook was found.
    found: Mutex<BTreeMap<String, Found>>,
    connections: forward::Connections,
}

impl Notebooks {
    fn found(&self) -> MutexGuard<'_, BTreeMap<String, Found>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run that had it has ended, or does not answer.
    fn forget(&self, task: &str) {
        self.found().remove(task);
        self.connections.forget(task);
    }
}

/// A host without its port, as it is in addresses.
fn own_host(host: &str) -> &str {
    let end = host.rfind(']').map_or(0, |end| end + 1);
    let colon = host.get(end..).and_then(|rest| rest.rfind(':'));
    colon.and_then(|colon| host.get(..end + colon)).unwrap_or(host)
}

/// The listener's addresses.
pub(crate) fn router(api: Api) -> Router {
    Router::new().fallback(serve).with_state(api)
}

/// The notebook that a task runs; an error if it runs none.
pub(crate) async fn program_of(call: &Call, task: &str) -> Result<NotebookProgram, ApiError> {
    let doc = call.app.store.params_of_tasks(&[task.to_owned()]).await?.pop().unwrap_or_default();
    let params = doc.get("hyperparams").and_then(|params| HyperParams::deserialize(params).ok());
    let program = TaskRequest::notebook_of(&params.unwrap_or_default());
    let none = || ApiError::new(400, 0, "the task is no notebook; cantle notebook starts one");
    program.map_err(|error| ApiError::invalid(error.to_string()))?.ok_or_else(none)
}

/// Whether the caller may open it in a browser: the right to enter the task, and to be its owner where all notebooks have one origin. There,
/// the code of one notebook could call those of all others that the same browser has open.
pub(crate) async fn may_open(call: &Call, task: &str) -> Result<(), ApiError> {
    call.task::<act::Enter>(task).await?;
    let Some(address) = &call.app.notebook_address else {
        let text = "this server has no address for notebooks; start it with --notebook-listen HOST:PORT, or open the notebook with cantle notebook --attach";
        return Err(ApiError::new(400, 0, text));
    };
    let owned = call.app.store.owned_tasks(&[task.to_owned()]).await?;
    if owned.is_empty() {
        return Err(StoreError::NoTask(task.to_owned()).into());
    }
    if address.is_of_one_task() || owned.iter().any(|task| task.owner == call.who.user) {
        return Ok(());
    }
    // The right is there: another address of this server would do.
    let text = format!(
        "only its owner opens a notebook at this address, which all notebooks share; cantle notebook --attach {task} opens it for others"
    );
    Err(ApiError::new(400, 0, text))
}

/// Answers every request at the listener.
async fn serve(State(api): State<Api>, ConnectInfo(peer): ConnectInfo<Peer>, request: Request) -> Response {
    let shows = Shows::of(&request);
    match answer(&api, &peer, request).await {
        Ok(response) => response,
        Err(page) => page.answer(shows),
    }
}

/// How the client uses an answer of this server's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// A browser shows it as a page.
    Page,
    /// A script, or another program, reads it.
    Text,
}

impl Shows {
    fn of(request: &Request) -> Self {
        let accepts = text(request.headers(), header::ACCEPT.as_str()).unwrap_or_default();
        let is_page = request.method() == Method::GET && accepts.contains("text/html");
        if is_page { Self::Page } else { Self::Text }
    }
}

async fn answer(api: &Api, peer: &Peer, request: Request) -> Result<Response, Page> {
    let path = request.uri().path();
    let task = path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
    if task == OWN {
        let (parts, _) = request.into_parts();
        return admission::enter(api, peer, parts.uri, parts.headers).await;
    }
    if task.is_empty() || task.len() > 64 || !task.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Page::new(StatusCode::NOT_FOUND, "There is no notebook at this address."));
    }
    is_own_host(api, &task, request.headers())?;
    let origin = is_from_here(api, request.headers(), &task)?;
    let admission = Admission::of(api, request.headers(), &task)
        .ok_or_else(|| Page::log_in(&page_address(api, request.headers(), &task)))?;
    let call = admission.call(api, &peer.address.ip().to_string()).await.map_err(Page::refused)?;
    peer.standing.has_shown_a_key();
    let program = program_of(&call, &task).await.map_err(Page::refused)?;
    let row = api.app.store.task(&task).await.map_err(|error| Page::refused(error.into()))?;
    let status = row.index.status;
    if status != TaskStatus::InProgress {
        api.app.notebooks.forget(&task);
        let reason = row.reason.filter(|reason| !reason.is_empty()).unwrap_or(row.status_message);
        return Err(Page::not_running(status, &reason, &page_address(api, request.headers(), &task)));
    }
    let is_new = row.index.started_us.is_none_or(|at| call.now_us - at < CLAIM_US);
    if row.node.is_none() && is_new {
        return Err(Page::starting());
    }
    let found = tunnel::find(&call, &task, row.lease, program).await?;
    let to = forward::Target { api: api.clone(), call, admission, task, program, found, origin };
    forward::forward(to, request).await
}

/// Where each task has an origin of its own, its address works there only.
fn is_own_host(api: &Api, task: &str, headers: &HeaderMap) -> Result<(), Page> {
    let address = api.app.notebook_address.as_ref().filter(|address| address.is_of_one_task());
    let host = text(headers, header::HOST.as_str()).unwrap_or_default();
    let is_own = |address: &NotebookAddress| {
        let own = address.of(task, "", "");
        own.split_once("://").is_some_and(|(_, own)| own.split('/').next() == Some(host))
    };
    match address {
        Some(address) if !is_own(address) => {
            Err(Page::new(StatusCode::NOT_FOUND, "There is no notebook at this address."))
        }
        _ => Ok(()),
    }
}

/// Refuses what another site, or the server's own page, makes a browser send. Cookies do not separate ports. Returns the origin of this request.
fn is_from_here(api: &Api, headers: &HeaderMap, task: &str) -> Result<String, Page> {
    let other = || Page::new(StatusCode::FORBIDDEN, "Another site sent this request.");
    let host = text(headers, header::HOST.as_str()).ok_or_else(other)?;
    let address = api.app.notebook_address.as_ref();
    let scheme = address.and_then(|address| address.url.as_deref()?.split_once("://"));
    let scheme = scheme.map_or_else(|| api.app.door.scheme(), |(scheme, _)| scheme);
    let own = format!("{scheme}://{host}");
    if headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes() != own.as_bytes()) {
        return Err(other());
    }
    let is_a_page = text(headers, "sec-fetch-mode") == Some("navigate")
        && text(headers, "sec-fetch-dest") == Some("document");
    match text(headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(own),
        Some(_) if is_a_page => Ok(own),
        Some(_) => {
            tracing::debug!(task, "a request of another site to a notebook was refused");
            Err(other())
        }
    }
}

/// The address at which the page opens the notebook, for the browser that sent these headers.
fn page_address(api: &Api, headers: &HeaderMap, task: &str) -> String {
    let page = &api.app.page;
    let host = text(headers, header::HOST.as_str()).unwrap_or_default();
    let is_named = page.is_given || api.app.notebook_address.as_ref().is_some_and(|it| it.url.is_some());
    let base = if is_named {
        page.url.clone()
    } else {
        format!("{}://{}:{}", api.app.door.scheme(), own_host(host), page.port)
    };
    format!("{base}/{}", notebook_path(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_notebooks_is_another_port_or_another_host() {
        let at = |url: Option<&str>| NotebookAddress { url: url.map(str::to_owned), port: 8009 };
        assert_eq!(at(None).of("t", "https", "gpu1:8008"), "https://gpu1:8009");
        assert_eq!(at(None).of("t", "http", "[::1]:8008"), "http://[::1]:8009");
        assert_eq!(at(None).of("t", "http", "gpu1"), "http://gpu1:8009");
        assert!(!at(None).is_of_one_task());
        let each = at(Some("https://*.notebooks.example"));
        assert_eq!(each.of("abc", "http", "gpu1:8008"), "https://abc.notebooks.example");
        assert!(each.is_of_one_task());
    }
}
