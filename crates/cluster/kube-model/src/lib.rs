//! The decisions of cantle on Kubernetes: objects in, objects and actions out. This crate has no client, no clock and
//! no network. `cantle-kube` reads the objects, asks this crate, and carries out the answer.
//!
//! | module | decides |
//! |---|---|
//! | [`inject`] | what the admission webhook changes in a pod |
//! | [`claim`] | what the claim of a pod contains |
//! | [`dra`] | which devices a node publishes, and what an allocated claim means |
//! | [`classic`] | which GPU a pod gets on the classic path, and which GPUs are reserved |
//! | [`demand`] | what the pods without a node request, for metrics |
//! | [`nominate`] | which node kube-scheduler tries first |
//! | [`gpu_quota`] | which pods a quota of their namespace holds |
//! | [`gpu_object`] | what `kubectl` shows of the GPUs of a node |
//! | [`cluster`] | the GPUs of a cluster and their allocations |
//! | [`queues`] | which tasks get pods, what the pods look like, and what is done about each |

pub mod claim;
pub mod classic;
pub mod cluster;
mod decision;
pub mod demand;
pub mod dra;
mod error;
pub mod gpu_object;
pub mod gpu_quota;
pub mod inject;
pub mod names;
pub mod nominate;
mod object;
pub mod phase;
pub mod queues;
mod slice_name;
mod version;

pub use decision::{DecidedGpu, SliceDecision};
pub use error::{ClaimError, DroppedError, ObjectError, VersionError};
pub use object::ObjectExt;
pub use slice_name::{MAX_DEVICES, PARTS, SliceName, SliceNameError, UnkeepableShare, profile_of};
pub use version::Version;
