//! Leases that cannot be read: a disk that lost a block, a file of another version, a user's editor.
//!
//! One such file concerns its own slice and no other. As long as a process of the task lives, the slice counts as its
//! accounting region states; after that the file is set aside as `leases/<lease>.unreadable`, for inspection.

use std::fs;
use std::path::{Path, PathBuf};

use cantle_ledger::host::Observer;
use cantle_metrics::{Fallback, Fallbacks};
use cantle_model::{GpuUuid, Holder, Lease, LeaseId, Milli, Slice, TaskId};
use cantle_runtime::files::{self, FileError};

use super::NodeStore;
use super::known::Stamp;
use crate::NodeError;
use crate::uuid::gpu_name;

/// Each lease is logged once, although leases are read several times a second.
static REPORTED: Fallbacks = Fallbacks::new(&[Fallback::UnreadableLeases]);

/// The name that people see for the task of such a lease.
const NAME: &str = "unreadable lease";

/// A lease file, as it was found.
pub(super) enum LeaseFile {
    Lease(Lease),
    /// The use according to the accounting region.
    Unreadable(Lease),
}

impl LeaseFile {
    pub(super) fn into_lease(self) -> Lease {
        match self {
            Self::Lease(lease) | Self::Unreadable(lease) => lease,
        }
    }
}

/// All lease files of a store, in order of id.
///
/// # Errors
/// If the directory cannot be read, or this process can open no file now.
pub(super) fn read(node: &NodeStore, leases: &Path) -> Result<Vec<LeaseFile>, NodeError> {
    let paths = files::json_files(leases)?;
    node.known.keep(&paths);
    paths.iter().filter_map(|path| read_one(node, path).transpose()).collect()
}

fn read_one(node: &NodeStore, path: &Path) -> Result<Option<LeaseFile>, NodeError> {
    let stamp = Stamp::of(path);
    if let Some(lease) = stamp.and_then(|stamp| node.known.unchanged(path, stamp)) {
        return Ok(Some(LeaseFile::Lease(lease)));
    }
    match files::read_json(path) {
        Ok(lease) => {
            if let (Some(stamp), Some(lease)) = (stamp, &lease) {
                node.known.note(path, stamp, lease);
            }
            Ok(lease.map(LeaseFile::Lease))
        }
        // Nothing is wrong with the file. Set aside, it would free the slice of a running task.
        Err(error) if error.is_out_of_room() => Err(error.into()),
        Err(error) => Ok(Some(LeaseFile::Unreadable(stand_in(node, path, &error)))),
    }
}

fn stand_in(node: &NodeStore, path: &Path, error: &FileError) -> Lease {
    let id = LeaseId(path.file_stem().unwrap_or_default().to_string_lossy().into_owned());
    if REPORTED.count(Fallback::UnreadableLeases, &id.0) {
        tracing::error!(lease = %id, %error, "a lease cannot be read; its slice counts as long as a process uses it");
    }
    let region = Observer::open(&node.slice_dir(&id)).and_then(|region| region.snapshot());
    let slices =
        region.map(|region| region.gpus.into_iter().map(|gpu| slice(&gpu.uuid, gpu.limit_bytes)).collect());
    // A region that cannot be read either allocates nothing: its limits are gone for its processes too.
    let slices = slices.unwrap_or_default();
    let owner = Holder { pid: 0, start_ticks: u64::MAX };
    Lease { name: NAME.to_owned(), ..Lease::new(id, TaskId(String::new()), slices, owner) }
}

/// Its fraction is unknown, so nothing more of that GPU is allocated.
fn slice(uuid: &[u8; 16], limit_bytes: u64) -> Slice {
    Slice { gpu: GpuUuid(gpu_name(uuid)), milli: Milli::ONE, memory_limit_bytes: limit_bytes, mig: None }
}

/// Puts the file out of the way.
///
/// # Errors
/// Names the file that cannot be renamed.
pub(super) fn set_aside(path: &Path) -> Result<(), NodeError> {
    let aside: PathBuf = path.with_extension("unreadable");
    fs::rename(path, &aside).map_err(|error| NodeError::file(&aside, error))
}
