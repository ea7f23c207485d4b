//! The machine's files as its container engine sees them. A program in a pod sees other files under the same paths, and an
//! engine reports a missing path only when it starts a container.

use std::io;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

use super::copies::Root;

/// The root of a container engine.
#[derive(Debug)]
pub struct MachineRoot(Root);

impl MachineRoot {
    /// For a program that runs on the machine itself.
    ///
    /// # Errors
    /// If the root cannot be opened.
    pub fn own() -> io::Result<Self> {
        Self::at(Path::new("/"))
    }

    /// For the first process of a container that sees the machine's processes: its parent is one of the engine's.
    ///
    /// # Errors
    /// If that process cannot be seen.
    pub fn of_engine() -> io::Result<Self> {
        Self::at(&Self::engine_path())
    }

    pub(super) fn engine_path() -> PathBuf {
        format!("/proc/{}/root", parent_id()).into()
    }

    /// For an engine whose root is the directory `root`.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn at(root: &Path) -> io::Result<Self> {
        Ok(Self(Root::at(root)?))
    }

    /// Those of `paths` that are not there, sorted, each once. Links are followed as the engine follows them.
    pub fn missing<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> Vec<PathBuf> {
        let mut missing: Vec<PathBuf> = paths
            .into_iter()
            .filter(|path| path.to_str().is_none_or(|path| self.0.open(path).is_err()))
            .map(Path::to_owned)
            .collect();
        missing.sort();
        missing.dedup();
        missing
    }
}
