//! The endpoints that pages read: the stream of changes, and the history.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Ui;
use super::feed::Message;
use super::history::Kind;
use super::own;
use super::session::{Session, refuse};
use crate::app::Call;
use crate::door::Peer;
use crate::error::ApiError;
use cantle_store::TaskFilter;

/// A kind of history that is no line of the database.
const GPU: &str = "gpu";

/// `GET /ui/-/stream`
pub(crate) async fn events(
    State(ui): State<Ui>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Response {
    let session = match Session::of(&ui, &headers) {
        Ok(session) => {
            peer.standing.has_shown_a_key();
            session
        }
        Err(error) => return refuse(&error),
    };
    match ui.feed.listen() {
        Some(receiver) => {
            Sse::new(messages(ui, session, receiver)).keep_alive(KeepAlive::default()).into_response()
        }
        None => refuse(&ApiError::new(503, 0, "the server is about to stop")),
    }
}

/// `GET /ui/-/history/{task|queue|gpu}/{id}`
pub(crate) async fn history(
    State(ui): State<Ui>,
    headers: HeaderMap,
    Path((kind, id)): Path<(String, String)>,
) -> Response {
    let session = match Session::of(&ui, &headers) {
        Ok(session) => session,
        Err(error) => return refuse(&error),
    };
    let call = Call::new(Arc::clone(&ui.api.app), String::new(), session.who);
    if kind == GPU {
        let tasks = ui.feed.gpu_time_tasks(&id);
        return match readable(&call, tasks).await {
            Ok(may_see) => Json(ui.feed.gpu_time(&id, &may_see)).into_response(),
            Err(error) => refuse(&error),
        };
    }
    match Kind::parse(&kind) {
        Some(Kind::Task) if !call.may_read(&id).await.unwrap_or(false) => {
            StatusCode::NOT_FOUND.into_response()
        }
        Some(kind) => Json(ui.feed.history(kind, &id)).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// Those of these tasks that the caller may read.
async fn readable(call: &Call, tasks: BTreeSet<String>) -> Result<BTreeSet<String>, ApiError> {
    let seen = call.seen();
    if seen.is_all() || tasks.is_empty() {
        return Ok(tasks);
    }
    let filter = TaskFilter { ids: tasks.into_iter().collect(), ..TaskFilter::default() };
    Ok(call.store.task_ids(&seen, filter).await?.into_iter().collect())
}

/// One page's stream.
struct Reader {
    ui: Ui,
    session: Session,
    receiver: Receiver<Arc<Message>>,
    /// Goes out before anything else.
    first: VecDeque<Message>,
}

fn messages(
    ui: Ui,
    session: Session,
    receiver: Receiver<Arc<Message>>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let first = ui.feed.picture().into();
    stream::unfold(Reader { ui, session, receiver, first }, async |mut reader| {
        loop {
            if let Some(message) = reader.first.pop_front() {
                match own::of(&reader.ui, &mut reader.session, &message).await {
                    Ok(Some(message)) => return Some((Ok(event(&message)), reader)),
                    Ok(None) => continue,
                    // The session has ended.
                    Err(_) => return None,
                }
            }
            match reader.receiver.recv().await {
                Ok(message) => match own::of(&reader.ui, &mut reader.session, &message).await {
                    Ok(Some(message)) => return Some((Ok(event(&message)), reader)),
                    Ok(None) => {}
                    Err(_) => return None,
                },
                // The page is too slow: it gets the current state instead of what it missed.
                Err(RecvError::Lagged(_)) => {
                    reader.receiver = reader.receiver.resubscribe();
                    reader.first = reader.ui.feed.picture().into();
                }
                Err(RecvError::Closed) => return None,
            }
        }
    })
}

fn event(message: &Message) -> Event {
    Event::default().event(message.event).data(&message.data)
}
