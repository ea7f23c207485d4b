//! The call that estimates when waiting tasks start.

use serde::{Deserialize, Serialize};

use crate::wire::endpoint;

/// `cantle.get_starts`: estimates when the tasks start that the caller sees and that wait at the heads of their queues.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct GetStarts {}
endpoint!("cantle.get_starts", GetStarts => StartViews);

/// Answer of `cantle.get_starts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartViews {
    /// In the order of the queues.
    pub starts: Vec<StartView>,
}

/// An estimate for one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StartView {
    /// The task's id.
    pub task: String,
    /// When it is expected to start, RFC 3339; `None`: unknown.
    pub start: Option<String>,
    /// What the estimate follows from, or why there is none: one line for people.
    pub basis: String,
}
