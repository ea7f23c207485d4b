//! The way from the page of a task to its notebook, which has another origin.

use std::sync::Arc;

use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use cantle_clearml::notebook::OpenNotebook;

use super::Ui;
use super::session::Session;
use crate::api::text;
use crate::app::Call;
use crate::door::Peer;
use crate::error::ApiError;
use crate::notebooks::refusal;

/// `GET /ui/-/notebook/{task}`: sends a browser with a session to the notebook of the task, with a ticket.
pub(crate) async fn open(
    State(ui): State<Ui>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(task): Path<String>,
    headers: HeaderMap,
) -> Response {
    if task.is_empty() || !task.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return refusal(ApiError::new(404, 0, "there is no such task"));
    }
    let is_meant = matches!(text(&headers, "sec-fetch-site"), None | Some("same-origin" | "none"));
    let session = match Session::of(&ui, &headers) {
        Ok(session) if is_meant => session,
        // The page logs in, and has a link to this address. A notebook must not open another one by itself.
        _ => return Redirect::to(&format!("/ui/tasks/{task}")).into_response(),
    };
    let app = &ui.api.app;
    let call = Call::new(Arc::clone(app), peer.address.ip().to_string(), session.who);
    let request = OpenNotebook { task };
    match (ui.api.act_for(&call, &request).await, &app.notebook_address) {
        (Ok(opened), Some(address)) => {
            let host = text(&headers, header::HOST.as_str()).unwrap_or_default();
            let base = address.of(&request.task, app.door.scheme(), host);
            let to = Redirect::to(&format!("{base}/-/enter?ticket={}", opened.ticket));
            ([(header::CACHE_CONTROL, "no-store")], to).into_response()
        }
        (Ok(_), None) => refusal(ApiError::new(404, 0, "this server has no address for notebooks")),
        (Err(error), _) => refusal(error),
    }
}
