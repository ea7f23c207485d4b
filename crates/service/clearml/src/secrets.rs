//! `cantle.*_secret`: values that the server keeps for the tasks of a user.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.set_secret`: makes one of the caller's secrets, or changes it.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetSecret {
    /// Its name, which becomes the name of an environment variable.
    pub name: String,
    /// The value that tasks get.
    pub value: String,
}
endpoint!("cantle.set_secret", SetSecret => Empty);

/// Without the value: it must not get into a log.
impl fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// `cantle.get_secrets`: the caller's.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetSecrets {}
endpoint!("cantle.get_secrets", GetSecrets => SecretViews);

/// Answer of `cantle.get_secrets`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SecretViews {
    /// By name.
    pub secrets: Vec<SecretView>,
}

/// A secret without its value, which no call returns to a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecretView {
    /// Its name.
    pub name: String,
    /// When it was set, RFC 3339.
    pub set: String,
    /// When a task last got it, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// The server can decrypt it. It cannot after a change of its key.
    pub readable: bool,
}

/// `cantle.delete_secret`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeleteSecret {
    /// One of the caller's.
    pub name: String,
}
endpoint!("cantle.delete_secret", DeleteSecret => Empty);
