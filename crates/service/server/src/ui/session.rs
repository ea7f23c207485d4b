//! Sessions of the page: a login with a key pair of the server sets a cookie.
//!
//! The cookie is an API token; it outlives a restart of the server as every token does. The CSRF token is derived from
//! it, so the server stores nothing.

use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cantle_clearml::Credentials;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::Ui;
use crate::app::{App, Call, DoorSettings};
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::{Begin, Principal, Right, audit};

const COOKIE: &str = "cantle_session";
const CSRF_HEADER: &str = "x-csrf-token";
const SESSION_S: i64 = 7 * 24 * 3600;
/// The CSRF token on an open server. Only pages of this server can send the header, so its value does not matter.
const OPEN_TOKEN: &str = "open";

/// An API token that came in the cookie and is good.
pub(crate) struct Session {
    token: String,
    pub(crate) who: Arc<Principal>,
}

impl Session {
    /// The session of a request.
    pub(crate) fn of(ui: &Ui, headers: &HeaderMap) -> Result<Self, ApiError> {
        if ui.api.app.keys.is_open() {
            return Ok(Self { token: String::new(), who: Arc::new(Principal::server()) });
        }
        let token = cookie_of(headers, COOKIE).unwrap_or_default().to_owned();
        let app = &ui.api.app;
        let who = app.keys.check(&app.people, Some(&format!("Bearer {token}")))?;
        // Programs have no page.
        if who.run.is_some() {
            return Err(ApiError::not_of_a_task(&who, "the page"));
        }
        Ok(Self { token, who: Arc::new(who) })
    }

    /// Identifies the user again: a stream may outlive the right to it.
    pub(super) fn renew(&mut self, ui: &Ui) -> Result<(), ApiError> {
        let app = &ui.api.app;
        if !app.keys.is_open() {
            self.who = Arc::new(app.keys.check(&app.people, Some(&self.authorization()))?);
        }
        Ok(())
    }

    /// Also refuses what another site could have made the browser send.
    pub(crate) fn of_action(ui: &Ui, headers: &HeaderMap) -> Result<Self, ApiError> {
        let session = Self::of(ui, headers)?;
        let given = headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        if given == Some(session.csrf().as_str()) {
            return Ok(session);
        }
        Err(ApiError::new(403, 0, format!("Forbidden (the {CSRF_HEADER} header is missing or wrong)")))
    }

    /// The `Authorization` header for the API.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    fn csrf(&self) -> String {
        if self.token.is_empty() {
            return OPEN_TOKEN.to_owned();
        }
        let digest = Sha256::digest(format!("csrf {}", self.token));
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// For each right the names of the projects at the top of the trees in which it holds; empty: everywhere.
    fn rights(&self) -> serde_json::Map<String, serde_json::Value> {
        let trees = |right: Right| -> Vec<&str> {
            let roles = self.who.roles.iter().filter(|(_, role)| right.is_in(*role));
            roles.map(|(tree, _)| tree.as_str()).collect()
        };
        Right::ALL.into_iter().map(|right| (right.name().to_owned(), json!(trees(right)))).collect()
    }

    fn describe(&self, ui: &Ui, headers: &HeaderMap) -> Json<serde_json::Value> {
        let keys = &ui.api.app.keys;
        let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Json(json!({
            "csrf": self.csrf(),
            "access_key": self.who.access_key,
            "user": self.who.user,
            "user_name": self.who.name,
            "rights": self.rights(),
            "open": keys.is_open(),
            "read_only": !self.who.may_somewhere(Right::Submit),
            "url": format!("{}://{host}", ui.api.app.door.scheme()),
        }))
    }
}

/// `GET /ui/-/session`
pub(crate) async fn show(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    match Session::of(&ui, &headers) {
        Ok(session) => session.describe(&ui, &headers).into_response(),
        Err(error) => refuse(&error),
    }
}

/// `POST /ui/-/session`
pub(crate) async fn log_in(
    State(ui): State<Ui>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Json<LogIn>,
) -> Response {
    let Credentials { access_key, secret_key } = body.0.into();
    let pair = STANDARD.encode(format!("{access_key}:{secret_key}"));
    let app = &ui.api.app;
    let made = app.call(Some(&format!("Basic {pair}")), peer.address.ip(), "login").await;
    let made = match made {
        Ok(call) => begin(app, call, &headers).await,
        Err(error) => Err(error),
    };
    match made {
        Ok((token, call)) => {
            let record = audit::record(&call, "login", Value::Null, &json!({ "via": "page" }));
            audit::add(app, &record).await;
            let who = call.who;
            let cookie = session_cookie(&token, SESSION_S, ui.api.app.door);
            let session = Session { token, who };
            ([(header::SET_COOKIE, cookie)], session.describe(&ui, &headers)).into_response()
        }
        Err(error) => refuse(&error),
    }
}

/// A session of this caller, and its token.
async fn begin(app: &App, call: Call, headers: &HeaderMap) -> Result<(String, Call), ApiError> {
    let begin = Begin {
        via: "page",
        client: client_of(headers),
        from: &call.ip,
        refresh_token: None,
        lives_s: SESSION_S,
        now_us: call.now_us,
    };
    let who = app.people.begin_session(&app.store, Principal::clone(&call.who), &begin).await?;
    let token = app.keys.token(&who, call.now_us, Some(SESSION_S))?;
    Ok((token, Call { who: Arc::new(who), ..call }))
}

/// The browser's name from its headers.
pub(crate) fn client_of(headers: &HeaderMap) -> &str {
    headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// `DELETE /ui/-/session`
pub(crate) async fn log_out(
    State(ui): State<Ui>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    match Session::of_action(&ui, &headers) {
        Ok(session) => {
            let call = Call::new(Arc::clone(&ui.api.app), peer.address.ip().to_string(), session.who);
            let record = audit::record(&call, "logout", Value::Null, &json!({ "via": "page" }));
            audit::add(&call, &record).await;
            // A copy of the cookie is worth nothing from now on.
            let ids: Vec<String> = call.who.session.iter().cloned().collect();
            if let Err(error) = call.people.end_sessions(&call.store, &ids, call.now_us).await {
                return refuse(&error.into());
            }
            (StatusCode::NO_CONTENT, [(header::SET_COOKIE, session_cookie("", 0, ui.api.app.door))])
                .into_response()
        }
        Err(error) => refuse(&error),
    }
}

/// A key pair, as the page sends it.
#[derive(serde::Deserialize)]
pub(crate) struct LogIn {
    access_key: String,
    secret_key: String,
}

impl From<LogIn> for Credentials {
    fn from(LogIn { access_key, secret_key }: LogIn) -> Self {
        Self { access_key, secret_key }
    }
}

/// An error of the page's own addresses: status and one line.
pub(crate) fn refuse(error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(json!({"meta": {"result_code": error.code, "result_msg": error.message}}))).into_response()
}

/// The cookie of this name.
pub(crate) fn cookie_of<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == wanted).map(|(_, value)| value)
}

/// The cookie of a session.
pub(crate) fn session_cookie(value: &str, lives_s: i64, door: DoorSettings) -> HeaderValue {
    let secure = if door.is_tls { "; Secure" } else { "" };
    let text = format!("{COOKIE}={value}; Path=/ui; HttpOnly; SameSite=Strict; Max-Age={lives_s}{secure}");
    // A token is base64url and dots, so this is always a legal header.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_among_others() {
        let mut headers = HeaderMap::new();
        assert_eq!(cookie_of(&headers, COOKIE), None);
        headers.append(header::COOKIE, HeaderValue::from_static("a=b; cantle_session=x.y.z; c=d"));
        assert_eq!(cookie_of(&headers, COOKIE), Some("x.y.z"));
    }

    #[test]
    fn csrf_tokens_belong_to_one_session() {
        let session = |token: &str| Session { token: token.into(), who: Arc::new(Principal::server()) };
        let (one, other) = (session("one"), session("other"));
        assert_ne!(one.csrf(), other.csrf());
        assert_eq!(one.csrf(), session("one").csrf());
        assert_eq!(one.csrf().len(), 64);
    }
}
