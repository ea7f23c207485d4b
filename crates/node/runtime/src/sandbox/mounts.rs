//! Mounts, and what went wrong with them.

use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};

/// A step that failed, and why.
#[derive(Debug)]
pub(crate) struct SandboxError {
    step: String,
    why: io::Error,
}

impl SandboxError {
    /// The kernel or its security module does not let us: another backend may be tried. Anything else is a defect of
    /// the installation, and falling back would hide it.
    pub(crate) fn is_forbidden(&self) -> bool {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        matches!(self.why.kind(), PermissionDenied | ReadOnlyFilesystem)
    }
}

impl SandboxError {
    pub(crate) const fn cause(&self) -> &io::Error {
        &self.why
    }
}

impl std::fmt::Display for SandboxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.step, self.why)
    }
}

pub(crate) fn plain_mount(
    source: Option<&Path>,
    target: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> io::Result<()> {
    mount(source, target, kind, flags, None::<&str>).map_err(io::Error::from)
}

/// Makes the mount at `at` read-only, for this namespace alone.
pub(crate) fn read_only(at: &Path, flags: MsFlags) -> io::Result<()> {
    plain_mount(None, at, None, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | flags)
}

pub(super) fn step<T>(step: &str, f: impl FnOnce() -> io::Result<T>) -> Result<T, SandboxError> {
    f().map_err(|why| SandboxError { step: step.to_owned(), why })
}

/// Mounts an empty directory.
pub(super) fn tmpfs(at: &Path, flags: MsFlags) -> io::Result<()> {
    plain_mount(Some(Path::new("tmpfs")), at, Some("tmpfs"), flags)
}

/// A mount below another one cannot be reached by its path, and so not by the task either.
pub(super) fn unless_hidden(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(why) if matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => Ok(()),
        done => done,
    }
}
