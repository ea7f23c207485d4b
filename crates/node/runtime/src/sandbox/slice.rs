//! The driver's libraries in a task with GPUs are the shim's.
//!
//! ```text
//! /run/cantle
//!   real/libcuda.so.1              the driver's library, which the shim is linked against by this very path
//!   real/libnvidia-ml.so.1
//!   slice/limits                   read-only
//!   slice/usage                    read-write
//!   slice/grant, slice/launches    where compute is shared by weight, read-only and read-write
//! <every name of libcuda.so.1>     the shim
//! <every name of libnvidia-ml…>    the shim
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use nix::mount::MsFlags;

use super::mounts::{plain_mount, read_only, step, tmpfs};
use super::{CANTLE_DIR, REAL_DIR, Result, SLICE_DIR};
use crate::{Confinement, DriverLibraries, DriverLibrary};

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
pub(super) struct Files {
    cuda: Source,
    nvml: Source,
    slice: Vec<(&'static str, Source, Access)>,
    cuda_filter: Source,
    nvml_filter: Source,
}

impl Files {
    pub(super) fn open(confinement: &Confinement) -> Result<Self> {
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

    /// Puts them into the tmpfs at `/run/cantle`, and the filters over the driver's libraries.
    pub(super) fn put(&self, libraries: &DriverLibraries) -> Result<()> {
        step("make directories in /run/cantle", || {
            fs::create_dir(REAL_DIR)?;
            fs::create_dir(SLICE_DIR)
        })?;
        self.cuda.bind(&Path::new(REAL_DIR).join("libcuda.so.1"), Access::ReadOnly)?;
        self.nvml.bind(&Path::new(REAL_DIR).join("libnvidia-ml.so.1"), Access::ReadOnly)?;
        for (name, source, access) in &self.slice {
            source.bind(&Path::new(SLICE_DIR).join(name), *access)?;
        }
        cover(&libraries.cuda, &self.cuda_filter)?;
        cover(&libraries.nvml, &self.nvml_filter)
    }
}

/// Makes a file of the machine appear at `target`, read-only.
pub(super) fn put_file(file: &Path, target: &Path) -> Result<()> {
    Source::open(file)?.bind(target, Access::ReadOnly)
}

/// Leaves only these files in a directory of device nodes.
pub(super) fn show_only(dir: &Path, files: &[PathBuf]) -> Result<()> {
    let sources = files.iter().map(|file| Source::open(file)).collect::<Result<Vec<_>>>()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    step(&format!("mount tmpfs on {}", dir.display()), || tmpfs(dir, flags))?;
    for (file, source) in files.iter().zip(sources) {
        step(&format!("make {}", file.display()), || File::create(file).map(drop))?;
        source.bind(file, Access::ReadWrite)?;
    }
    step(&format!("make {} read-only", dir.display()), || read_only(dir, flags))
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
