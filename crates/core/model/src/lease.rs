//! Leases: the record that a slice is held, by which owner, and for how long. A slice has one lease at a time.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    Burst, Bytes, ComputeShare, GpuUuid, HostLimit, LeaseId, LimitBackend, MigInstance, Milli, Share,
    Suspension, TaskId,
};

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

/// The allocation of one GPU by a cluster's scheduler. No slice that serves the allocation may have more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllocatedPart {
    /// A part of the memory, or all of it.
    Share(Share),
    /// A MIG instance.
    Instance {
        /// Name of its profile.
        profile: String,
        /// Its placement: its first memory slice.
        start: u32,
    },
}

impl AllocatedPart {
    /// The allocation that `slice` carries out exactly.
    #[must_use]
    pub fn of(slice: &Slice) -> Self {
        match &slice.mig {
            Some(mig) => Self::Instance { profile: mig.profile.clone(), start: mig.start },
            None => Self::Share(Share { milli: slice.milli, memory_limit_bytes: slice.memory_limit_bytes }),
        }
    }

    /// Placement of the instance; none for a share.
    #[must_use]
    pub const fn start(&self) -> Option<u32> {
        match self {
            Self::Share(_) => None,
            Self::Instance { start, .. } => Some(*start),
        }
    }

    /// Does `slice` have no more than this, and is it of the same kind?
    #[must_use]
    pub fn covers(&self, slice: &Slice) -> bool {
        match (self, &slice.mig) {
            (Self::Share(share), None) => {
                slice.milli <= share.milli && slice.memory_limit_bytes <= share.memory_limit_bytes
            }
            (Self::Instance { profile, start }, Some(mig)) => mig.profile == *profile && mig.start == *start,
            (Self::Share(_), Some(_)) | (Self::Instance { .. }, None) => false,
        }
    }
}

/// As a message names it: `0.25 GPU (10 GiB)`, `a 1g.5gb MIG instance at 0`.
impl fmt::Display for AllocatedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(Share { milli, memory_limit_bytes }) => {
                write!(f, "{milli} GPU ({})", Bytes(*memory_limit_bytes))
            }
            Self::Instance { profile, start } => write!(f, "a {profile} MIG instance at {start}"),
        }
    }
}

/// The process that keeps a lease alive, named so that a reused pid is not mistaken for it.
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
    /// The driver enforces the memory limits of its slices too, as limits of its control group; not those of MIG instances.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub native_limit: bool,
    /// The mechanism that enforces [`Self::native_limit`], if it is not the driver itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native_backend: Option<LimitBackend>,
    /// No filter library is between the task and its GPUs: [`Self::native_limit`] alone enforces its limits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfiltered: bool,
    /// The compute units of its GPU on which its task computes, as ranges with both ends, where a mask of units is its share; none where all
    /// are its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub compute_units: Vec<(u32, u32)>,
    /// When the task ends at the latest, in milliseconds since 1970, once started; none if it has no time limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<i64>,
    /// Memory of each slice that is kept for modules; see [`Lease::module_reserve`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub module_reserve_bytes: u64,
    /// The terms on which its slice may have more memory than it is counted as; none if it has exactly that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// The processor time and main memory that its task may use; none if they are not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostLimit>,
    /// The suspension of its task, from before the first step until the task runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspension: Option<Suspension>,
    /// How often the slices of the running task have changed: it was suspended, resumed or resized. A lease with the
    /// same number and another content was changed by another program.
    #[serde(default, skip_serializing_if = "is_none")]
    pub changes: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_none(changes: &u32) -> bool {
    *changes == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
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
            native_limit: false,
            native_backend: None,
            unfiltered: false,
            compute_units: Vec::new(),
            ends_ms: None,
            module_reserve_bytes: 0,
            burst: None,
            host: None,
            suspension: None,
            changes: 0,
        }
    }

    /// Its slices as they are counted: without memory that is lent to them.
    #[must_use]
    pub fn counted_slices(&self) -> Vec<Slice> {
        let counted = |slice: &Slice| match &self.burst {
            Some(Burst { request_milli, request_bytes, .. }) => {
                Slice { milli: *request_milli, memory_limit_bytes: *request_bytes, ..slice.clone() }
            }
            None => slice.clone(),
        };
        self.slices.iter().map(counted).collect()
    }

    /// The memory that is lent to its slice of a GPU, in bytes.
    #[must_use]
    pub fn lent_bytes(&self, gpu: &GpuUuid) -> u64 {
        self.burst.as_ref().map_or(0, |burst| self.memory_limit_on(gpu).saturating_sub(burst.request_bytes))
    }

    /// The memory limits of its slices of a GPU, in bytes, in sum.
    #[must_use]
    pub fn memory_limit_on(&self, gpu: &GpuUuid) -> u64 {
        let slices = self.slices.iter().filter(|slice| slice.gpu == *gpu);
        slices.map(|slice| slice.memory_limit_bytes).sum()
    }

    /// The mechanisms that enforce the memory limit of this slice of the lease, the strongest first; nothing until the
    /// task has started.
    #[must_use]
    pub fn enforced_by(&self, slice: &Slice) -> Vec<LimitBackend> {
        let strongest = match slice {
            _ if self.enforcement.is_none() => return Vec::new(),
            Slice { mig: Some(_), .. } => Some(LimitBackend::Mig),
            Slice { mig: None, .. } => self.limited_by(),
        };
        let filter = (!self.unfiltered).then_some(LimitBackend::Filter);
        strongest.into_iter().chain(filter).collect()
    }

    /// The mechanism that enforces the limits of its control group, if it has some.
    #[must_use]
    pub fn limited_by(&self) -> Option<LimitBackend> {
        self.native_limit.then(|| self.native_backend.unwrap_or(LimitBackend::Nvml))
    }

    /// The memory that allocations of this slice of the lease leave for modules, which no call requests: at most half
    /// of a part of a GPU. A program that has a whole GPU or an instance to itself takes nothing from others.
    #[must_use]
    pub fn module_reserve(&self, slice: &Slice) -> u64 {
        match slice {
            Slice { mig: None, milli, memory_limit_bytes, .. } if milli.0 < 1000 => {
                self.module_reserve_bytes.min(memory_limit_bytes / 2)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(milli: u32, gib: u64, mig: Option<(&str, u32)>) -> Slice {
        let instance = |(profile, start): (&str, u32)| MigInstance {
            profile: profile.to_owned(),
            start,
            size: 1,
            uuid: String::new(),
        };
        let (gpu, mig) = (GpuUuid("GPU-0".to_owned()), mig.map(instance));
        Slice { gpu, milli: Milli(milli), memory_limit_bytes: gib << 30, mig }
    }

    #[test]
    fn the_strongest_backend_is_first() {
        let slices = vec![slice(500, 10, None), slice(125, 5, Some(("1g.5gb", 0)))];
        let owner = Holder { pid: 1, start_ticks: 1 };
        let mut lease = Lease::new(LeaseId::from("l"), TaskId::from("t"), slices, owner);
        assert!(lease.enforced_by(&lease.slices[0]).is_empty(), "it has not started");
        lease.enforcement = Some(Enforcement::MountNamespace);
        assert_eq!(lease.enforced_by(&lease.slices[0]), [LimitBackend::Filter]);
        lease.native_limit = true;
        assert_eq!(lease.enforced_by(&lease.slices[0]), [LimitBackend::Nvml, LimitBackend::Filter]);
        assert_eq!(lease.enforced_by(&lease.slices[1]), [LimitBackend::Mig, LimitBackend::Filter]);
        lease.native_backend = Some(LimitBackend::Dmem);
        assert_eq!(lease.enforced_by(&lease.slices[0]), [LimitBackend::Dmem, LimitBackend::Filter]);
        lease.unfiltered = true;
        assert_eq!(lease.enforced_by(&lease.slices[0]), [LimitBackend::Dmem]);
    }

    #[test]
    fn an_allocation_covers_itself_and_what_is_less() {
        let quarter = slice(250, 10, None);
        let part = AllocatedPart::of(&quarter);
        assert!(part.covers(&quarter) && part.covers(&slice(125, 5, None)));
        assert!(!part.covers(&slice(500, 10, None)), "more compute");
        assert!(!part.covers(&slice(250, 11, None)), "more memory");
        assert_eq!(part.to_string(), "0.25 GPU (10 GiB)");
    }

    #[test]
    fn an_instance_is_covered_by_its_own_profile_and_place() {
        let small = slice(125, 5, Some(("1g.5gb", 0)));
        let part = AllocatedPart::of(&small);
        assert!(part.covers(&small));
        assert!(!part.covers(&slice(1000, 40, Some(("7g.40gb", 0)))), "another profile");
        assert!(!part.covers(&slice(125, 5, Some(("1g.5gb", 1)))), "another place");
        assert!(!part.covers(&slice(125, 5, None)), "a share");
        assert!(!AllocatedPart::of(&slice(1000, 40, None)).covers(&small), "an instance");
        assert_eq!(part.to_string(), "a 1g.5gb MIG instance at 0");
    }
}
