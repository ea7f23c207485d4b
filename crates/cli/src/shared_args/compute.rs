//! Flags for the compute time that a task requests.

use cantle_model::{ComputeMode, ComputeRequest, Milli};
use clap::Args;

use super::values;

/// The flags of a request for compute.
#[derive(Args, Debug, Clone, Default)]
pub(crate) struct ComputeArgs {
    /// How the compute time of a GPU is divided among its tasks: even, fair or strict
    #[arg(long, value_name = "MODE", value_parser = values::compute, default_value = "even")]
    compute: ComputeMode,
    /// Part of the GPU's compute time that the task has when others compete [default: the slice's part]
    #[arg(long, value_name = "F", value_parser = values::compute_request)]
    compute_request: Option<Milli>,
    /// Part of the GPU's compute time that the task never exceeds [default: none; strict: the request]
    #[arg(long, value_name = "F", value_parser = values::compute_limit)]
    compute_limit: Option<Milli>,
}

impl ComputeArgs {
    pub(crate) const fn request(&self) -> ComputeRequest {
        ComputeRequest { mode: self.compute, request: self.compute_request, limit: self.compute_limit }
    }
}
