//! Checks the files that a slice puts into a container, at the paths where the container engine will look for them.
//!
//! The engine of a pod reads paths of the node. With a driver container, another library directory or a directory that is
//! not mounted, a path of this program does not exist on the node, and the engine would refuse each pod when it starts.

use std::path::Path;
use std::sync::PoisonError;

use cantle_driver::DriverError;
use cantle_model::{Lease, Milli, Slice, TaskId};
use cantle_runtime::cdi::Edits;
use cantle_runtime::{Command, image_hook, slice_edits};

use super::AllocatableGpus;
use crate::NodeError;
use crate::launch::new_lease;

impl AllocatableGpus {
    /// Looks from the engine's side for what every slice here consists of. Without it no GPU is offered, because no pod could start.
    ///
    /// # Errors
    /// [`NodeError::NotOnNode`] names the missing files; or the driver cannot list the files that it needs.
    pub fn check_files(&self) -> Result<(), NodeError> {
        let Some(gpu) = self.gpus.first() else { return Ok(()) };
        let slice = Slice {
            gpu: gpu.uuid.clone(),
            milli: Milli::ONE,
            memory_limit_bytes: gpu.memory_bytes,
            mig: None,
        };
        let lease = new_lease(TaskId(String::new()), String::new(), None, vec![slice]);
        let edits = self.unchecked_edits(&lease)?;
        // This lease was not made; what others have is in the same directory.
        let own = self.node.slice_dir(&lease.id);
        let paths = edits.host_paths().filter(|path| !path.starts_with(&own)).chain([self.node.dir()]);
        self.refuse_missing(paths)
    }

    fn refuse_missing<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> Result<(), NodeError> {
        let missing = self.engine.missing(paths);
        if missing.is_empty() { Ok(()) } else { Err(NodeError::NotOnNode(missing)) }
    }

    /// Are the files there? Logs it when that changes.
    pub(super) fn has_files(&self) -> bool {
        let now = match self.check_files() {
            // A GPU that does not answer gives no information about files.
            Err(NodeError::Driver(error)) if !matches!(error, DriverError::NoLibrary { .. }) => return true,
            checked => checked.err().map(|error| error.to_string()),
        };
        let mut before = self.unoffered.lock().unwrap_or_else(PoisonError::into_inner);
        if now != *before {
            match &now {
                None => tracing::info!("the files of a slice are on the node again: GPUs are offered"),
                Some(why) => tracing::error!(why, "no GPU is offered"),
            }
            before.clone_from(&now);
        }
        now.is_none()
    }

    /// The files that a container with this slice needs.
    ///
    /// # Errors
    /// If the driver cannot say, a file of it cannot be copied, or the container engine would not find one of them.
    pub fn edits(&self, lease: &Lease) -> Result<Edits, NodeError> {
        let edits = self.unchecked_edits(lease)?;
        self.refuse_missing(edits.host_paths())?;
        Ok(edits)
    }

    fn unchecked_edits(&self, lease: &Lease) -> Result<Edits, NodeError> {
        let mut parts = self.driver.container_parts(&lease.slices)?;
        let mut spec = self.launcher.spec(&self.node, lease, &Command::default());
        if let Some(copies) = &self.copies {
            let libraries = &mut spec.confinement.libraries;
            let files =
                [&mut libraries.cuda.real, &mut libraries.nvml.real].into_iter().chain(&mut parts.files);
            for file in files {
                *file = copies.copy_of(file)?;
            }
        }
        let mut edits = slice_edits(&spec, &parts.devices, &parts.files);
        edits.hooks.extend(self.cover.as_ref().map(|program| image_hook(&spec, program)));
        Ok(edits)
    }
}
