//! Code of ClearML's SDK, which ClearML's agent sets up and runs: a directory for each task, one cache of environments for all of
//! them, and one builder at a time for each environment.
//!
//! ClearML's agent builds the environment of a task in `agent.venvs_dir` and removes what it finds there. A worker of ClearML
//! has a number and a directory with that number; here each run has a directory of its own, which goes with the run's files.
//! Inside of its sandbox every task has its directory at the same path, because the scripts of an environment name the path at
//! which it was installed.

mod build;
mod cache;

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cantle_clearml::{CLEARML_AGENT, tasks};
use cantle_model::LeaseId;
use cantle_node::NodeError;
use cantle_runtime::{StartError, TaskSpec, Workspace};

use crate::task_user::acting_as;

pub use build::{SDK_TASK_COMMAND, sdk_task_main};

/// The program that [`build`] starts in the task: this very one.
const ITSELF: &str = "/proc/self/exe";

/// Where ClearML's agent works on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SdkDirectories {
    /// `agent.venvs_dir`; each task gets a directory in it.
    pub venvs: Option<PathBuf>,
    /// `agent.venvs_cache.path`
    pub venvs_cache: Option<PathBuf>,
    /// Environments are pip's (`agent.package_manager.type`). Others do not come from the cache, or have links to a store that no
    /// link leads to from another mount.
    pub are_of_pip: bool,
    /// The home directory of the agent's user, in which they are by default.
    pub home: Option<PathBuf>,
}

impl SdkDirectories {
    /// The working directory of the run under this lease.
    pub(crate) fn workspace(&self, lease: &LeaseId) -> Option<PathBuf> {
        self.venvs.as_ref().map(|venvs| venvs.join(format!("cantle-{}", lease.0)))
    }

    /// Makes a task of ClearML's SDK work in `workspace`, and wait for an environment that another one installs.
    ///
    /// # Errors
    /// If ClearML's agent is not installed, or the directory cannot be made.
    pub(crate) fn settle(
        &self,
        spec: &mut TaskSpec,
        script: &tasks::Script,
        workspace: &Path,
    ) -> Result<(), NodeError> {
        let inherited = std::env::var_os("PATH");
        if !is_in(spec.env.get("PATH").or(inherited.as_ref())) {
            return Err(StartError::NotFound(CLEARML_AGENT.to_owned()).into());
        }
        // With the rights of the task's user: both are in its home.
        let made = acting_as(spec.user.as_ref(), || {
            if let Some(cache) = &self.venvs_cache {
                cache::tend_now(cache);
            }
            DirBuilder::new().recursive(true).mode(0o700).create(workspace)
        });
        made.flatten().map_err(|error| NodeError::file(workspace, error))?;
        spec.workspace = Some(Workspace { directory: workspace.to_owned(), is_mounted: self.are_of_pip });
        let cache = self.venvs_cache.clone().filter(|_| self.are_of_pip);
        let orders = build::Orders::new(cache, script);
        let mut argv = vec![ITSELF.into(), SDK_TASK_COMMAND.into(), orders.to_word()];
        argv.append(&mut spec.argv);
        spec.argv = argv;
        Ok(())
    }
}

/// Is ClearML's agent in a directory of this `PATH`?
fn is_in(path: Option<&OsString>) -> bool {
    path.is_some_and(|path| {
        std::env::split_paths(path).any(|directory| directory.join(CLEARML_AGENT).is_file())
    })
}

/// Removes a task's working directory; one that is not there is removed already.
pub(crate) fn remove(workspace: &Path) {
    match fs::remove_dir_all(workspace) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(directory = %workspace.display(), "the working directory of an ended task stays: {error}");
        }
        _ => {}
    }
}
