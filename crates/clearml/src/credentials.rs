//! The keys for a server.

use std::fmt;

/// Key pair of a user, as in `clearml.conf`.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `api.credentials.access_key`.
    pub access_key: String,
    /// `api.credentials.secret_key`.
    pub secret_key: String,
}

/// Without the secret: this ends up in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}
