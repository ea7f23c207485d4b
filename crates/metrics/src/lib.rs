//! What `/metrics` is made of: numbers as text that Prometheus reads, and histograms. Names and labels are their owners'
//! (`docs/metrics.md` lists them).

mod histogram;
mod slice;
mod text;

pub use histogram::Histogram;
pub use slice::SliceLabels;
pub use text::{Exposition, Kind, precise};
