//! The web page at `/ui`: its files, its sessions, its event stream and its calls of the API.
//!
//! The page has no rights of its own. Its calls go through `/ui/-/call/…` to the same endpoints that every client uses;
//! only authentication differs: a cookie that scripts cannot read, and a token that other sites cannot know.

mod assets;
mod feed;
mod forward;
mod gpu_time;
mod history;
mod notebook;
mod objects;
mod own;
mod session;
mod stream;

use std::sync::Arc;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use cantle_store::StoreError;

use crate::api::Api;
use crate::metrics::tally::Tally;
use feed::Feed;

pub(crate) use session::{client_of, cookie_of, refuse, session_cookie};

/// The state that the page's handlers share.
#[derive(Clone)]
pub(crate) struct Ui {
    pub(crate) api: Api,
    feed: Arc<Feed>,
}

impl Ui {
    /// The page of a server; nothing is started yet.
    pub(crate) async fn open(api: Api) -> Result<Self, StoreError> {
        let feed = Arc::new(Feed::open(&api).await?);
        Ok(Self { api, feed })
    }

    /// Polls the database as long as the server runs, and sends changes to the pages.
    pub(crate) async fn watch(self) {
        feed::run(&self.api, &self.feed).await;
    }

    /// Saves what is only in memory, once polling has ended.
    pub(crate) async fn save(&self) {
        self.feed.save(&self.api).await;
    }

    /// Reads the counts.
    pub(crate) fn with_tally(&self, read: impl FnOnce(&Tally)) {
        self.feed.with_tally(read);
    }

    /// Completes when `shutdown` does, after it has closed the streams: an open one would keep the server from ending.
    pub(crate) async fn until(self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        self.feed.close();
    }
}

async fn task_page(Path((_, _, task, rest)): Path<(String, String, String, String)>) -> Response {
    // Only an id may become a part of an address.
    if !task.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    Redirect::temporary(&format!("/ui/tasks/{task}{}", tab(&rest))).into_response()
}

/// The part of our page of a task that shows what a part of ClearML's page does.
fn tab(rest: &str) -> &'static str {
    for (theirs, ours) in [
        ("output/metrics/scalar", "/scalars"),
        ("output/metrics/plots", "/plots"),
        ("output/debugImages", "/images"),
        ("artifacts", "/artifacts"),
        ("hyper-params", "/configuration"),
        ("execution", "/configuration"),
    ] {
        if rest.starts_with(theirs) {
            return ours;
        }
    }
    ""
}

/// ClearML's address of a comparison: `ids=a,b`.
async fn compare_page(Path((_, ids, _)): Path<(String, String, String)>) -> Response {
    match ids.strip_prefix("ids=") {
        Some(ids) if ids.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b',') => {
            Redirect::temporary(&format!("/ui/compare?tasks={ids}")).into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Everything under `/ui`. Paths below `/ui/-/` are for the page, all others for the address bar.
pub(crate) fn router(ui: Ui) -> Router {
    Router::new()
        .route("/", get(|| async { Redirect::temporary("/ui") }))
        // The address that ClearML's SDK prints for each task.
        .route("/projects/{project}/{kind}/{task}/{*rest}", get(task_page))
        .route("/ui/projects/{project}/{kind}/{task}/{*rest}", get(task_page))
        .route("/projects/{project}/compare-experiments;{ids}/{*rest}", get(compare_page))
        .route("/ui/projects/{project}/compare-experiments;{ids}/{*rest}", get(compare_page))
        .route("/ui", get(assets::index))
        .route("/ui/", get(assets::index))
        .route("/ui/{*path}", get(assets::file))
        .route("/ui/-/session", get(session::show).post(session::log_in).delete(session::log_out))
        .route("/ui/-/stream", get(stream::events))
        .route("/ui/-/history/{kind}/{id}", get(stream::history))
        .route("/ui/-/files/{*path}", get(objects::object))
        .route("/ui/-/notebook/{task}", get(notebook::open))
        .route("/ui/-/call/{endpoint}", post(forward::call))
        .with_state(ui)
}
