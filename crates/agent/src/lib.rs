
mod capacity;
mod clock;
mod error;
mod launch;
mod members;
mod node;
mod run_here;
mod uuid;

use cantle_model::Holder;

pub use error::AgentError;
pub use launch::Command;
pub use node::{Claim, Locked, Node};
pub use run_here::{RunRequest, run_here};

fn own_holder() -> Holder {
    let pid = std::process::id();
    // Without /proc nobody could tell holders apart; a start time that nobody has makes ours count as dead: fail closed.
    cantle_runtime::holder_of(pid).unwrap_or(Holder { pid, start_ticks: u64::MAX })
}
