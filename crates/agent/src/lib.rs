//! The node's side of cantle: what is given out on this machine and who runs under it.
//!
//! [`run_here`] runs one task now (`cantle run`); [`daemon`] serves queues (`cantle daemon`). Both take their decisions
//! from `sched`, write a lease to the [`Node`]'s store before a slice exists, and start the task through `runtime` with
//! the shim in its way. They share one store per set of GPUs, so they never overlap.

mod capacity;
mod clock;
mod daemon;
mod error;
mod grants;
mod job;
mod launch;
mod members;
mod mig;
mod node;
pub mod quotas;
mod refusals;
mod run_here;
mod uuid;
mod view;
mod watchdog;

use cantle_model::Holder;

pub use cantle_runtime::leave_terminal;
pub use capacity::decide;
pub use daemon::{AbortCommand, Config, Docker, Gives, Hours, Schedule, ScheduleError, check, daemon};
pub use error::AgentError;
pub use grants::{Award, Grants, MigAtStart, Offer, Place};
pub use launch::Command;
pub use mig::{Adopt, MigGpu, MigPlace, PlaceState, WholeGpu, mig_gpus};
pub use node::{Claim, Locked, Node, agents};
pub use run_here::{RunRequest, run_docker, run_here};
pub use watchdog::Watch;

fn own_holder() -> Holder {
    let pid = std::process::id();
    // Without /proc nobody could tell holders apart; a start time that nobody has makes ours count as dead: fail closed.
    cantle_runtime::holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX })
}
