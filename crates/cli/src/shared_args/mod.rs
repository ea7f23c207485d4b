//! Arguments that several commands share, and the syntax of their values. Nothing here depends on a command.

mod compute;
mod enforce;
mod gpu_amount;
mod notify;
mod parked;
mod privileges;
mod reserve;
mod task_user;
pub(crate) mod values;

pub(crate) use compute::ComputeArgs;
pub(crate) use enforce::EnforceArgs;
pub(crate) use gpu_amount::{GpuAmount, MemoryLimitArgs};
pub(crate) use notify::ServerNotifyArgs;
pub(crate) use parked::ParkedArgs;
pub(crate) use privileges::{CONSENT, ConsentArgs, PrivilegeArgs};
pub(crate) use reserve::ReserveArgs;
pub(crate) use task_user::TaskUserArgs;
