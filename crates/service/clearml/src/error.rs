//! The reasons why a call fails.

use std::path::PathBuf;

use crate::subcode;

/// Each variant is one line that states what is wrong; [`WireError::hints`] has the remedies.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The address cannot be one.
    #[error("server address \"{url}\" is not a URL")]
    Address {
        /// As given.
        url: String,
    },
    /// The address does not answer.
    #[error("cannot reach the server at {url}: {reason}")]
    Unreachable {
        /// The server's address.
        url: String,
        /// The innermost cause.
        reason: String,
        /// The error of the HTTP client.
        source: reqwest::Error,
    },
    /// The address answers, but the TLS handshake fails.
    #[error("no safe connection to {url}: {reason}")]
    Distrusted {
        /// The server's address.
        url: String,
        /// The fault.
        reason: String,
        /// The action that would help.
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
        /// The part that is missing.
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
    /// The server understood the call and refused it.
    #[error("{}", refusal(endpoint, *code, *subcode, message))]
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
    /// The response is not ClearML's answer to this call.
    #[error("{endpoint}: the server at {url} answered something unexpected: {detail}")]
    Answer {
        /// `service.action`.
        endpoint: String,
        /// The server's address.
        url: String,
        /// The unexpected part.
        detail: String,
    },
    /// A request that JSON cannot carry.
    #[error("{endpoint}: the request cannot be written as JSON: {source}")]
    Encode {
        /// `service.action`.
        endpoint: String,
        /// The cause.
        source: serde_json::Error,
    },
}

impl WireError {
    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Address { .. } => "write for example http://127.0.0.1:8008",
            Self::Unreachable { .. } => "is it running, and is the address right?",
            Self::Distrusted { hint, .. } => hint,
            Self::File { .. } => "give a file that this user can read",
            Self::Certificates { .. } => "give a file in PEM that this user can read",
            Self::Unauthorized { message, .. } => not_let_in(message),
            Self::Refused { code: 400, subcode: subcode::INVALID_USER, .. } => "cantle users list lists them",
            Self::Refused { code: 400, subcode: subcode::INVALID_POOL, .. } => {
                "cantle pools list lists them; an administrator defines one: cantle pools set NAME --model GLOB"
            }
            Self::Refused { code: 400, subcode: subcode::OTHER_SIZE, .. } => {
                "leave the size out, or choose a queue that takes it: cantle nodes -o wide shows the queues of each node"
            }
            Self::Refused { code: 403, subcode: subcode::INVALID_SECRET, .. } => return Vec::new(),
            Self::Refused { code: 403, .. } => {
                "an administrator gives roles: cantle users role USER --role ROLE --project P"
            }
            Self::Refused { code: 502..=504, subcode: 0, .. } => {
                "try again in a moment; /readyz of each server says whether it can be used"
            }
            _ => return Vec::new(),
        };
        vec![hint.to_owned()]
    }

    /// The server refused with exactly this subcode.
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

/// Refusals whose words say everything: the call adds nothing for people.
const PLAIN: [u32; 8] = [
    subcode::INVALID_USER,
    subcode::INVALID_POOL,
    subcode::POOL_IN_USE,
    subcode::OTHER_SIZE,
    subcode::OVER_TIME,
    subcode::NEVER_MET,
    subcode::INVALID_SECRET,
    subcode::INVALID_RECEIVER,
];

/// The text of a refusal. If the server adds a sentence after the name of the code, as in `Validation error (no project
/// "x")`, the sentence is enough for a user; otherwise the call and the codes are more helpful.
fn refusal(endpoint: &str, code: u16, subcode: u32, message: &str) -> String {
    let sentence = ["Validation error (", "Forbidden (", "Unauthorized ("].iter().find_map(|name| {
        message.strip_prefix(name)?.strip_suffix(')').filter(|sentence| !sentence.is_empty())
    });
    match sentence {
        Some(sentence) => sentence.to_owned(),
        None if code == 400 && PLAIN.contains(&subcode) => message.to_owned(),
        None => format!("{endpoint}: {message} (error {code}/{subcode})"),
    }
}

/// The hints for refused keys or a refused token, by the server's reason.
fn not_let_in(message: &str) -> &'static str {
    if message.contains("was revoked") {
        "make another key with cantle users key add, or let an administrator make it"
    } else if message.contains("was removed") {
        "an administrator lets a user in again: cantle users add NAME --role ROLE"
    } else if message.contains("expired") {
        "log in again with cantle login; if it expires at once, set the clocks of both machines"
    } else if message.contains("token") || message.contains("login") {
        "log in again with cantle login"
    } else {
        "check access key and secret key"
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
            tracing::warn!(%error, "the server refuses a result");
            Ok(())
        }
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_the_servers_sentence() {
        for (message, said) in [
            (r#"Validation error (no project "x" (of 3))"#, r#"no project "x" (of 3)"#),
            ("Forbidden (ask an administrator)", "ask an administrator"),
            ("Validation error ()", "a.b: Validation error () (error 400/12)"),
            ("Invalid task id (gone)", "a.b: Invalid task id (gone) (error 400/12)"),
        ] {
            assert_eq!(refusal("a.b", 400, 12, message), said);
        }
    }
}
