//! The DRA driver of a node: publishes its devices, and prepares claims for the kubelet.
//!
//! ```text
//! GPUs ─► devices ─► ResourceSlices ─► the cluster's scheduler ─► ResourceClaim (allocated)
//!                                                                       │
//! pod ◄─ container engine ◄─ CDI spec ◄─ slice ◄─ lease ◄─ allocation ◄─┘ NodePrepareResources
//! ```

mod driver;
mod health;
mod node;
mod plugin;
mod proto;
mod publish;

pub use node::run;
