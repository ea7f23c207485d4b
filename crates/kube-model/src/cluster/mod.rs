//! The GPUs of a cluster and who has what of them, read from its objects.

mod pool;
pub mod report;
mod view;

pub use view::{ClusterView, PodSlices, ViewGpu, ViewNode};
