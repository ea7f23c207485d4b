//! The task's own mount namespace, in which the driver's libraries are the shim's.
//!
//! ```text
//! /run/cantle                      a tmpfs of the task's own; it hides the node's files
//!   real/libcuda.so.1              the driver's library, which the shim is linked against by this very path
//!   real/libnvidia-ml.so.1
//!   slice/limits                   read-only
//!   slice/usage                    read-write
//! <every name of libcuda.so.1>     the shim
//! <every name of libnvidia-ml…>    the shim
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Confinement, DriverLibrary};

pub(crate) const CANTLE_DIR: &str = "/run/cantle";
/// Where the shim looks for the slice's accounting.
pub(crate) const SLICE_DIR: &str = "/run/cantle/slice";
pub(crate) const USAGE_FILE: &str = "/run/cantle/slice/usage";
pub(crate) const REAL_DIR: &str = "/run/cantle/real";

/// A step that failed, and why.
#[derive(Debug)]
pub(crate) struct NamespaceError {
    step: String,
    why: io::Error,
}

impl NamespaceError {
    /// The kernel or its security module does not let us: another backend may be tried. Anything else is a defect of
    /// the installation, and falling back would hide it.
    pub(crate) fn is_forbidden(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self.why.kind(), PermissionDenied | ReadOnlyFilesystem)
    }
}

impl std::fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.why)
    }
}

type Result<T> = std::result::Result<T, NamespaceError>;

/// Moves the calling thread into a namespace of its own and puts everything in place; a child that the thread makes
/// afterwards lives there. Use a thread that does nothing else and ends: there is no way back.
pub(crate) fn enter(confinement: &Confinement) -> Result<()> {
    // The mount point is the only thing that is made outside of the namespace.
    step("create /run/cantle", || fs::create_dir_all(CANTLE_DIR))?;
    step("unshare", || unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from))?;
    // Nothing that is mounted from here on may show up outside, and nothing mounted outside may cover it.
    step("make / private", || {
        plain_mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)
    })?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    step("mount tmpfs on /run/cantle", || {
        plain_mount(Some(Path::new("tmpfs")), Path::new(CANTLE_DIR), Some("tmpfs"), flags)
    })?;
    step("make folders in /run/cantle", || {
        fs::create_dir(REAL_DIR)?;
        fs::create_dir(SLICE_DIR)
    })?;
    let libraries = &confinement.libraries;
    bind(&libraries.cuda.real, &Path::new(REAL_DIR).join("libcuda.so.1"), Access::ReadOnly)?;
    bind(&libraries.nvml.real, &Path::new(REAL_DIR).join("libnvidia-ml.so.1"), Access::ReadOnly)?;
    let slice = Path::new(SLICE_DIR);
    bind(&confinement.slice_dir.join("limits"), &slice.join("limits"), Access::ReadOnly)?;
    bind(&confinement.slice_dir.join("usage"), Path::new(USAGE_FILE), Access::ReadWrite)?;
    cover(&libraries.cuda, &confinement.shim_dir.join("libcuda.so.1"))?;
    cover(&libraries.nvml, &confinement.shim_dir.join("libnvidia-ml.so.1"))?;
    // Last: the folder itself takes no more files.
    step("make /run/cantle read-only", || {
        plain_mount(None, Path::new(CANTLE_DIR), None, flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

/// Puts `shim` over every file that one of the library's names leads to. Names that are symbolic links are covered
/// with the file they point to.
fn cover(library: &DriverLibrary, shim: &Path) -> Result<()> {
    let files: BTreeSet<PathBuf> = library
        .names
        .iter()
        .filter_map(|name| name.canonicalize().ok())
        .filter(|file| file.is_file())
        .collect();
    for file in files {
        bind(shim, &file, Access::ReadOnly)?;
    }
    Ok(())
}

/// Makes `source` appear at `target`, which is created if it is in our own tmpfs.
fn bind(source: &Path, target: &Path, access: Access) -> Result<()> {
    step(&format!("mount {} on {}", source.display(), target.display()), || {
        if target.starts_with(CANTLE_DIR) {
            File::create(target)?;
        }
        plain_mount(Some(source), target, None, MsFlags::MS_BIND)?;
        if access == Access::ReadOnly {
            let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            plain_mount(None, target, None, read_only | MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
        }
        Ok(())
    })
}

fn plain_mount(source: Option<&Path>, target: &Path, kind: Option<&str>, flags: MsFlags) -> io::Result<()> {
    mount(source, target, kind, flags, None::<&str>).map_err(io::Error::from)
}

fn step(step: &str, f: impl FnOnce() -> io::Result<()>) -> Result<()> {
    f().map_err(|why| NamespaceError { step: step.to_owned(), why })
}
