//! The functions of every kind of node: leases on disk, capacity, launch, MIG instances, allocations of a cluster, the
//! watchdog.
//!
//! [`run_here`] runs one task now (`cantle run`). The ClearML agent and the Kubernetes drivers are built on the same parts:
//! they take their decisions from the scheduler, write a lease to the [`NodeStore`] before a slice exists, and have
//! `runtime` start the task behind the shim. They share one store per set of GPUs, so their slices never overlap.

mod allocation;
mod burst;
pub mod capacity;
pub mod clock;
mod compute;
mod compute_units;
mod driver_files;
mod error;
mod health;
mod here;
mod host;
mod launch;
mod loaded;
mod members;
pub mod mig;
mod native_limit;
mod refusals;
mod run_here;
mod store;
mod suspend;
mod usage;
mod users;
mod uuid;
mod watchdog;

use cantle_model::Holder;

pub use allocation::{AllocatableGpus, Allocation, MigAtStart, SlicePlacement};
pub use burst::{Awaited, Lender, burst_of, take_back};
pub use cantle_runtime::{Command, leave_terminal};
pub use compute::{ComputeArbiter, ComputeUse, compute_use};
pub use error::NodeError;
pub use health::GpuFault;
pub use here::{GpuHere, SliceHere, gpus_here, uid_of_lease};
pub use host::NodeHost;
pub use launch::{Launcher, OUTSIDE, enforced_by, got, new_lease};
pub use mig::{Adopt, MigGpu, MigPlacement, PlacementState, WholeGpu, mig_gpus};
pub use native_limit::{driver_limits, note_group, renew as renew_driver_limits};
pub use refusals::Refusals;
pub use run_here::{Docker, RunRequest, remembering, run_docker, run_here};
pub use store::{GpuClaim, Locked, NodeStore, agents, hide_from_tasks};
pub use suspend::{
    CheckpointHelper, LOCK_LIMIT, Recovery, SuspendError, Suspender, budget as parked_memory, make_room,
    suspended, waits_again,
};
pub use usage::{SliceUsage, measured};
pub use users::UserNames;
pub use uuid::gpu_uuid_bytes;
pub use watchdog::{Finding, LOOK_INTERVAL, Watch, Watchdog};

/// This very process, as a lease names it.
#[must_use]
pub fn own_holder() -> Holder {
    let pid = std::process::id();
    // Without /proc holders cannot be distinguished. A start time that no process has makes this one count as dead:
    // fail closed.
    cantle_runtime::holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX })
}
