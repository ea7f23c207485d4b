//! A task as a container: any image, unchanged, with the shim mounted over the driver's libraries by every name they
//! have. Docker's API over its socket; Podman's compatible socket too.

mod admission;
mod calls;
mod command_line;
mod config;
mod contents;
mod copies;
mod engine;
mod error;
mod fetch;
mod flags;
mod foreign_client;
mod output;
mod plan;
mod searched;
mod task;

pub use command_line::DockerRun;
pub use contents::slice_edits;
pub use copies::DriverCopies;
pub use engine::{Engine, EngineInfo, Leftover};
pub use error::{AdmissionError, EngineError};
pub use output::ContainerOutput;
pub use plan::ContainerSpec;
pub(crate) use task::{Container, ContainerStopper};
