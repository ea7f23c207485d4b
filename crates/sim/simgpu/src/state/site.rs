//! The paths of a machine: its state, its device nodes.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// The nodes through which programs reach the driver: NVIDIA's own, and the one of Windows' subsystem for Linux, where it is
/// the only one. On a simulated machine the machine's state is there.
const CONTROL_NODES: [&str; 2] = ["/dev/nvidiactl", "/dev/dxg"];

/// The location of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Site {
    /// In a directory, which programs are given by a setting.
    Directory(PathBuf),
    /// In `/dev`, where an installed driver has its nodes. The one with this name is the state. A process that cannot
    /// open `/dev/nvidiaN` does not see that GPU.
    Nodes(&'static str),
}

impl Site {
    /// This machine's nodes in `/dev`, if it has simulated ones: those of real drivers are character devices.
    pub fn of_nodes() -> Option<Self> {
        let is_simulated = |name: &&str| {
            let kind = fs::metadata(name).map(|node| node.file_type());
            kind.is_ok_and(|kind| kind.is_block_device() || kind.is_file())
        };
        CONTROL_NODES.into_iter().find(is_simulated).map(Self::Nodes)
    }

    /// The name of the machine in messages.
    pub(super) fn name(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Nodes(name) => Path::new(name),
        }
    }

    /// The file or node that is the machine's state.
    pub fn state(&self) -> PathBuf {
        match self {
            Self::Directory(dir) => dir.join("state"),
            Self::Nodes(name) => name.into(),
        }
    }

    /// The directory that has `dev` and `proc`.
    pub fn root(&self) -> &Path {
        match self {
            Self::Directory(dir) => dir,
            Self::Nodes(_) => Path::new("/"),
        }
    }

    /// Whether this process can open a GPU.
    pub fn can_open(&self, gpu: usize) -> bool {
        match self {
            Self::Directory(_) => true,
            // Of the other kind there is one node for all GPUs.
            Self::Nodes(name) => *name != CONTROL_NODES[0] || File::open(format!("/dev/nvidia{gpu}")).is_ok(),
        }
    }
}
