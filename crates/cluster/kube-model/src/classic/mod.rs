//! The classic path, for clusters without claims on devices (DRA): which GPU a pod gets, and which GPUs are reserved.

mod choose;
pub mod record;
pub mod reserve;
pub mod wire;

pub use choose::{choose, slice_decision};
