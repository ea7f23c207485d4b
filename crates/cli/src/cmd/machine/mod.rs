//! Commands about this machine: its GPUs, the slices on it, and the agent.

pub(crate) mod bundle;
pub(crate) mod checkup;
pub(crate) mod daemon;
pub(crate) mod doctor;
pub(crate) mod here;
pub(crate) mod image;
pub(crate) mod limits;
pub(crate) mod mig;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod sim;
pub(crate) mod simulate;
pub(crate) mod suspend;
pub(crate) mod top;
pub(crate) mod up;
