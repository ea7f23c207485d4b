//! cantle on Kubernetes: the cluster's own scheduler places pods, and cantle creates the slices and enforces their
//! limits.
//!
//! A node publishes its GPUs as devices of a DRA driver, and a pod requests one by a claim. The node creates the slice
//! when the kubelet prepares the claim. Its lease is in the same store as those of all other tasks of that machine.

mod api_status;
mod claims;
pub mod classic;
mod cluster;
mod connect;
mod door;
pub mod dra;
mod error;
mod leader;
mod look;
mod missed;
mod node;
mod observe;
mod pending;
mod preemption;
pub mod queues;
mod socket;
mod survey;
mod version;
mod waiting;
mod watched;
mod webhook;

pub use cantle_kube_model::{Version, cluster::report, inject};
pub use connect::connect;
pub use error::KubeError;
pub use look::ClusterReport;
pub use node::{COVER_PROGRAM, NodeConfig};
pub use pending::PendingSettings;
pub use survey::{Part, Probe, Survey, SurveyedNode, survey};
pub use version::server_version;
pub use webhook::{CertificateLifetimes, Certificates, WebhookSettings, listen, serve_webhook};
