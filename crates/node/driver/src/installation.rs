//! Finds the installation of a driver.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nvml_wrapper_sys::bindings::NvmlLib;

use crate::libraries::{self, Libraries};
use crate::{Result, simulated};

/// The driver to use. Programs use this machine's; only tests of this workspace that need several machines in one process
/// name directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installation {
    directory: Option<Directory>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Directory {
    dir: PathBuf,
    lib_dir: PathBuf,
}

impl Installation {
    /// This machine's driver.
    #[must_use]
    pub const fn of_this_machine() -> Self {
        Self { directory: None }
    }

    /// For tests: simulated GPUs whose state is in `dir`, which [`simulated::create`](crate::simulated::create) made, and
    /// the simulated driver in `sim` below `lib_dir`.
    #[must_use]
    pub const fn in_directory(dir: PathBuf, lib_dir: PathBuf) -> Self {
        Self { directory: Some(Directory { dir, lib_dir }) }
    }

    /// The directory, if the driver is in one.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_ref().map(|directory| directory.dir.as_path())
    }

    /// As words of a command line, for [`Self::of_words`]; none for this machine's driver.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let words = |directory: &Directory| [directory.dir.clone().into(), directory.lib_dir.clone().into()];
        self.directory.iter().flat_map(words).collect()
    }

    pub(crate) fn of_words(words: &[OsString]) -> Self {
        match words {
            [dir, lib_dir] => Self::in_directory(dir.into(), lib_dir.into()),
            _ => Self::of_this_machine(),
        }
    }

    /// The directory that has `dev` and `proc`.
    pub(crate) fn root(&self) -> &Path {
        self.directory().unwrap_or_else(|| Path::new("/"))
    }

    /// The library of a driver in a directory; this machine's is found by the loader.
    pub(crate) fn nvml(&self) -> Option<Result<NvmlLib>> {
        self.directory.as_ref().map(|directory| simulated::nvml(&directory.dir, &directory.lib_dir))
    }

    pub(crate) fn libraries(&self, driver_version: &str) -> Result<Libraries> {
        match &self.directory {
            None => libraries::installed(driver_version),
            Some(directory) => simulated::libraries(&directory.lib_dir),
        }
    }
}
