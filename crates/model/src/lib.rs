//! The types that all parts of cantle share: GPUs, amounts, requests, slices, queues, tasks; with parsing and
//! validation. No IO.
//!
//! Fractions, `4G`, whole GPUs and MIG profiles are *requests* ([`GpuRequest`]). They become [`Slice`]s in one place
//! ([`GpuRequest::share_of`] for shared GPUs, the crate `cantle-mig` for GPUs in MIG mode). Everything downstream
//! counts slices.

mod amount;
mod capability;
mod compute;
mod fleet;
mod fraction;
mod gpu;
mod gpulist;
mod id;
mod lease;
mod pool;
mod queue;
mod quota;
mod request;
mod task;
mod user_limits;

pub use amount::{AmountError, Bytes, GRANULE_BYTES, Milli, counted, whole_granules};
pub use capability::{WITHHELD_CAPABILITIES, is_withheld};
pub use compute::{ComputeError, ComputeMode, ComputeRequest, ComputeShare};
pub use fleet::{Fleet, HeldElsewhere, HeldTask, QuotaView, Stopping, TaskTerms, Victim, WaitingTask};
pub use fraction::Fraction;
pub use gpu::{Gpu, GpuMode, GpuUuid, MigInstance};
pub use gpulist::{GpuList, GpuListError, MigName};
pub use id::{LeaseId, QueueId, TaskId};
pub use lease::{AllocatedPart, Enforcement, Holder, Lease, Slice};
pub use pool::{Pool, PoolError, PoolRule, glob, pools_of};
pub use queue::{QueueSpec, QueueSpecError, QueueWant};
pub use quota::{
    Amounts, Cause, PoolQuota, ProjectQuota, Quota, QuotaError, RESOURCES, Resource, project_name,
    projects_above,
};
pub use request::{GpuRequest, Isolation, RequestError, Share};
pub use task::TaskStatus;
pub use user_limits::UserLimits;
