//! cantle on Kubernetes: the cluster's own scheduler places, cantle cuts and holds.
//!
//! A node publishes its GPUs as devices of a DRA driver; a pod asks for one by a claim; the node cuts the slice when the
//! kubelet prepares the claim, out of the same lease store as every other task of that machine.

mod ask;
pub mod classic;
mod cluster;
mod connect;
pub mod dra;
mod error;
pub mod inject;
pub mod names;
mod node;
mod observe;
mod phase;
pub mod queues;
mod socket;
mod survey;
mod template;
mod templates;
mod version;
mod watched;
mod webhook;

pub use ask::{Ask, MAX_DEVICES, NotATemplate, PARTS};
pub use connect::connect;
pub use error::KubeError;
pub use node::NodeConfig;
pub use survey::{Part, Probe, Survey, SurveyedNode, survey};
pub use version::{Version, server_version};
pub use webhook::{Certificates, Lives, WebhookSettings, listen, serve_webhook};
