//! The fleet: nodes, workers, pools of GPUs, and the queues that they serve.

pub(crate) mod nodes;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod samples;
pub(crate) mod wakeups;
pub(crate) mod workers;
