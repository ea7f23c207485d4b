//! cantle on Kubernetes: the cluster's own scheduler places, cantle cuts and holds.
//!
//! A node publishes its GPUs as devices of a DRA driver; a pod asks for one by a claim; the node cuts the slice when the
//! kubelet prepares the claim, out of the same lease store as every other task of that machine.

mod connect;
mod error;
pub mod names;
mod version;

pub use connect::connect;
pub use error::KubeError;
pub use version::{Version, server_version};
