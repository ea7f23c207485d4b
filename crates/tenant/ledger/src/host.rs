//! The agent's side: creates a slice's files. [`Observer`] reads them and changes limits.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;
use std::{format, io};

use crate::compute;
use crate::file_names::{GRANT_FILE, LAUNCHES_FILE, LIMITS_FILE, USAGE_FILE};
use crate::layout::{
    LEASE_BYTES, LIMITS_MAGIC, LimitsRegion, MAX_GPUS, USAGE_MAGIC, UsageRegion, Uuid, VERSION,
};
use crate::map::OpenError;
pub use crate::observer::{GpuUse, Observer, ProcessUse, SliceUse};
use crate::protocol;
use core::mem::offset_of;

/// The limit of a slice on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuLimit {
    /// The GPU or MIG instance.
    pub uuid: Uuid,
    /// Memory, contexts included; counted in whole granules.
    pub limit_bytes: u64,
    /// The memory of one process's context on this GPU.
    pub context_bytes: u64,
}

/// The errors of the agent's side.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file operation failed.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The files are there but cannot be used.
    #[error("{0}: {1}")]
    Open(PathBuf, #[source] OpenError),
    /// More GPUs than a slice can span; the value is what was given.
    #[error("a slice can span {MAX_GPUS} GPUs, not {0}")]
    TooManyGpus(usize),
    /// The lease id is longer than its field.
    #[error("lease id \"{0}\" is longer than {LEASE_BYTES} bytes")]
    LeaseTooLong(String),
    /// The slice has no such GPU.
    #[error("the slice has no GPU {0}")]
    UnknownGpu(String),
}

impl HostError {
    /// The error of the system, if it is one.
    #[must_use]
    pub fn system(&self) -> Option<io::Error> {
        match self {
            Self::Io(_, error) => error.raw_os_error().map(io::Error::from_raw_os_error),
            Self::Open(_, OpenError::Io(errno)) => Some(io::Error::from_raw_os_error(*errno)),
            _ => None,
        }
    }

    /// The files are not there any more: the slice has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Io(_, error) => error.kind() == io::ErrorKind::NotFound,
            Self::Open(_, error) => *error == OpenError::Io(libc::ENOENT),
            _ => false,
        }
    }
}

/// Creates a slice's two files in `dir`, which must exist. Each appears complete or not at all.
///
/// They are not forced to disk: what they count ends with the machine's memory, and a task's start would wait for it.
///
/// `usage` is writable by everyone who can reach it, because a task's processes may run as several users: the permissions of
/// `dir` and the mounts decide who can reach it.
///
/// # Errors
/// [`HostError`]; a file that was there before is replaced only once its successor is complete.
pub fn create(dir: &Path, lease: &str, gpus: &[GpuLimit]) -> Result<(), HostError> {
    put(dir, USAGE_FILE, 0o666, &empty_usage())?;
    put(dir, LIMITS_FILE, 0o644, &limits(lease, gpus)?)
}

pub(crate) fn put(dir: &Path, name: &str, mode: u32, bytes: &[u8]) -> Result<(), HostError> {
    let path = dir.join(name);
    let temporary = dir.join(format!(".{name}.new"));
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        // Not through the umask.
        file.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(&temporary, &path)
    })();
    written.map_err(|error| {
        // On a full disk it would stay forever, and take space.
        let _ = fs::remove_file(&temporary);
        HostError::Io(path, error)
    })
}

/// How long the longest file of a slice was that had grown beyond its layout. Only a program that wants to fill the node's memory makes them
/// longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    /// Of those that the task's processes may write.
    pub by_task_bytes: Option<u64>,
    /// Of those that they can only read: another program did it.
    pub by_others_bytes: Option<u64>,
}

/// Cuts a slice's files back to their layouts.
#[must_use]
pub fn cut_back(dir: &Path) -> Grown {
    let cut = |(name, bytes)| cut_back_file(&dir.join(name), bytes as u64);
    let of_task = [(USAGE_FILE, size_of::<UsageRegion>()), (LAUNCHES_FILE, compute::LAUNCHES_BYTES)];
    let of_others = [(LIMITS_FILE, size_of::<LimitsRegion>()), (GRANT_FILE, compute::GRANT_BYTES)];
    Grown {
        by_task_bytes: of_task.into_iter().filter_map(cut).max(),
        by_others_bytes: of_others.into_iter().filter_map(cut).max(),
    }
}

fn cut_back_file(path: &Path, bytes: u64) -> Option<u64> {
    let found = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    let length = Some(found.len()).filter(|length| *length > bytes)?;
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    // Where it fails, the next look tries again.
    let _ = file.and_then(|file| file.set_len(bytes));
    Some(length)
}

fn limits(lease: &str, gpus: &[GpuLimit]) -> Result<Vec<u8>, HostError> {
    if gpus.len() > MAX_GPUS {
        return Err(HostError::TooManyGpus(gpus.len()));
    }
    if lease.len() > LEASE_BYTES {
        return Err(HostError::LeaseTooLong(lease.into()));
    }
    let mut bytes = vec![0; size_of::<LimitsRegion>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(offset_of!(LimitsRegion, magic), &LIMITS_MAGIC.to_ne_bytes());
    put(offset_of!(LimitsRegion, version), &VERSION.to_ne_bytes());
    put(offset_of!(LimitsRegion, gpu_count), &(gpus.len() as u32).to_ne_bytes());
    put(offset_of!(LimitsRegion, lease), lease.as_bytes());
    for (gpu, at) in gpus.iter().zip((offset_of!(LimitsRegion, gpus)..).step_by(size_of::<crate::GpuEntry>()))
    {
        put(at + offset_of!(crate::GpuEntry, uuid), &gpu.uuid);
        put(at + offset_of!(crate::GpuEntry, limit_bytes), &gpu.limit_bytes.to_ne_bytes());
        put(at + offset_of!(crate::GpuEntry, context_bytes), &gpu.context_bytes.to_ne_bytes());
    }
    Ok(bytes)
}

fn empty_usage() -> Vec<u8> {
    let mut bytes = vec![0; size_of::<UsageRegion>()];
    let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
    put(offset_of!(UsageRegion, magic), &USAGE_MAGIC.to_ne_bytes());
    put(offset_of!(UsageRegion, version), &VERSION.to_ne_bytes());
    for gpu in 0..MAX_GPUS {
        let at = offset_of!(UsageRegion, totals) + gpu * size_of::<crate::layout::GpuTotal>();
        put(at, &protocol::empty_word().to_ne_bytes());
    }
    bytes
}

/// Reads a UUID as NVML prints it, `GPU-…` or `MIG-…`; `None` if it is not 32 hexadecimal digits after the prefix.
#[must_use]
pub fn parse_uuid(text: &str) -> Option<Uuid> {
    let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
    let mut uuid = Uuid::default();
    let mut nibbles = digits.chars().filter(|&digit| digit != '-').map(|digit| digit.to_digit(16));
    for byte in &mut uuid {
        *byte = (nibbles.next()?? << 4 | nibbles.next()??) as u8;
    }
    nibbles.next().is_none().then_some(uuid)
}
