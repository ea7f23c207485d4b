//! Arguments that several commands share, and what their values look like. Nothing here knows a command.

mod compute;
mod gpu_amount;
mod privileges;
pub(crate) mod values;

pub(crate) use compute::ComputeArgs;
pub(crate) use gpu_amount::GpuAmount;
pub(crate) use privileges::PrivilegeArgs;
