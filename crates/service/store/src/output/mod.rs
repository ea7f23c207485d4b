//! What tasks print, measure and make.

pub(crate) mod batches;
pub(crate) mod charts;
pub(crate) mod events;
pub(crate) mod former;
pub(crate) mod models;
