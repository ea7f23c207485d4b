//! What a task needs and what a cluster has: demands, the cuts of a GPU, and what is free.

pub(crate) mod board;
pub(crate) mod cluster;
pub(crate) mod cut;
pub(crate) mod demand;
pub(crate) mod group;
