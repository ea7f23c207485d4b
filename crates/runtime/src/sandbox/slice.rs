//! The task's own mount namespace, in which the driver's libraries are the shim's.
//!
//! ```text
//! /run/cantle                      a tmpfs of the task's own; it hides the node's files
//!   real/libcuda.so.1              the driver's library, which the shim is linked against by this very path
//!   real/libnvidia-ml.so.1
//!   slice/limits                   read-only
//!   slice/usage                    read-write
//!   slice/grant, slice/launches    where compute is shared by weight, read-only and read-write
//! <every name of libcuda.so.1>     the shim
//! <every name of libnvidia-ml…>    the shim
//! ```
//!
//! The directories of [`Confinement::hidden`] are empty in it. The task's own `/proc` and read-only control groups come later:
//! only a process of its pid namespace can mount them (`first.rs`).

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::{Confinement, DriverLibrary, Privileges};

pub(crate) const CANTLE_DIR: &str = "/run/cantle";
/// The directory in which the shim looks for the slice's accounting.
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
/// afterwards lives there. Use a thread that does nothing else and ends: it can't leave again.
pub(crate) fn enter(confinement: &Confinement) -> Result<()> {
    // Only the mount point is made outside of the namespace.
    step("create /run/cantle", || fs::create_dir_all(CANTLE_DIR))?;
    step("unshare", || unshare(CloneFlags::CLONE_NEWNS).map_err(io::Error::from))?;
    // From here on no mount propagates to the outside or comes from there.
    step("make / private", || {
        plain_mount(None, Path::new("/"), None, MsFlags::MS_REC | MsFlags::MS_PRIVATE)
    })?;
    // The sources of the binds below may be where the tmpfs is about to be mounted: the accounting of root's tasks is.
    let sources = Sources::open(confinement)?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    step("mount tmpfs on /run/cantle", || {
        plain_mount(Some(Path::new("tmpfs")), Path::new(CANTLE_DIR), Some("tmpfs"), flags)
    })?;
    step("make directories in /run/cantle", || {
        fs::create_dir(REAL_DIR)?;
        fs::create_dir(SLICE_DIR)
    })?;
    let libraries = &confinement.libraries;
    sources.cuda.bind(&Path::new(REAL_DIR).join("libcuda.so.1"), Access::ReadOnly)?;
    sources.nvml.bind(&Path::new(REAL_DIR).join("libnvidia-ml.so.1"), Access::ReadOnly)?;
    for (name, source, access) in &sources.slice {
        source.bind(&Path::new(SLICE_DIR).join(name), *access)?;
    }
    cover(&libraries.cuda, &sources.cuda_filter)?;
    cover(&libraries.nvml, &sources.nvml_filter)?;
    confinement.hidden.iter().try_for_each(|dir| hide(dir))?;
    // Last: nothing more can be put into it.
    step("make /run/cantle read-only", || {
        plain_mount(None, Path::new(CANTLE_DIR), None, flags | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY)
    })?;
    if confinement.privileges != Privileges::Machine {
        // For the children of this thread.
        step("unshare the pid namespace", || unshare(CloneFlags::CLONE_NEWPID).map_err(io::Error::from))?;
    }
    Ok(())
}

/// Puts an empty directory where the accounting of other tasks is: a task of root could write it.
fn hide(dir: &Path) -> Result<()> {
    if dir.starts_with(CANTLE_DIR) || !dir.is_dir() {
        return Ok(());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    step(&format!("hide {}", dir.display()), || {
        plain_mount(Some(Path::new("tmpfs")), dir, Some("tmpfs"), flags)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    ReadOnly,
    ReadWrite,
}

/// Puts the filter over every file that one of the library's names leads to. Names that are symbolic links are covered
/// with the file they point to.
fn cover(library: &DriverLibrary, filter: &Source) -> Result<()> {
    let files: BTreeSet<PathBuf> = library
        .names
        .iter()
        .filter_map(|name| name.canonicalize().ok())
        .filter(|file| file.is_file())
        .collect();
    for file in files {
        filter.bind(&file, Access::ReadOnly)?;
    }
    Ok(())
}

/// The files that are bound, held open: a mount over their directory does not hide them from this process.
struct Sources {
    cuda: Source,
    nvml: Source,
    slice: Vec<(&'static str, Source, Access)>,
    cuda_filter: Source,
    nvml_filter: Source,
}

impl Sources {
    fn open(confinement: &Confinement) -> Result<Self> {
        let Confinement { slice_dir, libraries, .. } = confinement;
        let slice = confinement.slice_files().into_iter().map(|(name, is_read_only)| {
            let access = if is_read_only { Access::ReadOnly } else { Access::ReadWrite };
            Ok((name, Source::open(&slice_dir.join(name))?, access))
        });
        Ok(Self {
            slice: slice.collect::<Result<_>>()?,
            cuda: Source::open(&libraries.cuda.real)?,
            nvml: Source::open(&libraries.nvml.real)?,
            cuda_filter: Source::open(&confinement.filter("libcuda.so"))?,
            nvml_filter: Source::open(&confinement.filter("libnvidia-ml.so"))?,
        })
    }
}

/// A file to be mounted elsewhere.
struct Source {
    file: File,
    /// As it is called in messages.
    name: PathBuf,
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        // For a name only: nothing is read through it.
        let open = || OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path);
        Ok(Self { file: step(&format!("open {}", path.display()), open)?, name: path.to_owned() })
    }

    /// Makes the file appear at `target`, which is created if it is in our own tmpfs.
    fn bind(&self, target: &Path, access: Access) -> Result<()> {
        step(&format!("mount {} on {}", self.name.display(), target.display()), || {
            if target.starts_with(CANTLE_DIR) {
                File::create(target)?;
            }
            let source = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            plain_mount(Some(Path::new(&source)), target, None, MsFlags::MS_BIND)?;
            if access == Access::ReadOnly {
                read_only(target, MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
            }
            Ok(())
        })
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

pub(crate) fn step<T>(step: &str, f: impl FnOnce() -> io::Result<T>) -> Result<T> {
    f().map_err(|why| NamespaceError { step: step.to_owned(), why })
}
