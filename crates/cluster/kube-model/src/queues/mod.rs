//! Turns tasks in ClearML's queues into pods. docs/adr/0008 states what holds at each point where the controller may
//! die.

pub mod admit;
pub mod builder;
mod config;
mod files;
pub mod outcome;
mod own_request;
pub mod plan;
pub mod pod_request;
pub mod report;
mod template;
pub mod turn;
pub mod under_quotas;

pub use config::{QueueConfig, QueueFile, QueueFileError};
