//! Starts, watches and stops a task behind the shim.
//!
//! - [`start_attached`]: the task is a child of this process and shares its terminal (`cantle run`).
//! - [`start_detached`]: the task has a supervisor of its own and outlives this process (the agent); [`adopt`] finds it
//!   again after a restart.
//!
//! - [`Engine::start`]: the task is a container of Docker or Podman.
//!
//! All return a [`RunningTask`]. Every task that is a process is isolated by one module, `sandbox`. The [`Backend`] is
//! the way in which the shim is installed: in the task's own mount namespace, where it replaces the driver's libraries,
//! or with `LD_PRELOAD` where mounts are impossible.

mod attached;
pub mod cdi;
mod cgroup;
mod container;
mod detached;
mod environment;
mod error;
mod exec;
mod exit;
mod fence;
pub mod files;
mod filters;
mod first;
mod ignored;
mod privileges;
mod processes;
mod running;
mod sandbox;
mod signals;
mod spawn;
mod spec;
mod supervisor;
mod task_directory;
mod user;

pub use attached::start_attached;
pub use cgroup::Cgroup;
pub use container::{
    AdmissionError, ContainerDevices, ContainerOutput, ContainerSpec, DeviceGroups, DockerRun, DriverCopies,
    Engine, EngineError, EngineInfo, Leftover, MachineRoot, cover_image_main, image_hook, image_hook_trial,
    slice_edits, start_guard,
};
pub use detached::{adopt, start_detached};
pub use error::{StartError, listed};
pub use exec::{ExecCommand, ExecError, ExecProcess, ExecStreams, ExecTerminal, TaskDoor, exec_in_task};
pub use exit::Exit;
pub use fence::Fence;
pub use filters::{check_filters, filter_files};
pub use privileges::{Privileges, is_withheld};
pub use processes::{alive, ask_for_release, end_now, holder_of, leave_terminal, parent_of, terminate};
pub use running::{RunningTask, Stopper};
pub use spec::{
    Backend, BackendChoice, Command, Confinement, DriverLibraries, DriverLibrary, TaskSpec, Workspace,
};
pub use supervisor::task_init_main;
pub use task_directory::TaskDirectory;
pub use user::{TaskUser, own_user};

/// The first argument that makes the binary act as a task's supervisor: see [`task_init_main`].
pub const TASK_INIT_COMMAND: &str = "__task-init";

/// The variable that has the path of a task's workspace, see [`Workspace`].
pub const WORKSPACE: &str = "CANTLE_WORKSPACE";

/// The variable that names the file of a task's authorities; `requests` of Python gave it its name.
pub const AUTHORITIES: &str = "REQUESTS_CA_BUNDLE";

/// The first argument that makes the binary cover the driver's libraries in an image: see [`cover_image_main`].
pub const COVER_IMAGE_COMMAND: &str = "__cover-image";

/// Is this process itself inside a slice? Then a task started from here would be confined twice.
#[must_use]
pub fn inside_slice() -> bool {
    let mounted = std::path::Path::new(sandbox::SLICE_DIR).join(cantle_ledger::LIMITS_FILE).exists();
    // Preloaded tasks have no such directory. The variable decides nothing but this.
    mounted || std::env::var_os(environment::SLICE).is_some()
}
