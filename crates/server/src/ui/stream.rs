//! What pages read: the stream of changes, and the history.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use super::Ui;
use super::feed::{Feed, Message};
use super::history::Kind;
use super::session::{Session, refuse};
use crate::error::ApiError;

/// `GET /ui/-/stream`
pub(crate) async fn events(State(ui): State<Ui>, headers: HeaderMap) -> Response {
    if let Err(error) = Session::of(&ui, &headers) {
        return refuse(&error);
    }
    match ui.feed.listen() {
        Some(receiver) => {
            Sse::new(messages(ui.feed, receiver)).keep_alive(KeepAlive::default()).into_response()
        }
        None => refuse(&ApiError::new(503, 0, "the server is about to stop")),
    }
}

/// `GET /ui/-/history/{task|queue}/{id}`
pub(crate) async fn history(
    State(ui): State<Ui>,
    headers: HeaderMap,
    Path((kind, id)): Path<(String, String)>,
) -> Response {
    if let Err(error) = Session::of(&ui, &headers) {
        return refuse(&error);
    }
    match Kind::parse(&kind) {
        Some(kind) => Json(ui.feed.history(kind, &id)).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// One page's stream.
struct Reader {
    feed: Arc<Feed>,
    receiver: Receiver<Arc<Message>>,
    /// Goes out before anything else.
    first: VecDeque<Message>,
}

fn messages(
    feed: Arc<Feed>,
    receiver: Receiver<Arc<Message>>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let first = feed.picture().into();
    stream::unfold(Reader { feed, receiver, first }, async |mut reader| {
        loop {
            if let Some(message) = reader.first.pop_front() {
                return Some((Ok(event(&message)), reader));
            }
            match reader.receiver.recv().await {
                Ok(message) => return Some((Ok(event(&message)), reader)),
                // The page is too slow: it gets the current state instead of what it missed.
                Err(RecvError::Lagged(_)) => {
                    reader.receiver = reader.receiver.resubscribe();
                    reader.first = reader.feed.picture().into();
                }
                Err(RecvError::Closed) => return None,
            }
        }
    })
}

fn event(message: &Message) -> Event {
    Event::default().event(message.event).data(&message.data)
}
