//! The state of the simulated machine, shared by all processes through one mapped file or device node.
//!
//! One robust mutex in the file guards everything. A process can be killed at any instruction: the kernel then marks the
//! mutex, the next owner recomputes the totals from the per-process figures, and nothing drifts. [`Sim::swept`] releases
//! what a dead process held. It detects the death by a word that the kernel writes (see `liveness`).

#[cfg_attr(
    not(any(feature = "cuda", test)),
    allow(dead_code, reason = "the CUDA library alone has these functions")
)]
mod checkpoint;
mod file;
pub(crate) mod groups;
mod layout;
mod limits;
mod liveness;
mod migration;
pub(crate) mod pids;
mod process;
mod site;

pub use checkpoint::ProcessState;
#[cfg(any(feature = "cuda", test))]
pub(crate) use checkpoint::{Command, Request, Unparked};
pub use file::{Sim, SimOpenError, StateGuard};
pub use layout::{
    MAX_COMPUTE_INSTANCES, MAX_DOMAINS, MAX_INSTANCES, MAX_PROCESSES, SimComputeInstance, SimGpu,
    SimGpuInstance, SimState, Slot, WHOLE_GPU,
};
pub use limits::{GroupLimit, LimitRefusal, UNLIMITED};
pub use process::{ConsumeError, Registration};
pub use site::Site;
