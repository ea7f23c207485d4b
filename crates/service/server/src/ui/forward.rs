//! The page's calls: checks the session, and passes the call to the API.

use axum::body::Body;
use axum::extract::{ConnectInfo, Path, RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::Response;

use super::Ui;
use super::session::{Session, refuse};
use crate::api;
use crate::door::Peer;
use crate::error::ApiError;

/// `POST /ui/-/call/{endpoint}`: the endpoint, called with the session's token.
pub(crate) async fn call(
    State(ui): State<Ui>,
    peer: ConnectInfo<Peer>,
    Path(endpoint): Path<String>,
    mut headers: HeaderMap,
    body: Body,
) -> Response {
    let prepared = Session::of_action(&ui, &headers).and_then(|session| {
        let uri = Uri::try_from(format!("/{endpoint}")).map_err(|_| ApiError::unknown_endpoint(&endpoint))?;
        let authorization = HeaderValue::try_from(session.authorization());
        let authorization = authorization.map_err(ApiError::unreadable)?;
        Ok((uri, authorization))
    });
    match prepared {
        Ok((uri, authorization)) => {
            headers.insert(header::AUTHORIZATION, authorization);
            api::answer(State(ui.api), peer, uri, RawQuery(None), headers, body).await
        }
        Err(error) => refuse(&error),
    }
}
