//! The building blocks of `/metrics`: Prometheus' text, histograms, counts of fall-backs. Each component chooses its names
//! and labels (`docs/metrics.md` lists them).

mod fallbacks;
mod histogram;
mod slice;
mod text;

pub use fallbacks::{Fallback, Fallbacks};
pub use histogram::Histogram;
pub use slice::SliceLabels;
pub use text::{Exposition, MetricKind, precise};
