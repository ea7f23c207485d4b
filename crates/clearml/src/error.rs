//! Why a call failed.

use std::path::PathBuf;

use crate::subcode;

/// Each variant is one line that says what is wrong; [`WireError::hints`] says what would help.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The address can't be one.
    #[error("server address \"{url}\" is not a URL")]
    Address {
        /// As given.
        url: String,
    },
    /// Nobody answers there.
    #[error("cannot reach the server at {url}: {reason}")]
    Unreachable {
        /// The server's address.
        url: String,
        /// The innermost cause.
        reason: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// Somebody answers there, but TLS does not come about.
    #[error("no safe connection to {url}: {reason}")]
    Distrusted {
        /// The server's address.
        url: String,
        /// What is wrong with it.
        reason: String,
        /// What would help.
        hint: &'static str,
    },
    /// A file that the command line names.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file without what it should have.
    #[error("{} has no {what} in PEM", path.display())]
    Certificates {
        /// Which.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
    },
    /// The access key or the secret key is wrong.
    #[error("the server at {url} refused the credentials ({message})")]
    Unauthorized {
        /// The server's address.
        url: String,
        /// The server's own words.
        message: String,
    },
    /// The server understood and said no.
    #[error("{endpoint}: {message} (error {code}/{subcode})")]
    Refused {
        /// `service.action`.
        endpoint: String,
        /// HTTP status.
        code: u16,
        /// ClearML's subcode.
        subcode: u32,
        /// The server's own words.
        message: String,
    },
    /// What came back is not ClearML's answer to this call.
    #[error("{endpoint}: the server at {url} answered something unexpected: {detail}")]
    Answer {
        /// `service.action`.
        endpoint: String,
        /// The server's address.
        url: String,
        /// What is odd about it.
        detail: String,
    },
    /// A request that JSON can't carry.
    #[error("{endpoint}: the request cannot be written as JSON: {source}")]
    Encode {
        /// `service.action`.
        endpoint: String,
        /// The cause.
        source: serde_json::Error,
    },
}

impl WireError {
    /// What the user can do about it.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Address { .. } => "write for example http://127.0.0.1:8008",
            Self::Unreachable { .. } => "is it running, and is the address right?",
            Self::Distrusted { hint, .. } => hint,
            Self::File { .. } | Self::Certificates { .. } => "give a file in PEM that this user can read",
            Self::Unauthorized { .. } => "check access key and secret key",
            Self::Refused { code: 403, .. } => {
                "an administrator gives roles: cantle users role USER --role ROLE --project P"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }

    /// The server said no with exactly this subcode.
    #[must_use]
    pub fn is_subcode(&self, wanted: u32) -> bool {
        matches!(self, Self::Refused { code: 400, subcode, .. } if *subcode == wanted)
    }

    /// Trying again later may help: the server is away or busy.
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. }
                | Self::Distrusted { .. }
                | Self::Refused { code: 429 | 502 | 503 | 504, .. }
        )
    }

    /// The server does not have this endpoint (ClearML's open-source server lacks some).
    #[must_use]
    pub fn is_unknown_endpoint(&self) -> bool {
        matches!(self, Self::Refused { code: 400 | 404, subcode: 0, .. })
    }
}

/// A server that refuses a report about a task will refuse it again: the task was deleted, or its state does not allow it.
///
/// # Errors
/// All others, which may pass.
pub fn accept_refusal(answer: Result<(), WireError>) -> Result<(), WireError> {
    match answer {
        Err(error) if error.is_temporary() => Err(error),
        Err(error) if error.is_subcode(subcode::INVALID_TASK_ID) => {
            tracing::info!("the task was deleted meanwhile");
            Ok(())
        }
        Err(error @ WireError::Refused { .. }) => {
            tracing::warn!(%error, "the server does not take a result");
            Ok(())
        }
        answer => answer,
    }
}
