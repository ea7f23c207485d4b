//! The output of tasks: events, metrics, samples and models.

pub(crate) mod compare;
pub(crate) mod events;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod samples;
