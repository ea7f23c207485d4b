//! The fleet: nodes, workers, pools of GPUs, and queues.

pub(crate) mod cantle;
pub(crate) mod history;
pub(crate) mod nodes;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod workers;
