//! The needs of a task and the capacity of a cluster: demands, the cuts of a GPU, and what is free.

pub(crate) mod board;
pub(crate) mod cluster;
pub(crate) mod cut;
pub(crate) mod demand;
pub(crate) mod fabric;
pub(crate) mod group;
