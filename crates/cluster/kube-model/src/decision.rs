//! A decision for one pod or claim, for the node that carries it out.

use cantle_model::{AllocatedPart, ComputeRequest, GpuRequest, GpuUuid, LeaseId, TaskId};

/// The slice of one pod, or of one request of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceDecision {
    /// The lease it is to have: the same name for the same decision, however often it is read.
    pub lease: LeaseId,
    /// The task.
    pub task: TaskId,
    /// `namespace/name` of the pod, for people.
    pub name: String,
    /// Its part of each GPU.
    pub request: GpuRequest,
    /// Its share of the GPU's compute time.
    pub compute: ComputeRequest,
    /// The GPUs, each once.
    pub gpus: Vec<DecidedGpu>,
}

/// One GPU of a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidedGpu {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The scheduler's allocation of it, whatever the request contains.
    pub allocated: AllocatedPart,
}
