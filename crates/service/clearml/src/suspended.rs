//! Suspended tasks, as a node reports them.

use serde::{Deserialize, Serialize};

/// A task whose GPU memory is in host memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedView {
    /// The task's id.
    pub task: String,
    /// Host memory that it takes, in bytes.
    pub parked_bytes: u64,
    /// Since when, RFC 3339.
    pub since: String,
}
