//! cantle on Kubernetes: the cluster's own scheduler places, cantle cuts and holds.
//!
//! A node publishes its GPUs as devices of a DRA driver; a pod asks for one by a claim; the node cuts the slice when the
//! kubelet prepares the claim, out of the same lease store as every other task of that machine.

mod api_status;
mod claims;
pub mod classic;
mod cluster;
mod connect;
pub mod dra;
mod error;
mod leader;
mod look;
mod node;
mod observe;
mod packing;
pub mod queues;
mod socket;
mod survey;
mod templates;
mod version;
mod watched;
mod webhook;

pub use cantle_kube_model::{Version, cluster::report, inject};
pub use connect::connect;
pub use error::KubeError;
pub use look::ClusterReport;
pub use node::NodeConfig;
pub use packing::PackingSettings;
pub use survey::{Part, Probe, Survey, SurveyedNode, survey};
pub use version::server_version;
pub use webhook::{CertificateLifetimes, Certificates, WebhookSettings, listen, serve_webhook};
