//! The checks behind `/healthz` and `/readyz`: whether the server can do its work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use cantle_store::{StorageFault, StoreError};

use crate::app::App;
use crate::clock::now_us;

/// A database that answers later than this is away.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Why the database could not be written when that was tried last; `None` if it could.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Option<String>>);

impl Health {
    fn fault(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed because of the disk.
    pub(crate) fn note_fault(&self, fault: &str) {
        *self.fault() = Some(fault.to_owned());
    }

    /// The result of a write.
    pub(crate) fn note<T>(&self, written: &Result<T, StoreError>) {
        match written {
            Ok(_) => *self.fault() = None,
            Err(StoreError::Storage { fault, .. }) => self.note_fault(&fault.to_string()),
            Err(_) => {}
        }
    }
}

/// `GET /readyz`, without credentials: whether calls may be sent to this server. The database is asked each time.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, String) {
    let away = |why: String| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    match tokio::time::timeout(READY_WITHIN, app.store.answers()).await {
        Ok(Ok(true)) => answer(State(app)).await,
        Ok(Ok(false)) => away(StorageFault::ReadOnly.to_string()),
        Ok(Err(StoreError::Storage { fault, .. })) => away(fault.to_string()),
        Ok(Err(error)) => away(error.to_string()),
        Err(_) => away("the database does not answer".to_owned()),
    }
}

/// `GET /healthz`, without credentials. After a fault it is tried again, so that the answer is true at this moment.
pub(crate) async fn answer(State(app): State<Arc<App>>) -> (StatusCode, String) {
    if app.health.fault().is_some() {
        app.health.note(&app.store.probe(now_us()).await);
    }
    match &*app.health.fault() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(fault) => (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")),
    }
}
