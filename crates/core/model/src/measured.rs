//! Measurements of a run, for accounts and advice.

use serde::{Deserialize, Serialize};

/// The use of its slices by a run, as far as it was measured: nothing here is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// The most memory in bytes that it had at a time of one of its GPUs, contexts and modules included. `None` if no process of it
    /// used a GPU, or none was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// GPU time that it was charged, in microseconds; `None` where the driver divides the compute time, which counts
    /// the time of no task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_time_us: Option<u64>,
}
