//! Checks, before an agent starts, that its GPUs can serve its queues.

use cantle_model::{Gpu, QueueSpec};

/// Why a daemon's queues cannot be served with its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DemandError {
    /// A queue that could never be served would block all below it.
    #[error(
        "--queue {queue}: needs {demand} GPUs, but this agent has {gpus}; lower it or give the agent more GPUs"
    )]
    TooManyGpus {
        /// Queue name.
        queue: String,
        /// GPUs that a task of the queue needs at least.
        demand: u32,
        /// GPUs of the agent.
        gpus: usize,
    },
    /// Two specifications for one queue.
    #[error("--queue {0}: given twice; give each queue once")]
    Twice(String),
}

/// Checks that each queue can be served by `gpus` and is named once.
///
/// # Errors
/// Names the first queue that cannot be, its demand and the number of GPUs.
pub fn validate_queues(specs: &[QueueSpec], gpus: &[Gpu]) -> Result<(), DemandError> {
    for (at, spec) in specs.iter().enumerate() {
        let demand = spec.want.min_gpus();
        if demand as usize > gpus.len() {
            return Err(DemandError::TooManyGpus { queue: spec.name.clone(), demand, gpus: gpus.len() });
        }
        if specs[..at].iter().any(|earlier| earlier.name == spec.name) {
            return Err(DemandError::Twice(spec.name.clone()));
        }
    }
    Ok(())
}
