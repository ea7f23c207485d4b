//! A server whose database is unreachable: it answers every request with that fact until the database is back.

use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use cantle_store::{Database, Store, StoreError};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::ServerError;
use crate::clock::now_us;
use crate::identity::Identity;
use crate::rights::{self, People};

/// Interval of attempts.
const EVERY: Duration = Duration::from_millis(500);
/// The number of tries between two log lines.
const SAID_EVERY: u32 = 20;

/// Opens the database, and reads users and rights. As long as it is away, calls to `listener` are answered with 503 and the
/// reason.
pub(crate) async fn open(
    database: &Database,
    listener: &TcpListener,
    identity: &Identity,
) -> Result<(Store, People), ServerError> {
    let mut answering = None;
    let mut tries: u32 = 0;
    loop {
        let error = match try_to_open(database, identity).await {
            Err(error @ StoreError::Storage { .. }) if matches!(database, Database::Postgres(_)) => error,
            opened => {
                if let Some((stop, answered)) = answering {
                    drop::<oneshot::Sender<()>>(stop);
                    drop::<Result<(), tokio::task::JoinError>>(answered.await);
                    tracing::warn!("the database at {database} is back");
                }
                return Ok(opened?);
            }
        };
        if tries.is_multiple_of(SAID_EVERY) {
            tracing::warn!("waiting for the database at {database}: {error}");
        }
        tries += 1;
        if answering.is_none() {
            answering = answer(listener, format!("waiting for the database at {database}\n"));
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// A database may go away between its first answer and the last one that a start needs.
async fn try_to_open(database: &Database, identity: &Identity) -> Result<(Store, People), StoreError> {
    let store = Store::connect(database).await?;
    match rights::bootstrap(&store, identity, now_us()).await {
        Ok(people) => Ok((store, people)),
        Err(error) => {
            store.close().await;
            Err(error)
        }
    }
}

/// Answers 503 until the sender is dropped.
fn answer(
    listener: &TcpListener,
    reason: String,
) -> Option<(oneshot::Sender<()>, tokio::task::JoinHandle<()>)> {
    use std::os::fd::AsFd as _;
    let socket = listener.as_fd().try_clone_to_owned().map(std::net::TcpListener::from);
    let listener = TcpListener::from_std(socket.ok()?).ok()?;
    let (stop, stopped) = oneshot::channel::<()>();
    let router = Router::new().fallback(move || {
        let reason = reason.clone();
        async move { (StatusCode::SERVICE_UNAVAILABLE, reason) }
    });
    let served = axum::serve(listener, router).with_graceful_shutdown(async { drop(stopped.await) });
    Some((stop, tokio::spawn(async { drop(served.await) })))
}
