//! What tasks print, measure and make.

pub(crate) mod compare;
pub(crate) mod events;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod samples;
