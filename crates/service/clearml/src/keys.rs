//! The key pair of a client. With a source, an operator can replace it while the client works: the client takes the new pair as
//! soon as the server accepts it, and keeps the old one until then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Credentials, KeySource};

/// The pair in use, and where another one may come from.
#[derive(Debug)]
pub(crate) struct Keys {
    used: Mutex<Credentials>,
    source: Option<KeySource>,
    /// A pair that the server refused, or the reason why there is none: each is reported once.
    useless: Mutex<Option<Result<Credentials, String>>>,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Keys {
    pub(crate) fn new(used: Credentials, source: Option<KeySource>) -> Self {
        Self { used: Mutex::new(used), source, useless: Mutex::default() }
    }

    /// The pair in use.
    pub(crate) fn used(&self) -> Credentials {
        lock(&self.used).clone()
    }

    /// Another pair that the source has, and that was not refused yet.
    pub(crate) fn offered(&self) -> Option<Credentials> {
        let found = self.source.as_ref()?.read();
        if found.as_ref().is_ok_and(|found| *found == *lock(&self.used)) {
            return None;
        }
        let mut useless = lock(&self.useless);
        if useless.as_ref() == Some(&found) {
            return None;
        }
        match found {
            Ok(found) => Some(found),
            Err(why) => {
                tracing::warn!("the keys cannot be read again, the old ones stay in use: {why}");
                *useless = Some(Err(why));
                None
            }
        }
    }

    /// The server accepted this pair.
    pub(crate) fn take(&self, accepted: Credentials) {
        tracing::info!(key = %accepted.access_key, "new keys are in use");
        *lock(&self.useless) = None;
        *lock(&self.used) = accepted;
    }

    /// The server refused this pair.
    pub(crate) fn refuse(&self, refused: Credentials) {
        tracing::warn!(key = %refused.access_key, "the server refuses the new keys, the old ones stay in use");
        *lock(&self.useless) = Some(Ok(refused));
    }

    /// The pair in use is refused: whatever the source has is worth another attempt.
    pub(crate) fn try_all_again(&self) {
        *lock(&self.useless) = None;
    }
}
