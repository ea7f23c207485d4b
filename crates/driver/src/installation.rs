//! Where a driver is installed.

use std::path::{Path, PathBuf};

use nvml_wrapper_sys::bindings::NvmlLib;

use crate::libraries::{self, Libraries};
use crate::{Result, simulated};

/// The driver that is meant. Programs have this machine's; only tests of this workspace that need many machines in one
/// process name folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    folder: Option<Folder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Folder {
    dir: PathBuf,
    lib_dir: PathBuf,
}

impl Installation {
    /// This machine's driver.
    #[must_use]
    pub const fn of_this_machine() -> Self {
        Self { folder: None }
    }

    /// For tests: simulated GPUs whose state is in `dir`, which [`simulated::create`](crate::simulated::create) made, and
    /// the simulated driver in `sim` below `lib_dir`.
    #[must_use]
    pub const fn in_folder(dir: PathBuf, lib_dir: PathBuf) -> Self {
        Self { folder: Some(Folder { dir, lib_dir }) }
    }

    /// The folder, if the driver is in one.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_ref().map(|folder| folder.dir.as_path())
    }

    /// Below it are `dev` and `proc`.
    pub(crate) fn root(&self) -> &Path {
        self.folder().unwrap_or_else(|| Path::new("/"))
    }

    /// The library of a driver in a folder; this machine's is found by the loader.
    pub(crate) fn nvml(&self) -> Option<Result<NvmlLib>> {
        self.folder.as_ref().map(|folder| simulated::nvml(&folder.dir, &folder.lib_dir))
    }

    pub(crate) fn libraries(&self, driver_version: &str) -> Result<Libraries> {
        match &self.folder {
            None => libraries::installed(driver_version),
            Some(folder) => simulated::libraries(&folder.lib_dir),
        }
    }
}
