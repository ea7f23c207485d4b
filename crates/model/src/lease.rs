//! Leases: the record that a slice is held, by which owner, and for how long. A slice has one lease at a time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ComputeShare, GpuUuid, LeaseId, MigInstance, Milli, TaskId};

/// A part of one GPU: memory bytes and compute share, or one MIG instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// The GPU it is cut from.
    pub gpu: GpuUuid,
    /// Share of the GPU that it is counted as, in thousandths. For MIG: memory slices held, not asked.
    pub milli: Milli,
    /// Memory the task may hold on this GPU, its contexts included, in bytes.
    pub memory_limit_bytes: u64,
    /// The instance, on a MIG GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigInstance>,
}

impl Slice {
    /// Name of the device that a program gets: the GPU's, or that of the MIG device on it.
    #[must_use]
    pub fn device(&self) -> &str {
        self.mig.as_ref().map_or(self.gpu.0.as_str(), |mig| &mig.uuid)
    }
}

/// What keeps a lease alive: a process, named so that a reused pid is not mistaken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id on the node.
    pub pid: u32,
    /// Start time in clock ticks after boot, field 22 of `/proc/<pid>/stat`.
    pub start_ticks: u64,
}

/// The backend that enforces a task's slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// Mounts in the task's own mount namespace.
    MountNamespace,
    /// The same for a task that was given the machine's privileges: as root, it can evade them.
    PrivilegedMountNamespace,
    /// Mounts of its container.
    Container,
    /// `LD_PRELOAD`, which a program can evade.
    Preload,
}

impl Enforcement {
    /// In one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::MountNamespace => "mounts",
            Self::PrivilegedMountNamespace => "mounts (privileged task)",
            Self::Container => "container",
            Self::Preload => "preload",
        }
    }
}

/// One grant of slices to one task. It is on disk before the slices exist and until they are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its own id.
    pub id: LeaseId,
    /// The task it was given to.
    pub task: TaskId,
    /// The task's name for people.
    #[serde(default)]
    pub name: String,
    /// The queue the task came from; none for `cantle run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Slices, at most one per GPU.
    pub slices: Vec<Slice>,
    /// When it was given, in milliseconds since 1970.
    #[serde(default)]
    pub placed_ms: i64,
    /// The daemon or `cantle run` that answers for it.
    pub owner: Holder,
    /// First process of the task, once started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Holder>,
    /// The owner that gave it takes it back, whether or not a process of it lives: the slice of a cluster's claim stays
    /// until the cluster ends the claim.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// The backend that enforces the task's slices, once started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
    /// Its slice's share of the GPU's compute time; none for the driver's equal part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<ComputeShare>,
    /// The directory of the task's control group, once started: its members are the processes of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

impl Lease {
    /// A lease whose task has not been started: without a name, a queue, a time and what a start adds.
    #[must_use]
    pub const fn new(id: LeaseId, task: TaskId, slices: Vec<Slice>, owner: Holder) -> Self {
        Self {
            id,
            task,
            name: String::new(),
            queue: None,
            slices,
            placed_ms: 0,
            owner,
            leader: None,
            kept: false,
            enforcement: None,
            compute: None,
            cgroup: None,
        }
    }
}
