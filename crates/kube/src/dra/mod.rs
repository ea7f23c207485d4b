//! The DRA driver of a node: which devices it publishes, and what happens when the kubelet prepares a claim.
//!
//! ```text
//! GPUs ─► devices ─► ResourceSlices ─► the cluster's scheduler ─► ResourceClaim (allocated)
//!                                                                       │
//! pod ◄─ container engine ◄─ CDI spec ◄─ slice ◄─ lease ◄─ award ◄──────┘ NodePrepareResources
//! ```

mod claim;
mod devices;
mod driver;
mod health;
mod node;
mod plugin;
mod publish;
mod slices;

pub(crate) use claim::bytes;
pub use node::run;
#[cfg(test)]
pub(crate) use slices::tests::node_slices;
