//! Errors in objects of a cluster.

use crate::Version;

/// A version that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the API server calls its version {0:?}; something like v1.36.2 was expected")]
pub struct VersionError(pub String);

/// An object of cantle that is not in cantle's format.
#[derive(Debug, thiserror::Error)]
#[error("an object of cantle's is not as cantle writes it: {0}")]
pub struct ObjectError(#[from] pub serde_json::Error);

/// A claim that cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("claim {claim}: {why}")]
pub struct ClaimError {
    /// Namespace and name.
    pub claim: String,
    /// The fault.
    pub why: String,
}

/// Something that was published and not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the API server drops part of what cantle publishes of GPUs: its feature gate {gate} is off; turn it on, or use Kubernetes {since} or newer, where it is on"
)]
pub struct DroppedError {
    /// The gate.
    pub gate: &'static str,
    /// Since when it is on.
    pub since: Version,
}
