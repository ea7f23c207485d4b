//! Devices of a node as a cluster's scheduler sees them, and what an allocated claim on them means.

pub mod claim;
pub mod devices;
pub mod published;
pub mod slices;

pub use claim::bytes;
#[cfg(test)]
pub(crate) use slices::tests::node_slices;
