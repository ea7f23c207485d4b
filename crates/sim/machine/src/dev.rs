//! `/dev` of the machine: the simulated driver's nodes in place of those of the host's driver.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::hardware::Hardware;
use crate::layout::Layout;
use crate::mounts::{Stage, bind, mirror};
use crate::{Result, step};

/// The mode of the driver's nodes: all users may open them.
const MODE: u32 = 0o666;
/// The mode of nodes of MIG instances: all users may read them.
const CAPABILITY_MODE: u32 = 0o444;

/// The target of the machine's nodes.
pub(crate) enum Backing {
    /// A block device: its nodes are real ones, which container engines pass on and to which the kernel controls access.
    Device(u64),
    /// The kernel's `/dev/null`: real nodes that do nothing.
    Null,
    /// The state itself, bound to each name: nothing else is possible without root, or for root of a user namespace.
    File(PathBuf),
}

impl Backing {
    pub(crate) fn of(device: Option<&File>, state: &Path) -> Result<Self> {
        match device {
            Some(device) => {
                Ok(Self::Device(step("read the loop device's number", || device.metadata())?.rdev()))
            }
            None => {
                step("open the state to all users", || {
                    fs::set_permissions(state, Permissions::from_mode(MODE))
                })?;
                Ok(Self::File(state.to_owned()))
            }
        }
    }

    /// For nodes that programs can open, and nothing more.
    pub(crate) fn without_function(makes_nodes: bool, file: &Path) -> Result<Self> {
        if makes_nodes { Ok(Self::Null) } else { Self::of(None, file) }
    }

    fn make(&self, path: &Path, mode: u32) -> Result<()> {
        match self {
            Self::Null => {
                step(&format!("make {}", path.display()), || node(path, makedev(1, 3), SFlag::S_IFCHR, mode))
            }
            Self::Device(number) => {
                step(&format!("make {}", path.display()), || node(path, *number, SFlag::S_IFBLK, mode))
            }
            Self::File(state) => {
                step(&format!("make {}", path.display()), || File::create(path).map(drop))?;
                bind(state, path)
            }
        }
    }
}

pub(crate) fn put(
    stage: &Stage,
    layout: Layout,
    hardware: &Hardware,
    backing: &Backing,
    shared_memory: &Path,
) -> Result<()> {
    let dir = copy_others(stage, backing, shared_memory, &[])?;
    if layout == Layout::Wsl {
        backing.make(&dir.join("dxg"), MODE)?;
    } else {
        let own = (0..hardware.gpus.len()).map(|minor| format!("nvidia{minor}"));
        let shared = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset"].map(str::to_owned);
        for name in own.chain(shared) {
            backing.make(&dir.join(name), MODE)?;
        }
        step("make nvidia-caps", || fs::create_dir(dir.join("nvidia-caps")))?;
        for name in &hardware.capability_nodes {
            backing.make(&dir.join("nvidia-caps").join(name), CAPABILITY_MODE)?;
        }
    }
    bind(&dir, Path::new("/dev"))
}

/// `/dev` of a machine with these nodes of AMD's driver.
pub(crate) fn put_amd(
    stage: &Stage,
    nodes: &[String],
    backing: &Backing,
    shared_memory: &Path,
) -> Result<()> {
    let dir = copy_others(stage, backing, shared_memory, &["kfd", "dri"])?;
    step("make dri", || fs::create_dir(dir.join("dri")))?;
    nodes.iter().try_for_each(|name| backing.make(&dir.join(name), MODE))?;
    bind(&dir, Path::new("/dev"))
}

/// A copy of the host's `/dev` without the nodes of its driver of GPUs: the host may have one of its own, which the machine does not show.
fn copy_others(stage: &Stage, backing: &Backing, shared_memory: &Path, hidden: &[&str]) -> Result<PathBuf> {
    let dir = stage.directory("dev")?;
    for entry in step("read /dev", || fs::read_dir("/dev"))? {
        let entry = step("read /dev", || entry)?;
        let name = entry.file_name();
        if name == "shm" {
            let copy = dir.join("shm");
            step("make shm", || fs::create_dir(&copy))?;
            bind(shared_memory, &copy)?;
            continue;
        }
        let name = name.to_string_lossy();
        if !name.starts_with("nvidia") && !hidden.contains(&name.as_ref()) {
            copy(&entry.path(), &dir.join(name.as_ref()), backing)?;
        }
    }
    Ok(dir)
}

/// Makes `path` appear as `copy`. Nodes are created again, because a mount for each would slow down every later namespace;
/// where no nodes can be made they can only be mounted.
fn copy(path: &Path, copy: &Path, backing: &Backing) -> Result<()> {
    let what = format!("copy {}", path.display());
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // Removed since the directory was read.
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(why) => return step(&what, || Err(why)),
    };
    let kind = meta.file_type();
    let is_node = kind.is_char_device() || kind.is_block_device();
    if is_node && !matches!(backing, Backing::File(_)) {
        let kind = if kind.is_char_device() { SFlag::S_IFCHR } else { SFlag::S_IFBLK };
        return step(&what, || {
            node(copy, meta.rdev(), kind, meta.mode() & 0o7777)?;
            std::os::unix::fs::chown(copy, Some(meta.uid()), Some(meta.gid()))
        });
    }
    mirror(path, copy)
}

fn node(path: &Path, number: u64, kind: SFlag, mode: u32) -> io::Result<()> {
    mknod(path, kind, Mode::from_bits_truncate(mode), number)?;
    // The umask has changed the mode.
    fs::set_permissions(path, Permissions::from_mode(mode))
}
