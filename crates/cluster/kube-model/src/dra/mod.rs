//! The devices of a node as a cluster's scheduler sees them, and the meaning of an allocated claim.

pub mod claim;
pub mod devices;
mod parameters;
pub mod published;
pub mod slices;

pub use claim::bytes;
pub(crate) use parameters::ComputeParameters;
#[cfg(test)]
pub(crate) use slices::tests::node_slices;
