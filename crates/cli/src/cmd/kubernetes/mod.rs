//! Commands about Kubernetes, and the programs that run in its pods.

#[cfg(any(test, not(feature = "kubernetes")))]
pub(crate) mod absent;
#[cfg(feature = "kubernetes")]
pub(crate) mod check;
#[cfg(feature = "kubernetes")]
pub(crate) mod cluster;
#[cfg(feature = "kubernetes")]
pub(crate) mod controller;

#[cfg(not(feature = "kubernetes"))]
pub(crate) use absent::{check, cluster, controller};
