//! `cantle.*_receiver`: where users have notices of their tasks sent.

use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.set_receiver`: makes one of the caller's receivers, or changes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetReceiver {
    /// Its name, by which tasks name it.
    pub name: String,
    /// `https://…`, `slack:https://…`, `teams:https://…` or `mailto:ADDRESS`.
    pub address: String,
    /// Of `start`, `idle`, `completed`, `failed` and `stopped`; empty: all but the first.
    pub on: Vec<String>,
    /// It gets notices of all of the caller's tasks, not only of those that name it.
    pub always: bool,
}
endpoint!("cantle.set_receiver", SetReceiver => NewReceiver);

/// Answer of `cantle.set_receiver`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewReceiver {
    /// The key of the signatures, for receivers of JSON. The server does not show it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// `cantle.get_receivers`: the caller's, and for administrators those of the server's configuration.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetReceivers {}
endpoint!("cantle.get_receivers", GetReceivers => ReceiverViews);

/// Answer of `cantle.get_receivers`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiverViews {
    /// By name.
    pub receivers: Vec<ReceiverView>,
}

/// A receiver, and what became of its notices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReceiverView {
    /// Its name.
    pub name: String,
    /// It is the server's own: of its configuration.
    pub of_server: bool,
    /// `json`, `slack`, `teams` or `mail`.
    pub kind: String,
    /// The address. Of a URL only the host: the rest is often a secret.
    pub to: String,
    /// The events of which it gets notices.
    pub on: Vec<String>,
    /// It gets notices of all tasks.
    pub always: bool,
    /// The last delivery, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<String>,
    /// Why the last try failed; absent: it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Tries that failed since the last delivery.
    pub failures: u64,
    /// Notices that wait for the next try.
    pub waiting: u64,
    /// Notices that were given up.
    pub dropped: u64,
}

impl ReceiverView {
    /// The state of its notices, in one line.
    #[must_use]
    pub fn state(&self) -> String {
        let dropped = if self.dropped > 0 { format!("; {} given up", self.dropped) } else { String::new() };
        match &self.failure {
            Some(why) => {
                let Self { failures, waiting, .. } = self;
                format!("failing, tries: {failures}, waiting: {waiting}{dropped}: {why}")
            }
            None if self.sent.is_some() => format!("ok{dropped}"),
            None => format!("not used yet{dropped}"),
        }
    }
}

/// `cantle.delete_receiver`: with the notices that wait for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeleteReceiver {
    /// One of the caller's.
    pub name: String,
}
endpoint!("cantle.delete_receiver", DeleteReceiver => Empty);

/// `cantle.test_receiver`: sends a notice at once; refused with the reason if it does not arrive.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TestReceiver {
    /// One of the caller's; for administrators also of the server's configuration.
    pub name: String,
}
endpoint!("cantle.test_receiver", TestReceiver => Empty);
