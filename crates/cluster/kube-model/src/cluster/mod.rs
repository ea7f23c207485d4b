//! The GPUs of a cluster and their allocations, read from its objects.

mod pool;
pub mod report;
mod view;

pub use view::{ClusterView, PodSlices, ViewGpu, ViewNode};
