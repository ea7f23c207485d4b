//! Suspension: a running task's GPU memory in host memory, and its slices given back.

use serde::{Deserialize, Serialize};

use crate::{Holder, Slice};

/// How far a suspension, or the return from it, has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuspensionStep {
    /// Its processes are being stopped. The lease still has the slices.
    Suspending,
    /// All its GPU memory is in host memory. The lease has no slices.
    Suspended,
    /// The lease has slices again, and its processes get their memory back.
    Resuming,
    /// The driver lost it. The task is ended; the lease keeps its slices until it is gone.
    Failed,
}

/// The note of a lease about the suspension of its task, from before the first step until the task runs again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// How far it has got.
    pub step: SuspensionStep,
    /// The slices that the task had.
    pub slices: Vec<Slice>,
    /// Host memory that is booked for what its processes held on GPUs, in bytes.
    pub parked_bytes: u64,
    /// When it began, in milliseconds since 1970.
    pub since_ms: i64,
    /// Until when a lock may still take effect, in milliseconds since 1970.
    #[serde(default)]
    pub locks_until_ms: i64,
    /// The processes that use a GPU. Each is here before it is locked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Holder>,
    /// It made room for another task, and comes back without a command as soon as there is room.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub yields: bool,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Suspension {
    /// Is the task out, with nothing under way?
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.step == SuspensionStep::Suspended
    }
}
