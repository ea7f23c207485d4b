//! A slice's compute time, as nodes report it.

use std::fmt;

use cantle_model::{ComputeMode, Milli};
use serde::{Deserialize, Serialize};

/// A slice's share of its GPU's compute time, and its use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeView {
    /// Fair or strict.
    pub mode: ComputeMode,
    /// Its part when others compete, in thousandths of the GPU.
    pub request_milli: u32,
    /// The part that it never exceeds, in thousandths of the GPU.
    pub limit_milli: Option<u32>,
    /// Its part of the GPU time that slices with such a request used in the last second, in millionths.
    pub share_ppm: Option<u32>,
    /// GPU time that it had since the task started.
    #[serde(default)]
    pub gpu_time_us: u64,
    /// How long its threads have waited for their turn since the task started.
    pub gate_wait_us: u64,
}

impl ComputeView {
    /// The request: `fair 0.25`, `strict 0.3`, `fair 0.2, at most 0.6`.
    #[must_use]
    pub fn asked(&self) -> String {
        let (mode, request) = (self.mode, Milli(self.request_milli));
        match self.limit_milli {
            Some(most) if most != self.request_milli => format!("{mode} {request}, at most {}", Milli(most)),
            _ => format!("{mode} {request}"),
        }
    }
}

/// The request and the use, as text: `fair 0.25, had 0.247, waited 12.3 s`.
impl fmt::Display for ComputeView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.asked())?;
        if let Some(ppm) = self.share_ppm {
            write!(f, ", had {}", Milli(ppm / 1000))?;
        }
        let tenths = self.gate_wait_us / 100_000;
        write!(f, ", waited {}.{} s", tenths / 10, tenths % 10)
    }
}
