//! The endpoints of a login: two for browsers, three for the CLI. The caller has no keys yet.

use std::sync::Arc;

use axum::extract::{ConnectInfo, DefaultBodyLimit, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use cantle_clearml::{Envelope, Meta, MetaEndpoint};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{BROWSER_S, LoggedIn, Login, LoginError, TOKEN_S};
use crate::app::{App, Call};
use crate::clock::{new_id, now_us};
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::{Begin, Principal, audit};
use crate::ui::{client_of, cookie_of, session_cookie};

const COOKIE: &str = "cantle_login";
const COMMAND_LINE: &str = "command line";
/// A refresh token is the longest input here.
const BODY_LIMIT_BYTES: usize = 16 << 10;

/// For browsers: `GET /ui/-/login` and where the provider sends them back to.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/ui/-/login", get(begin))
        .route("/ui/-/login/callback", get(finish))
        .route("/ui/-/login/modes", get(modes))
        .with_state(app)
}

/// For the CLI, in the style of the API: a device code, its token, and a new token for an old login.
pub(crate) fn calls(app: Arc<App>) -> Router {
    Router::new()
        .route("/cantle.login_start", post(start))
        .route("/cantle.login_poll", post(poll))
        .route("/cantle.login_refresh", post(refresh))
        .layer(DefaultBodyLimit::max(BODY_LIMIT_BYTES))
        .with_state(app)
}

fn of(app: &App) -> Result<&Login, ApiError> {
    let none = || ApiError::new(400, 0, "this server has no login with an identity provider (--oidc-issuer)");
    app.login.as_deref().ok_or_else(none)
}

impl From<LoginError> for ApiError {
    fn from(error: LoginError) -> Self {
        let code = match &error {
            LoginError::Busy => 503,
            LoginError::Away(_) | LoginError::Odd(_) | LoginError::Review(_) => 502,
            LoginError::Issuer(_)
            | LoginError::Cluster(_)
            | LoginError::NoCluster
            | LoginError::File { .. } => 500,
            LoginError::Refused { .. } | LoginError::Token(_) | LoginError::Stray(_) => 401,
        };
        tracing::warn!("login: {error}");
        Self::new(code, 0, error.to_string()).caused_by(error)
    }
}

/// The origin of a login.
struct Client<'a> {
    via: &'a str,
    /// The name that it gives itself.
    name: &'a str,
    peer: &'a Peer,
}

/// The user who logged in, with a new session and a token.
async fn admit(
    app: &Arc<App>,
    found: &LoggedIn,
    client: &Client<'_>,
) -> Result<(Principal, String), ApiError> {
    let now_us = now_us();
    let who = app.people.by_identity(&app.store, &found.who, now_us).await?;
    let from = client.peer.address.ip().to_string();
    let begin = Begin {
        via: client.via,
        client: client.name,
        from: &from,
        refresh_token: found.refresh_token.as_deref().filter(|_| client.via == COMMAND_LINE),
        lives_s: TOKEN_S,
        now_us,
    };
    let who = app.people.begin_session(&app.store, who, &begin).await?;
    tracing::info!(user = %who.name, groups = ?found.who.groups, "logged in");
    let call = Call::new(Arc::clone(app), from, Arc::new(who.clone()));
    let how = json!({ "via": "identity provider", "groups": found.who.groups });
    audit::add(app, &audit::record(&call, "login", Value::Null, &how)).await;
    let token = app.keys.token(&who, now_us, Some(TOKEN_S))?;
    Ok((who, token))
}

/// A token for a login that is prolonged. The login may have been ended here, independent of the provider.
async fn readmit(app: &Arc<App>, old: &Old, from: &Peer) -> Result<(LoggedIn, Principal, String), ApiError> {
    const ENDED: &str = "it was ended, or not used for 90 days";
    let now_us = now_us();
    let ended = || ApiError::unauthorized(0, ENDED);
    let login = of(app)?;
    let (id, user) =
        app.people.session_to_refresh(&app.store, &old.refresh_token, now_us).await?.ok_or_else(ended)?;
    let found = login.refresh(&old.refresh_token).await?;
    // Before anything is kept of it: the provider may name another user by now.
    if app.people.register().of_identity(&found.who.id).is_none_or(|known| known.id != user) {
        return Err(ended());
    }
    let next = found.refresh_token.as_deref().unwrap_or(&old.refresh_token);
    let before = app.people.register().groups(&user).to_vec();
    let who = app.people.by_identity(&app.store, &found.who, now_us).await?;
    if before != found.who.groups {
        // This is not a login, but the user's rights have changed.
        let call = Call::new(Arc::clone(app), from.address.ip().to_string(), Arc::new(who.clone()));
        let (before, after) = (json!({ "groups": before }), json!({ "groups": found.who.groups }));
        audit::add(app, &audit::record(&call, "login", before, &after)).await;
    }
    if !app.people.refresh_session(&app.store, &id, next, now_us).await? {
        return Err(ended());
    }
    let who = Principal { session: Some(id), ..who };
    let token = app.keys.token(&who, now_us, Some(TOKEN_S))?;
    Ok((found, who, token))
}

/// The offers of the page.
async fn modes(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "oidc": app.login.is_some() }))
}

#[derive(Deserialize)]
struct BeginQuery {
    #[serde(default)]
    next: String,
}

async fn begin(State(app): State<Arc<App>>, Query(wanted): Query<BeginQuery>) -> Response {
    let begun = match of(&app) {
        Ok(login) => login.begin(&wanted.next).await.map_err(ApiError::from),
        Err(error) => Err(error),
    };
    match begun {
        Ok((url, kept)) => {
            ([(header::SET_COOKIE, login_cookie(&app, &kept, BROWSER_S))], Redirect::to(&url)).into_response()
        }
        Err(error) => say(&app, &error),
    }
}

/// The parameters with which the provider sends a browser back.
#[derive(Deserialize)]
struct Returned {
    #[serde(default)]
    state: String,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    #[serde(default)]
    error_description: String,
}

async fn finish(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    Query(returned): Query<Returned>,
) -> Response {
    match returned_user(&app, &peer, &headers, returned).await {
        Ok((next, token)) => {
            let cookies = [
                (header::SET_COOKIE, session_cookie(&token, TOKEN_S, app.door)),
                (header::SET_COOKIE, login_cookie(&app, "", 0)),
            ];
            (axum::response::AppendHeaders(cookies), Redirect::to(&next)).into_response()
        }
        Err(error) => say(&app, &error),
    }
}

async fn returned_user(
    app: &Arc<App>,
    peer: &Peer,
    headers: &HeaderMap,
    returned: Returned,
) -> Result<(String, String), ApiError> {
    let login = of(app)?;
    // First, check that this server began the login: nothing else in the request is read before.
    let begun = login.begun(cookie_of(headers, COOKIE).unwrap_or_default(), &returned.state)?;
    if returned.iss.as_deref().is_some_and(|iss| iss != login.provider.issuer()) {
        return Err(LoginError::Stray("another provider answers").into());
    }
    if let Some(code) = returned.error {
        return Err(LoginError::Refused { code, text: returned.error_description }.into());
    }
    let code = returned.code.ok_or(LoginError::Stray("the provider sent no code"))?;
    let found = login.finish(&begun, &code).await?;
    let client = Client { via: "page", name: client_of(headers), peer };
    let (_, token) = admit(app, &found, &client).await?;
    Ok((begun.next, token))
}

/// One line of text; it is not part of the page.
fn say(app: &App, error: &ApiError) -> Response {
    let status = StatusCode::from_u16(error.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = format!("{}\n\nTry again at /ui.\n", error.message);
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    let cookie = login_cookie(app, "", 0);
    (status, [(header::CONTENT_TYPE, kind), (header::SET_COOKIE, cookie)], text).into_response()
}

fn login_cookie(app: &App, value: &str, lives_s: i64) -> HeaderValue {
    let secure = if app.door.is_tls { "; Secure" } else { "" };
    // The provider sends the browser back from another site, so this one cannot be strict.
    let text =
        format!("{COOKIE}={value}; Path=/ui/-/login; HttpOnly; SameSite=Lax; Max-Age={lives_s}{secure}");
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

async fn start(State(app): State<Arc<App>>) -> Response {
    let answer = async {
        let found = of(&app)?.device().await?;
        let known = [
            "device_code",
            "user_code",
            "verification_uri",
            "verification_uri_complete",
            "interval",
            "expires_in",
        ];
        let kept = found.into_iter().filter(|(name, _)| known.contains(&name.as_str()));
        Ok(Value::Object(kept.collect()))
    };
    enveloped("cantle.login_start", answer.await)
}

#[derive(Deserialize)]
struct Device {
    device_code: String,
    /// The client's name, for the list of sessions.
    #[serde(default)]
    client: String,
}

async fn poll(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(device): Json<Device>,
) -> Response {
    let answer = async {
        match of(&app)?.poll(&device.device_code).await? {
            None => Ok(json!({ "pending": true })),
            Some(found) => {
                let client = Client { via: COMMAND_LINE, name: &device.client, peer: &peer };
                let (who, token) = admit(&app, &found, &client).await?;
                Ok(logged_in(&found, &who, &token))
            }
        }
    };
    enveloped("cantle.login_poll", answer.await)
}

#[derive(Deserialize)]
struct Old {
    refresh_token: String,
}

async fn refresh(
    State(app): State<Arc<App>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(old): Json<Old>,
) -> Response {
    let answer = async {
        let (found, who, token) = readmit(&app, &old, &peer).await?;
        Ok(logged_in(&found, &who, &token))
    };
    enveloped("cantle.login_refresh", answer.await)
}

fn logged_in(found: &LoggedIn, who: &Principal, token: &str) -> Value {
    json!({
        "pending": false, "token": token, "lives_s": TOKEN_S, "user": who.name, "groups": found.who.groups,
        "refresh_token": found.refresh_token,
    })
}

fn enveloped(name: &str, answer: Result<Value, ApiError>) -> Response {
    let endpoint = MetaEndpoint { name: name.to_owned(), ..MetaEndpoint::default() };
    let mut meta = Meta { id: new_id(), trx: new_id(), endpoint, ..Meta::default() };
    let data = match answer {
        Ok(data) => {
            (meta.result_code, meta.result_msg) = (200, "OK".to_owned());
            data
        }
        Err(error) => {
            (meta.result_code, meta.result_subcode, meta.result_msg) =
                (error.code, error.subcode, error.message);
            json!({})
        }
    };
    let status = StatusCode::from_u16(meta.result_code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(Envelope { meta, data })).into_response()
}
