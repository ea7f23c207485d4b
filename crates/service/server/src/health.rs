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

/// Why the database could not be written when that was tried last.
///
/// Only a write that began after the last fault shows that the fault is over: another one may have ended before it, and be noted
/// late.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    /// Since the server started.
    count: u64,
    /// The last one; `None` if it is over.
    current: Option<String>,
}

impl Health {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed because of the disk.
    pub(crate) fn note_fault(&self, fault: &str) {
        let mut faults = self.faults();
        faults.count += 1;
        faults.current = Some(fault.to_owned());
    }

    /// The fault of a write, if it failed because of the disk.
    pub(crate) fn note<T>(&self, written: &Result<T, StoreError>) {
        if let Err(StoreError::Storage { fault, .. }) = written {
            self.note_fault(&fault.to_string());
        }
    }

    /// The number of faults so far, if the last one is not known to be over.
    fn unresolved(&self) -> Option<u64> {
        let faults = self.faults();
        faults.current.is_some().then_some(faults.count)
    }

    /// A write succeeded that began when there had been `count` faults.
    fn resolve(&self, count: u64) {
        let mut faults = self.faults();
        if faults.count == count {
            faults.current = None;
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
    if let Some(count) = app.health.unresolved() {
        let probe = app.store.probe(now_us()).await;
        app.health.note(&probe);
        if probe.is_ok() {
            app.health.resolve(count);
        }
    }
    match &app.health.faults().current {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(fault) => (StatusCode::SERVICE_UNAVAILABLE, format!("{fault}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_that_began_after_the_last_fault_ends_it() {
        let health = Health::default();
        health.note_fault("full");
        health.note(&Ok::<(), StoreError>(()));
        let before = health.unresolved().unwrap();
        health.note_fault("still full");
        health.resolve(before);
        let after = health.unresolved().unwrap();
        health.resolve(after);
        assert_eq!(health.unresolved(), None);
    }
}
