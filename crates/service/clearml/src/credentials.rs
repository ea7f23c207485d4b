//! The key pair for a server, and where it is found.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

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

/// Where the key pair of a running program is read again: an operator replaces it without a restart.
#[derive(Clone)]
pub struct KeySource(Arc<dyn Fn() -> Result<Credentials, String> + Send + Sync>);

impl KeySource {
    /// `read` returns the current pair, or one line with the reason why there is none.
    pub fn new(read: impl Fn() -> Result<Credentials, String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// The pair as it is now.
    ///
    /// # Errors
    /// The reason why it cannot be read.
    pub fn read(&self) -> Result<Credentials, String> {
        (self.0)()
    }
}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySource")
    }
}

/// The proof of the caller's identity.
#[derive(Clone, PartialEq, Eq)]
pub enum Proof {
    /// A key pair.
    Keys(Credentials),
    /// A token, which ends.
    Token(String),
    /// A file with a token that another program renews, such as the kubelet.
    TokenFile(PathBuf),
}

/// Without secrets, too.
impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(keys) => keys.fmt(f),
            Self::Token(_) => f.write_str("Token"),
            Self::TokenFile(path) => f.debug_tuple("TokenFile").field(path).finish(),
        }
    }
}
