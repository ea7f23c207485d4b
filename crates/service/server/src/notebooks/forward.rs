//! Passes requests on to a notebook, and its answers back.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use cantle_clearml::notebook::NotebookProgram;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::{Instant, sleep, timeout};

use super::admission::Admission;
use super::pages::Page;
use super::tunnel::{self, Found};
use crate::api::Api;
use crate::app::Call;
use crate::error::ApiError;

/// For the head of an answer, after all of the request, such as a file.
const ANSWER: Duration = Duration::from_secs(600);
/// A connection that carries nothing is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);
/// How often it is asked whether the user of a websocket may still have it.
const RIGHT_EVERY: Duration = Duration::from_secs(5);

/// Headers of a request that stay here. The origin and the host are checked here; a notebook would compare them with its own.
const NOT_TO_TASK: [HeaderName; 5] =
    [header::COOKIE, header::AUTHORIZATION, header::ORIGIN, header::REFERER, header::PROXY_AUTHORIZATION];
/// Headers of an answer by which code in a notebook would reach beyond its own addresses: cookies and storage of the whole host, a
/// worker for all notebooks, another server for this origin, reports, and other sites that may read it.
const NOT_TO_BROWSER: [&str; 14] = [
    "set-cookie",
    "set-cookie2",
    "clear-site-data",
    "service-worker-allowed",
    "alt-svc",
    "strict-transport-security",
    "nel",
    "report-to",
    "reporting-endpoints",
    "access-control-allow-origin",
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-expose-headers",
];
/// Those of one connection only (RFC 9110, 7.6.1).
const OF_CONNECTION: [HeaderName; 6] = [
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::PROXY_AUTHENTICATE,
];
const KEEP_ALIVE: &str = "keep-alive";
/// The name of the notebook's host, as it knows itself.
const LOCAL: &str = "localhost";

/// Where a request goes.
pub(super) struct Target {
    pub(super) api: Api,
    pub(super) call: Call,
    pub(super) admission: Admission,
    pub(super) task: String,
    pub(super) program: NotebookProgram,
    pub(super) found: Found,
    /// Of this listener, as the browser knows it.
    pub(super) origin: String,
}

/// Connections that carry nothing at the moment, of a task and a user.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<BTreeMap<(String, String), Vec<IdleConnection>>>);

#[derive(Debug)]
struct IdleConnection {
    sender: SendRequest<Body>,
    since: Instant,
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, BTreeMap<(String, String), Vec<IdleConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that can take a request now.
    fn take(&self, key: &(String, String)) -> Option<SendRequest<Body>> {
        let mut open = self.open();
        let of_key = open.get_mut(key)?;
        let at = of_key.iter().position(|idle| idle.sender.is_ready())?;
        Some(of_key.swap_remove(at).sender)
    }

    fn put(&self, key: (String, String), sender: SendRequest<Body>) {
        self.open().entry(key).or_default().push(IdleConnection { sender, since: Instant::now() });
    }

    /// Closes those that were not used for long, again and again.
    pub(super) async fn close_idle(&self) {
        loop {
            sleep(IDLE / 2).await;
            let mut open = self.open();
            for of_key in open.values_mut() {
                of_key.retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() < IDLE);
            }
            open.retain(|_, of_key| !of_key.is_empty());
        }
    }

    pub(super) fn forget(&self, task: &str) {
        self.open().retain(|(of, _), _| of != task);
    }
}

/// The answer of the notebook to this request.
pub(super) async fn forward(to: Target, mut request: Request) -> Result<Response, Page> {
    let upgrade = websocket(request.headers()).then(|| hyper::upgrade::on(&mut request));
    let request = to.request(request, upgrade.is_some())?;
    let key = (to.task.clone(), to.call.who.user.clone());
    let connections = &to.api.app.notebooks.connections;
    let mut sender = match connections.take(&key) {
        Some(sender) => sender,
        None => to.connect().await?,
    };
    let answered = timeout(ANSWER, sender.send_request(request)).await;
    let slow = || Page::new(StatusCode::GATEWAY_TIMEOUT, "The notebook does not answer.");
    let answer = match answered.map_err(|_| slow())? {
        Ok(answer) => answer,
        Err(error) => {
            // It has ended, or does not listen yet; the next request finds out.
            tracing::debug!(task = to.task, %error, "a notebook did not answer");
            to.api.app.notebooks.forget(&to.task);
            return Err(Page::starting());
        }
    };
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
        return match upgrade {
            Some(upgrade) => Ok(to.switch(answer, upgrade)),
            None => Err(Page::new(StatusCode::BAD_GATEWAY, "The notebook changed the protocol.")),
        };
    }
    if answer.status() == StatusCode::FORBIDDEN {
        // The token may be that of a former run.
        to.api.app.notebooks.found().remove(&to.task);
    }
    connections.put(key, sender);
    let (mut parts, body) = answer.into_parts();
    to.clean(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Whether the client wants a websocket. Other protocols are not offered.
fn websocket(headers: &HeaderMap) -> bool {
    headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

impl Target {
    /// The request as the notebook gets it.
    fn request(&self, request: Request, is_upgrade: bool) -> Result<hyper::Request<Body>, Page> {
        let wrong = || Page::new(StatusCode::BAD_REQUEST, "The notebook has no such address.");
        let (mut parts, body) = request.into_parts();
        let whole = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let path = match self.program {
            NotebookProgram::Jupyterlab => whole.to_owned(),
            // It knows nothing of a path above it.
            NotebookProgram::CodeServer => {
                let below = whole.get(1 + self.task.len()..).unwrap_or_default();
                if below.starts_with('/') { below.to_owned() } else { format!("/{below}") }
            }
        };
        parts.uri = Uri::try_from(path).map_err(|_| wrong())?;
        remove_of_connection(&mut parts.headers);
        for name in NOT_TO_TASK {
            parts.headers.remove(name);
        }
        parts.headers.insert(header::HOST, HeaderValue::from_static(LOCAL));
        if !self.found.token.is_empty() {
            let token = HeaderValue::try_from(format!("token {}", self.found.token)).map_err(|_| wrong())?;
            parts.headers.insert(header::AUTHORIZATION, token);
        }
        if is_upgrade {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        }
        parts.extensions = Extensions::new();
        Ok(hyper::Request::from_parts(parts, body))
    }

    async fn connect(&self) -> Result<SendRequest<Body>, Page> {
        let stream = tunnel::connect(&self.call, &self.task, &self.found).await.map_err(Page::refused)?;
        let broken = |error: hyper::Error| {
            Page::refused(ApiError::new(502, 0, "The connection to the notebook broke").caused_by(error))
        };
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(async move {
            // The caller sees the error of its request.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    /// Carries a websocket until one side, the login or the right ends.
    fn switch(self, mut answer: hyper::Response<hyper::body::Incoming>, browser: OnUpgrade) -> Response {
        let notebook = hyper::upgrade::on(&mut answer);
        let (mut parts, _) = answer.into_parts();
        let kept = parts.headers.remove("sec-websocket-accept");
        let protocol = parts.headers.remove("sec-websocket-protocol");
        let extensions = parts.headers.remove("sec-websocket-extensions");
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        for (name, value) in [
            (header::SEC_WEBSOCKET_ACCEPT, kept),
            (header::SEC_WEBSOCKET_PROTOCOL, protocol),
            (header::SEC_WEBSOCKET_EXTENSIONS, extensions),
        ] {
            value.map(|value| headers.insert(name, value));
        }
        tokio::spawn(async move {
            let (Ok(browser), Ok(notebook)) = tokio::join!(browser, notebook) else { return };
            let (mut browser, mut notebook) = (TokioIo::new(browser), TokioIo::new(notebook));
            tokio::select! {
                // The side that closed first is the reason.
                _ = copy_bidirectional(&mut browser, &mut notebook) => {}
                () = self.ends() => {}
            }
        });
        response
    }

    /// Until its user may not have it any more.
    async fn ends(&self) {
        loop {
            sleep(RIGHT_EVERY).await;
            if self.admission.call(&self.api, &self.call.ip).await.is_err_and(|error| error.code < 500) {
                return;
            }
        }
    }

    /// The headers of an answer as the browser gets them.
    fn clean(&self, headers: &mut HeaderMap) {
        remove_of_connection(headers);
        for name in NOT_TO_BROWSER {
            headers.remove(name);
        }
        // A notebook knows itself by another name, and code-server by another path.
        let location = headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
        if let Some(location) = location.and_then(|location| self.location(location)) {
            headers.insert(header::LOCATION, location);
        }
        // No other site shows it in a frame: clicks in it would be those of its user.
        headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("frame-ancestors 'self'"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    }

    fn location(&self, location: &str) -> Option<HeaderValue> {
        let own = [format!("http://{LOCAL}/"), format!("https://{LOCAL}/")];
        let path = own.iter().find_map(|own| location.strip_prefix(own)).map(|rest| format!("/{rest}"));
        let path = path.or_else(|| location.starts_with('/').then(|| location.to_owned()))?;
        if path.starts_with("//") {
            return None;
        }
        let below = match self.program {
            NotebookProgram::Jupyterlab => path,
            NotebookProgram::CodeServer => format!("/{}{path}", self.task),
        };
        HeaderValue::try_from(format!("{}{below}", self.origin)).ok()
    }
}

fn remove_of_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named.into_iter().chain(OF_CONNECTION) {
        headers.remove(name);
    }
    headers.remove(KEEP_ALIVE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_connection_stay_with_it() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "keep-alive, X-Own"),
            ("keep-alive", "5"),
            ("x-own", "1"),
            ("x-kept", "2"),
            ("te", "trailers"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        remove_of_connection(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-kept"]);
    }
}
