//! The output of tasks: console, metrics and artifacts.

pub(crate) mod batches;
pub(crate) mod charts;
pub(crate) mod events;
pub(crate) mod former;
pub(crate) mod models;
