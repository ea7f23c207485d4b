//! Runs a task as a container: any unchanged image, with the shim mounted over the driver's libraries under all their
//! names. Works with Docker's API over its socket, and with Podman's compatible socket.

mod admission;
mod calls;
mod command_line;
mod compat;
mod config;
mod contents;
mod copies;
mod devices;
mod engine;
mod error;
mod fetch;
mod flags;
mod foreign_client;
mod guard;
mod hook;
mod machine_root;
mod output;
mod package;
mod plan;
mod searched;
mod task;

pub use command_line::DockerRun;
pub use contents::slice_edits;
pub use copies::DriverCopies;
pub use devices::{ContainerDevices, DeviceGroups};
pub use engine::{Engine, EngineInfo, Leftover};
pub use error::{AdmissionError, EngineError};
pub use guard::start_guard;
pub(crate) use guard::{GUARD, guard_main};
pub use hook::{cover_image_main, image_hook, image_hook_trial};
pub use machine_root::MachineRoot;
pub use output::ContainerOutput;
pub use plan::ContainerSpec;
pub(crate) use task::{Container, ContainerStopper};
