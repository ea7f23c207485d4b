//! A task as a container: any image, unchanged, with the shim mounted over the driver's libraries by every name they
//! have. Docker's API over its socket; Podman's compatible socket too.

mod admission;
mod command_line;
mod config;
mod contents;
mod engine;
mod fetch;
mod flags;
mod output;
mod plan;
mod task;

pub use admission::AdmissionError;
pub use command_line::DockerRun;
pub use contents::slice_edits;
pub use engine::{Engine, EngineError, EngineInfo, Leftover};
pub use output::Output;
pub use plan::ContainerSpec;
pub(crate) use task::{Container, ContainerRef, ContainerStopper};
