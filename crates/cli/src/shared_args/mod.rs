//! Arguments that several commands share, and the syntax of their values. Nothing here depends on a command.

mod compute;
mod gpu_amount;
mod privileges;
mod task_user;
pub(crate) mod values;

pub(crate) use compute::ComputeArgs;
pub(crate) use gpu_amount::GpuAmount;
pub(crate) use privileges::PrivilegeArgs;
pub(crate) use task_user::TaskUserArgs;
