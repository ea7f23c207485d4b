//! Who may open a notebook: tickets, which are good once, and the cookie that a browser gets for one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use cantle_clearml::notebook::NotebookProgram;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use serde::{Deserialize, Serialize};

use super::pages::Page;
use super::{is_own_host, may_open, program_of};
use crate::api::Api;
use crate::app::{App, Call};
use crate::clock::{new_id, now_us};
use crate::door::Peer;
use crate::error::ApiError;
use crate::rights::{OfSession, Principal};
use crate::ui::cookie_of;

const COOKIE: &str = "cantle_notebook";
/// From the page to this listener.
const TICKET_US: i64 = 60_000_000;
/// Tickets at once.
const TICKETS: usize = 4096;
/// The longest life of a cookie. It ends before with the login of its user.
const COOKIE_S: i64 = 24 * 3600;
/// Where the end of the login is not known.
const UNKNOWN_S: i64 = 600;

/// The user of an open notebook, and the login that it was opened with. Signed, it is the value of the cookie.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Admission {
    task: String,
    user: String,
    key: Option<String>,
    session: Option<String>,
    iat: i64,
    exp: i64,
}

/// Signs the cookies of this listener, and nothing else.
pub(crate) struct NotebookKey(pub(crate) [u8; 32]);

impl std::fmt::Debug for NotebookKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NotebookKey").finish_non_exhaustive()
    }
}

/// Tickets that nobody has shown yet.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Mutex<BTreeMap<String, (i64, Admission)>>);

impl Tickets {
    /// A new one, for a caller who may open the notebook.
    pub(crate) fn add(&self, call: &Call, task: &str) -> Result<String, ApiError> {
        let who = &call.who;
        let (now_us, iat) = (call.now_us, call.now_us / 1_000_000);
        let login = who.session.as_deref().map(|id| call.app.people.session_end_us(id));
        let lives_s = match login {
            Some(Some(end_us)) => (end_us / 1_000_000 - iat).min(COOKIE_S),
            None if who.access_key.is_some() || call.app.keys.is_open() => COOKIE_S,
            // A login that another server has just made, or a token of Kubernetes, which is not exchanged for a longer one.
            Some(None) | None => UNKNOWN_S,
        };
        let admission = Admission {
            task: task.to_owned(),
            user: who.user.clone(),
            key: who.access_key.clone(),
            session: who.session.clone(),
            iat,
            exp: iat + lives_s,
        };
        let mut tickets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.retain(|_, (end_us, _)| *end_us > now_us);
        if tickets.len() >= TICKETS {
            return Err(ApiError::new(429, 0, "too many notebooks are being opened at once; try again"));
        }
        let ticket = new_id() + &new_id();
        tickets.insert(ticket.clone(), (now_us + TICKET_US, admission));
        Ok(ticket)
    }

    fn take(&self, ticket: &str) -> Option<Admission> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(ticket);
        taken.filter(|(end_us, _)| *end_us > now_us()).map(|(_, admission)| admission)
    }
}

impl Admission {
    /// That of the request's cookie, for this task.
    pub(super) fn of(api: &Api, headers: &HeaderMap, task: &str) -> Option<Self> {
        let mut validation = Validation::new(Algorithm::HS256);
        validation.leeway = 0;
        let key = DecodingKey::from_secret(&api.app.notebook_key.0);
        let found = decode::<Self>(cookie_of(headers, COOKIE)?, &key, &validation).ok()?.claims;
        (found.task == task).then_some(found)
    }

    fn sign(&self, app: &App) -> Result<String, ApiError> {
        let key = EncodingKey::from_secret(&app.notebook_key.0);
        encode(&Header::new(Algorithm::HS256), self, &key)
            .map_err(|error| ApiError::new(500, 0, format!("cookie: {error}")).caused_by(error))
    }

    /// A call of this user, who may still open the notebook.
    pub(super) async fn call(&self, api: &Api, ip: &str) -> Result<Call, ApiError> {
        let app = &api.app;
        let who = if app.keys.is_open() {
            Principal::server()
        } else {
            let age_us = now_us().saturating_sub(self.iat.saturating_mul(1_000_000));
            let session = self.session.as_deref().map(|id| OfSession { id, age_us });
            app.people
                .by_token(&self.user, self.key.as_deref(), session)
                .map_err(|_| ApiError::new(401, 0, "Your login has ended"))?
        };
        let call = Call::new(Arc::clone(app), ip.to_owned(), Arc::new(who));
        may_open(&call, &self.task).await?;
        Ok(call)
    }
}

#[derive(Deserialize)]
struct Shown {
    #[serde(default)]
    ticket: String,
}

/// `GET /-/enter?ticket=…`: the ticket becomes a cookie.
pub(super) async fn enter(api: &Api, peer: &Peer, uri: Uri, headers: HeaderMap) -> Result<Response, Page> {
    let shown = axum::extract::Query::<Shown>::try_from_uri(&uri).map(|query| query.0.ticket);
    let used = || {
        Page::new(
            StatusCode::FORBIDDEN,
            "This link was used already, or is older than a minute. Open the notebook on the page of its task.",
        )
    };
    let is_entrance = uri.path() == "/-/enter";
    let ticket = shown.ok().filter(|_| is_entrance).unwrap_or_default();
    let admission = api.app.notebooks.tickets.take(&ticket).ok_or_else(used)?;
    let task = &admission.task;
    is_own_host(api, task, &headers)?;
    let call = admission.call(api, &peer.address.ip().to_string()).await.map_err(Page::refused)?;
    let program = program_of(&call, task).await.map_err(Page::refused)?;
    peer.standing.has_shown_a_key();
    let value = admission.sign(&api.app).map_err(Page::refused)?;
    let lives_s = (admission.exp - admission.iat).max(0);
    let secure = if is_encrypted(&api.app) { "; Secure" } else { "" };
    // Only requests for this task have it. Lax: a link to a notebook from elsewhere opens it.
    let cookie =
        format!("{COOKIE}={value}; Path=/{task}/; HttpOnly; SameSite=Lax; Max-Age={lives_s}{secure}");
    let cookie = HeaderValue::try_from(cookie).map_err(|error| Page::refused(ApiError::unreadable(error)))?;
    let first = match program {
        NotebookProgram::Jupyterlab => "lab",
        NotebookProgram::CodeServer => "",
    };
    let headers = [
        (header::SET_COOKIE, cookie),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Redirect::to(&format!("/{task}/{first}"))).into_response())
}

fn is_encrypted(app: &App) -> bool {
    let url = app.notebook_address.as_ref().and_then(|address| address.url.as_deref());
    url.map_or(app.door.is_tls, |url| url.starts_with("https://"))
}
