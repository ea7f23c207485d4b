//! Translates HTTP requests to calls, and results to responses. Any method is accepted, also GET with a body, and
//! versions in the path.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{self, ConnectInfo, DefaultBodyLimit, RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use cantle_clearml::metering::GetUsages;
use cantle_clearml::{Envelope, Meta, MetaEndpoint, Request, without_nulls};
use serde_json::{Map, Value, json};
use tracing::Instrument as _;

use crate::app::{App, Call};
use crate::clock::new_id;
use crate::door::Peer;
use crate::error::ApiError;
use crate::identity::API_VERSION;
use crate::rights::{self, Principal, Rule, audit};
use crate::routes::Routes;
use crate::ui::{self, Ui};
use crate::{execs, files, health, login, metrics, open, services};

/// Limit of a request's body. Uploads of files have an endpoint of their own.
const BODY_LIMIT_BYTES: usize = 16 << 20;
/// Limit of a name or a message. They are shown in lists.
const SHORT_TEXT_BYTES: usize = 64 << 10;
const SHORT_TEXTS: [&str; 5] = ["name", "new_name", "new_task_name", "status_message", "status_reason"];
/// A batch of logs or plots may be larger.
const BATCH_LIMIT_BYTES: usize = 64 << 20;

/// The part of the API that clients get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// All of it.
    Whole,
    /// Only the endpoints of ClearML's open-source server.
    OpenSource,
}

impl Service {
    fn has(self, endpoint: &str) -> bool {
        const LACKING: [&str; 6] = [
            "get_usages",
            "users.get_vaults",
            "workers.cluster_report",
            "workers.cluster_unregister",
            "workers.get_runtime_properties",
            "workers.set_runtime_properties",
        ];
        self == Self::Whole || !(endpoint.starts_with("cantle.") || LACKING.contains(&endpoint))
    }

    /// Removes the fields that are cantle's own: the open-source server ignores them.
    fn strip(self, endpoint: &str, body: &mut Value) {
        let own: &[&str] = match endpoint {
            "queues.get_next_task" => &["task", "wait_ms"],
            "events.get_task_log" => &["after"],
            _ => return,
        };
        if let (Self::OpenSource, Value::Object(fields)) = (self, body) {
            own.iter().for_each(|name| drop(fields.remove(*name)));
        }
    }
}

/// The endpoints and the state that they share.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) app: Arc<App>,
    routes: Arc<Routes>,
    service: Service,
}

impl Api {
    pub(crate) fn new(app: Arc<App>, service: Service) -> Self {
        Self { app, routes: Arc::new(services::routes()), service }
    }

    /// A call from within the server, answered as one from outside.
    pub(crate) async fn ask<R: Request>(&self, request: &R) -> Result<R::Response, ApiError> {
        let who = Arc::new(Principal::server());
        let call = Call::new(Arc::clone(&self.app), "127.0.0.1".to_owned(), who);
        self.ask_as(&call, request).await
    }

    /// The same with the rights of a caller.
    pub(crate) async fn ask_as<R: Request>(&self, call: &Call, request: &R) -> Result<R::Response, ApiError> {
        let failed = |error: serde_json::Error| {
            ApiError::new(500, 0, format!("{}: {error}", R::ENDPOINT)).caused_by(error)
        };
        let body = serde_json::to_value(request).map(without_nulls).map_err(failed)?;
        serde_json::from_value(self.routes.call(R::ENDPOINT, call.clone(), body).await?).map_err(failed)
    }
}

impl Api {
    /// A call for a known user by a page of the server's own, with the checks and the records of one from outside.
    pub(crate) async fn act_for<R: Request>(
        &self,
        call: &Call,
        request: &R,
    ) -> Result<R::Response, ApiError> {
        let rule = rights::rule(R::ENDPOINT).ok_or_else(|| ApiError::unknown_endpoint(R::ENDPOINT))?;
        let body = serde_json::to_value(request).map_err(ApiError::unwritable)?;
        let text = body.to_string();
        let done = act(self, call, rule, None, text.as_bytes()).await;
        if let Some(error) = refusal(&done) {
            note_refusal(self, call, rule, &body, error).await;
        }
        serde_json::from_value(done?).map_err(ApiError::unreadable)
    }
}

/// The whole server as one axum router.
pub(crate) fn router(api: Api, ui: Ui) -> Router {
    let app = Arc::clone(&api.app);
    Router::new()
        .route("/healthz", get(health::answer).with_state(Arc::clone(&app)))
        .route("/readyz", get(health::ready).with_state(Arc::clone(&app)))
        .route("/metrics", get(metrics::scrape).with_state(ui.clone()))
        .route("/get_usages", any(get_usages))
        .merge(execs::router(api.clone()))
        .merge(files::router(Arc::clone(&api.app)))
        .fallback(answer)
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .with_state(api)
        .merge(ui::router(ui))
        .merge(login::router(Arc::clone(&app)))
        .merge(login::calls(Arc::clone(&app)))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), open::guard))
        .layer(middleware::from_fn_with_state(app, protect))
        .layer(middleware::from_fn(close_to_sdk))
}

/// Closes the connection of ClearML's SDK after each answer. The SDK keeps connections, and shares
/// them with the processes that it is forked into: their requests and answers then arrive mixed.
async fn close_to_sdk(request: extract::Request, next: middleware::Next) -> Response {
    let headers = request.headers();
    let is_sdk = headers.contains_key("x-clearml-client") || headers.contains_key("x-trains-client");
    let mut response = next.run(request).await;
    if is_sdk {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// The headers by which each answer describes itself to a browser, unless it sets others as pages of the UI do: it is
/// no page, it may not be guessed to be one, and no other site may show it. With TLS: there is no other way to this
/// server.
async fn protect(State(app): State<Arc<App>>, request: extract::Request, next: middleware::Next) -> Response {
    const HEADERS: [(HeaderName, &str); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'; sandbox"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let of_tls = app.door.is_tls.then_some((header::STRICT_TRANSPORT_SECURITY, "max-age=31536000"));
    for (name, value) in HEADERS.into_iter().chain(of_tls) {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

pub(crate) async fn answer(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    uri: Uri,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (version, endpoint) = split_path(uri.path());
    let mut meta = Meta {
        id: new_id(),
        trx: text(&headers, "x-clearml-trx").map_or_else(new_id, str::to_owned),
        endpoint: MetaEndpoint {
            name: endpoint.to_owned(),
            requested_version: version.unwrap_or(API_VERSION).to_owned(),
            actual_version: version.unwrap_or(API_VERSION).to_owned(),
        },
        ..Meta::default()
    };
    let span = tracing::info_span!("request", endpoint, status = tracing::field::Empty);
    let result = dispatch(&api, &peer, endpoint, query.as_deref(), &headers, body);
    let result = result.instrument(span.clone()).await;
    let data = match result {
        Ok(data) => {
            (meta.result_code, meta.result_msg) = (200, "OK".to_owned());
            data
        }
        Err(error) => {
            if error.code == StatusCode::SERVICE_UNAVAILABLE {
                api.app.health.note_fault(&error.message);
            }
            (meta.result_code, meta.result_subcode) = (error.code, error.subcode);
            meta.result_msg = error.message;
            json!({})
        }
    };
    span.record("status", meta.result_code);
    let status = StatusCode::from_u16(meta.result_code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, axum::Json(Envelope { meta, data })).into_response()
}

/// ClearML's Usage Aggregator is a program of its own, whose answers have no envelope.
async fn get_usages(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match dispatch(&api, &peer, GetUsages::ENDPOINT, None, &headers, body).await {
        Ok(data) => axum::Json(data).into_response(),
        Err(error) => {
            let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            (status, axum::Json(json!({"error": error.message}))).into_response()
        }
    }
}

async fn dispatch(
    api: &Api,
    peer: &Peer,
    endpoint: &str,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Value, ApiError> {
    if !api.service.has(endpoint) {
        return Err(ApiError::unknown_endpoint(endpoint));
    }
    let rule = rights::rule(endpoint).ok_or_else(|| ApiError::unknown_endpoint(endpoint))?;
    if !peer.is_certified && api.app.door.wants_certificate(endpoint) {
        return Err(ApiError::no_certificate(endpoint));
    }
    let call =
        api.app.call(text(headers, header::AUTHORIZATION.as_str()), peer.address.ip(), rule.endpoint).await?;
    peer.standing.has_shown_a_key();
    // Only now: a caller without keys cannot make the server keep anything.
    let body = read(body, endpoint).await?;
    let done = act(api, &call, rule, query, &body).await;
    if let Some(error) = refusal(&done) {
        note_refusal(api, &call, rule, &object(&body).unwrap_or_default(), error).await;
    }
    done
}

/// The error, if a right was missing.
fn refusal(done: &Result<Value, ApiError>) -> Option<&ApiError> {
    done.as_ref().err().filter(|error| error.code == StatusCode::FORBIDDEN)
}

async fn note_refusal(api: &Api, call: &Call, rule: &Rule, body: &Value, error: &ApiError) {
    let record = audit::record(call, rule.endpoint, Value::Null, body);
    call.refusals.note(&api.app, record, error).await;
}

/// Does what a known caller asks for, if it may, and records the call if the table requires that.
async fn act(
    api: &Api,
    call: &Call,
    rule: &'static Rule,
    query: Option<&str>,
    body: &[u8],
) -> Result<Value, ApiError> {
    let (endpoint, mut caller) = (rule.endpoint, call.clone());
    match endpoint {
        "auth.login" => services::people::auth::login(call, query).await,
        "events.add_batch" => services::output::events::add_batch(caller, body).await,
        _ => {
            let mut body = object(body)?;
            api.service.strip(endpoint, &mut body);
            texts_are_short(&body)?;
            // This call checks the rights itself, as the call for many events does: an unknown task is a bad event
            // there, not a bad call.
            if endpoint != "events.add" {
                caller.passed = rights::check(call, rule, &body).await?;
            }
            if !rule.audited {
                return api.routes.call(endpoint, caller, body).await;
            }
            let record = audit::record(call, endpoint, audit::before(call, &body).await, &body);
            let answer = api.routes.call(endpoint, caller, body).await?;
            audit::add(&api.app, &record).await;
            Ok(answer)
        }
    }
}

/// The whole body, if it is not longer than the endpoint's limit.
async fn read(body: Body, endpoint: &str) -> Result<Bytes, ApiError> {
    let limit = if endpoint.starts_with("events.add") { BATCH_LIMIT_BYTES } else { BODY_LIMIT_BYTES };
    to_bytes(body, limit).await.map_err(|error| {
        let text = format!("{endpoint}: the body is longer than {} MiB, or was cut off", limit >> 20);
        ApiError::new(413, 0, text).caused_by(error)
    })
}

/// The body as one JSON object. No body is an empty one; `null` members are absent ones.
fn object(body: &[u8]) -> Result<Value, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(Map::new()));
    }
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(without_nulls(value)),
        Ok(_) => Err(ApiError::invalid("the body must be a JSON object")),
        Err(error) => Err(ApiError::invalid(format!("the body is not JSON: {error}")).caused_by(error)),
    }
}

/// Refuses long names and messages, of the request and of the task in it.
fn texts_are_short(body: &Value) -> Result<(), ApiError> {
    let objects = [Some(body), body.get("task")];
    let texts = objects
        .into_iter()
        .flatten()
        .flat_map(|object| SHORT_TEXTS.iter().filter_map(|name| Some((*name, object.get(name)?.as_str()?))));
    for (name, text) in texts {
        if text.len() > SHORT_TEXT_BYTES {
            let text = format!("{name}: {} bytes; at most {SHORT_TEXT_BYTES}", text.len());
            return Err(ApiError::invalid(text));
        }
    }
    Ok(())
}

/// `/v2.23/tasks.get_all` → `2.23` and `tasks.get_all`. Clients whose configured address ends in `/api` send a prefix.
fn split_path(path: &str) -> (Option<&str>, &str) {
    let path = path.trim_matches('/');
    let path = path.strip_prefix("api/").unwrap_or(path);
    match path.split_once('/') {
        Some((first, rest)) if is_version(first) => (first.strip_prefix('v'), rest),
        _ => (None, path),
    }
}

fn is_version(text: &str) -> bool {
    let Some(digits) = text.strip_prefix('v') else {
        return false;
    };
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        assert_eq!(split_path("/tasks.get_all"), (None, "tasks.get_all"));
        assert_eq!(split_path("/v2.23/tasks.get_all"), (Some("2.23"), "tasks.get_all"));
        assert_eq!(split_path("/api/v2.5/queues.get_all/"), (Some("2.5"), "queues.get_all"));
        assert_eq!(split_path("/vault/x"), (None, "vault/x"));
        assert_eq!(split_path("//"), (None, ""));
    }

    #[test]
    fn names_and_messages_are_short() {
        let long = "x".repeat(SHORT_TEXT_BYTES + 1);
        for body in [json!({"name": long}), json!({"task": {"name": long}}), json!({"status_message": long})]
        {
            assert_eq!(texts_are_short(&body).unwrap_err().code, 400);
        }
        for body in [json!({"comment": long}), json!({"task": "id", "name": &long[1..]}), json!([])] {
            assert!(texts_are_short(&body).is_ok());
        }
    }

    #[test]
    fn bodies() {
        assert_eq!(object(b" \n").unwrap(), json!({}));
        assert_eq!(object(br#"{"a":null,"b":{"c":null,"d":1}}"#).unwrap(), json!({"b": {"d": 1}}));
        for bad in ["[]", "1", "{", "\u{0}", "nope"] {
            assert_eq!(object(bad.as_bytes()).unwrap_err().code, 400, "{bad}");
        }
    }
}
