//! The types that all parts of cantle share: GPUs, amounts, requests, slices, queues, tasks; with parsing and
//! validation. No IO.
//!
//! Fractions, `4G`, whole GPUs and MIG profiles are *requests* ([`GpuRequest`]). They become [`Slice`]s in one place
//! ([`GpuRequest::share_of`] for shared GPUs, the crate `cantle-mig` for GPUs in MIG mode). Everything downstream
//! counts slices.

mod after;
mod amount;
mod array;
mod budget;
mod burst;
mod capability;
mod compute;
mod direct_access;
mod enforce;
mod fleet;
mod fraction;
mod gpu;
mod gpulist;
mod host_limit;
mod id;
mod idle_time;
mod lease;
mod measured;
mod pool;
mod preempt;
mod queue;
mod quota;
mod request;
mod suspension;
mod task;
mod time_limit;
mod topology;
mod user_limits;

pub use after::{After, AfterError, AfterList, Ending, Met};
pub use amount::{AmountError, Bytes, GRANULE_BYTES, Milli, counted, whole_granules};
pub use array::{ArrayError, ArraySpec};
pub use budget::{AtFull, Budget, gpu_hours};
pub use burst::{Burst, BurstError, Recall, check_memory_limit};
pub use capability::{WITHHELD_CAPABILITIES, is_withheld};
pub use compute::{ComputeError, ComputeMode, ComputeRequest, ComputeShare};
pub use direct_access::DirectAccess;
pub use enforce::{EnforceMode, EnforceModeError, LimitBackend};
pub use fleet::{Fleet, HeldElsewhere, HeldTask, QuotaView, Stopping, TaskTerms, Victim, WaitingTask};
pub use fraction::Fraction;
pub use gpu::{Gpu, GpuMode, GpuUuid, MigInstance};
pub use gpulist::{GpuList, GpuListError, MigName};
pub use host_limit::HostLimit;
pub use id::{LeaseId, QueueId, TaskId};
pub use idle_time::{IdleTime, IdleTimeError};
pub use lease::{AllocatedPart, Enforcement, Holder, Lease, Slice};
pub use measured::Measured;
pub use pool::{Pool, PoolError, PoolRule, glob, pools_of};
pub use preempt::{Preempt, PreemptError};
pub use queue::{QueueSpec, QueueSpecError, QueueWant};
pub use quota::{
    Amounts, Cause, PoolQuota, ProjectQuota, Quota, QuotaError, RESOURCES, Resource, project_name,
    projects_above,
};
pub use request::{GpuRequest, Isolation, RequestError, Share};
pub use suspension::{Suspension, SuspensionStep};
pub use task::TaskStatus;
pub use time_limit::{TimeLimit, TimeLimitError};
pub use topology::{GpuLink, PciePath, Topology};
pub use user_limits::UserLimits;
