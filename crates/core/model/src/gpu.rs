//! GPUs as the driver shows them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A GPU's own name: `GPU-` and a UUID. Everything is keyed by it, because indices differ between CUDA and NVML.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for GpuUuid {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// The present mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuMode {
    /// No task holds a part of it.
    Idle,
    /// Cut into memory slices.
    Shared,
    /// One task holds all of it.
    Whole,
    /// MIG mode is on: it is cut into GPU instances only.
    Mig,
}

impl GpuMode {
    /// In one word, as in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Shared => "shared",
            Self::Whole => "whole",
            Self::Mig => "mig",
        }
    }
}

/// A GPU of a node, read from the driver at start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its permanent name.
    pub uuid: GpuUuid,
    /// NVML index on its node, for people; never a key.
    pub index: u32,
    /// Product name as NVML gives it, e.g. `NVIDIA A100-SXM4-40GB`.
    pub model: String,
    /// Total memory in bytes as NVML gives it.
    pub memory_bytes: u64,
    /// Is MIG mode on?
    pub mig: bool,
}

/// The GPU instance (with its compute instance) behind a MIG slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigInstance {
    /// Profile name, e.g. `2g.10gb`.
    pub profile: String,
    /// First memory slice of its placement.
    pub start: u32,
    /// Memory slices it holds.
    pub size: u32,
    /// Name of the MIG device, `MIG-…`; empty until the instance has been made.
    pub uuid: String,
}
