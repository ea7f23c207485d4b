//! Simulated clusters that run the real scheduler: scenarios written in a few lines, and trace replay.
//!
//! A scenario (see `tests/scenarios/` for many):
//!
//! ```text
//! node box 3xA100-40GB
//! queue dual_gpus=2
//! queue single_gpu=1
//! at 0 submit dual dual_gpus
//! at 0 submit single single_gpu
//! at 60 end dual
//! expect 0 dual on box:0,1
//! ```

mod baselines;
mod come_and_go;
mod fill;
mod make_room;
pub mod openb;
mod parse;
mod parse_node;
pub mod picture;
mod policy;
mod random;
mod run;
mod run_there;
mod scenario;
mod topology;

pub use come_and_go::{ComeAndGo, Waits};
pub use fill::{Figures, Fill, Filled};
pub use make_room::{MadeRoom, make_room};
pub use parse::parse;
pub use policy::ReplayPolicy;
pub use run::run_scenario;
pub use scenario::{
    Expectation, Expected, Scenario, ScenarioAction, ScenarioEvent, ScenarioNode, ScenarioPlace,
};

/// Why a scenario cannot be run, or did not go as expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A line that cannot be read.
    #[error("line {line}: {what}")]
    Syntax {
        /// Line number, from 1.
        line: usize,
        /// The fault, and a correct form.
        what: String,
    },
    /// The scheduler made a plan that its own audit refuses.
    #[error("at {at}: the plan is refused by its audit: {violations}")]
    Audit {
        /// Time in the scenario.
        at: String,
        /// All violations.
        violations: String,
    },
    /// A task that is said to run at a place has no room there.
    #[error("at {at}: {task} cannot run on {node}: {reason}")]
    NoRoom {
        /// Time in the scenario.
        at: String,
        /// The task.
        task: String,
        /// The node.
        node: String,
        /// Why.
        reason: String,
    },
    /// The scheduler changes its mind though nothing happened.
    #[error("at {at}: planning again with no event changes the outcome")]
    Unstable {
        /// Time in the scenario.
        at: String,
    },
    /// Expectations that were not met.
    #[error("{failed} of {total} expectations failed\n{output}")]
    Unexpected {
        /// Expectations not met.
        failed: usize,
        /// All expectations.
        total: usize,
        /// The whole output, with a line for each.
        output: String,
    },
}
