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
///
/// Only a write that began after the last fault shows that it is over. Others may have ended before it, and be reported late.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Faults>);

#[derive(Debug, Default)]
struct Faults {
    count: u64,
    last: Option<String>,
}

impl Health {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write failed because of the disk.
    pub(crate) fn note_fault(&self, fault: &str) {
        let mut faults = self.faults();
        faults.count += 1;
        faults.last = Some(fault.to_owned());
    }

    /// The fault of a write, if it failed because of the disk.
    pub(crate) fn note<T>(&self, written: &Result<T, StoreError>) {
        if let Err(StoreError::Storage { fault, .. }) = written {
            self.note_fault(&fault.to_string());
        }
    }

    /// How many faults there were, if the last of them may last.
    fn in_doubt(&self) -> Option<u64> {
        let faults = self.faults();
        faults.last.is_some().then_some(faults.count)
    }

    /// The result of a write that began after so many faults.
    fn note_probe(&self, after: u64, written: &Result<(), StoreError>) {
        self.note(written);
        let mut faults = self.faults();
        if written.is_ok() && faults.count == after {
            faults.last = None;
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
    if let Some(faults) = app.health.in_doubt() {
        app.health.note_probe(faults, &app.store.probe(now_us()).await);
    }
    match &app.health.faults().last {
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
        let faults = health.in_doubt().unwrap();
        health.note_fault("still full");
        health.note_probe(faults, &Ok(()));
        let faults = health.in_doubt().unwrap();
        health.note_probe(faults, &Ok(()));
        assert_eq!(health.in_doubt(), None);
    }
}
