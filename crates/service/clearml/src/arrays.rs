//! Arrays in the answers of `cantle.get_tasks`.

use serde::{Deserialize, Serialize};

/// How far an array is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayView {
    /// Its indices, and how many of its tasks run at once: `0-99%8`.
    pub indices: String,
    /// Tasks that have not started.
    pub waiting: u32,
    /// Tasks that run.
    pub running: u32,
    /// Tasks that completed.
    pub completed: u32,
    /// Tasks that failed.
    pub failed: u32,
    /// Tasks that were stopped or deleted.
    pub stopped: u32,
}
