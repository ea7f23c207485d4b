//! The agent's side: creating a slice's files, changing a limit, looking on.

use std::borrow::ToOwned as _;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::string::String;
use std::vec;
use std::vec::Vec;
use std::{format, io};

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use crate::layout::{
    GpuCells, LEASE_BYTES, LIMITS_MAGIC, LimitsRegion, MAX_GPUS, MAX_REFUSALS, Refusal, USAGE_MAGIC,
    UsageRegion, Uuid, VERSION, owner_pid,
};
use crate::map::{self, OpenError};
use crate::{GRANULE_BYTES, Ledger, protocol};

/// Names of the two files in a slice's directory.
pub const LIMITS_FILE: &str = "limits";
/// See [`LIMITS_FILE`].
pub const USAGE_FILE: &str = "usage";

/// What a slice may use of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuLimit {
    /// The GPU or MIG instance.
    pub uuid: Uuid,
    /// Memory, contexts included; counted in whole granules.
    pub limit_bytes: u64,
    /// What the context of one process costs on this GPU.
    pub context_bytes: u64,
}

/// What went wrong on the agent's side.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file operation failed.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
    /// The files are there but can't be used.
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

/// Creates a slice's two files in `dir`, which must exist. Each appears complete or not at all.
///
/// They are not forced to disk: what they count ends with the machine's memory, and a task's start would wait for it.
///
/// `usage` is writable by everyone who can reach it, because a task's processes may run as several users: who may reach it is
/// decided by `dir`'s permissions and by what is mounted where.
///
/// # Errors
/// [`HostError`]; a file that was there before is replaced only once its successor is complete.
pub fn create(dir: &Path, lease: &str, gpus: &[GpuLimit]) -> Result<(), HostError> {
    put(dir, USAGE_FILE, 0o666, &empty_usage())?;
    put(dir, LIMITS_FILE, 0o644, &limits(lease, gpus)?)
}

fn put(dir: &Path, name: &str, mode: u32, bytes: &[u8]) -> Result<(), HostError> {
    let path = dir.join(name);
    let temporary = dir.join(format!(".{name}.new"));
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        // Not through the umask.
        file.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(&temporary, &path)
    })();
    written.map_err(|error| HostError::Io(path, error))
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
        let at = offset_of!(UsageRegion, words) + gpu * size_of::<crate::layout::Word>();
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

/// What a slice uses of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUse {
    /// The GPU or MIG instance.
    pub uuid: Uuid,
    /// Its limit, as enforced: whole granules.
    pub limit_bytes: u64,
    /// Reserved by all processes of the slice.
    pub used_bytes: u64,
}

/// What one process of a slice holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessUse {
    /// The pid that the process knows itself by. The tenant writes it: a name to show, not an identity to act on.
    pub pid: u32,
    /// False if the process is dead and not settled yet.
    pub alive: bool,
    /// Held on each of the slice's GPUs, in their order.
    pub held_bytes: Vec<u64>,
}

/// A slice at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Whose slice it is.
    pub lease: String,
    /// The slice's GPUs.
    pub gpus: Vec<GpuUse>,
    /// Its processes that have used a GPU.
    pub processes: Vec<ProcessUse>,
}

/// A slice's files as the agent (or `cantle limits`) holds them: looks on, tidies up, takes no slot.
#[derive(Debug)]
pub struct Observer {
    ledger: Ledger,
    dir: PathBuf,
    refusals_seen: u64,
}

impl Observer {
    /// Opens the files in `dir`.
    ///
    /// # Errors
    /// [`HostError::Open`] if they are missing, truncated or not ours.
    pub fn open(dir: &Path) -> Result<Self, HostError> {
        let open =
            || Ledger::open(&CString::new(dir.as_os_str().as_bytes()).map_err(|_| OpenError::PathTooLong)?);
        let ledger = open().map_err(|error| HostError::Open(dir.to_owned(), error))?;
        Ok(Self { ledger, dir: dir.to_owned(), refusals_seen: 0 })
    }

    /// Returns what dead processes left behind and gives its size.
    pub fn reap(&self) -> u64 {
        u64::from(self.ledger.reap()) * GRANULE_BYTES
    }

    /// The slice now. Figures of different GPUs and processes are not of one instant.
    ///
    /// # Errors
    /// [`HostError::Open`] if the files have gone.
    pub fn snapshot(&self) -> Result<Snapshot, HostError> {
        let fd = self.ledger.usage_fd().map_err(|error| HostError::Open(self.dir.clone(), error))?;
        let gpus = self.ledger.gpus().iter().enumerate().map(|(index, gpu)| GpuUse {
            uuid: *gpu.uuid(),
            limit_bytes: u64::from(gpu.limit_granules()) * GRANULE_BYTES,
            used_bytes: u64::from(self.ledger.used(index)) * GRANULE_BYTES,
        });
        let processes = (0..self.ledger.usage.touched()).filter_map(|number| {
            let owner = self.ledger.usage.slot(number)?.owner.load(Ordering::Acquire);
            (owner_pid(owner) != 0).then(|| ProcessUse {
                pid: owner_pid(owner),
                alive: self.ledger.is_alive(&fd, number, owner),
                held_bytes: (0..self.ledger.gpus().len()).map(|gpu| self.held_bytes(gpu, number)).collect(),
            })
        });
        Ok(Snapshot { lease: self.lease(), gpus: gpus.collect(), processes: processes.collect() })
    }

    fn held_bytes(&self, gpu: usize, slot: u32) -> u64 {
        let cells = GpuCells::new(&self.ledger.usage, gpu);
        cells.map_or(0, |cells| u64::from(protocol::held(&cells, slot)) * GRANULE_BYTES)
    }

    fn lease(&self) -> String {
        let bytes = &self.ledger.limits.lease;
        let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(LEASE_BYTES);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    /// Refusals since the last call, oldest first. If there were more than the region keeps, the oldest are missing:
    /// their numbers are.
    pub fn new_refusals(&mut self) -> Vec<Refusal> {
        let count = self.ledger.usage.refusal_count.load(Ordering::Acquire);
        let first = self.refusals_seen.max(count.saturating_sub(MAX_REFUSALS as u64));
        self.refusals_seen = count;
        (first..count).filter_map(|number| self.ledger.usage.refusal(number + 1)).collect()
    }

    /// Changes the limit on one GPU, for running processes too. Below what is in use it only stops further allocations.
    ///
    /// # Errors
    /// [`HostError`] if the slice has no such GPU or `limits` can't be written.
    pub fn set_limit(&self, uuid: &Uuid, limit_bytes: u64) -> Result<(), HostError> {
        let index =
            self.ledger.gpu_index(uuid).ok_or_else(|| HostError::UnknownGpu(format!("{uuid:02x?}")))?;
        let path = self.dir.join(LIMITS_FILE);
        let open = || {
            let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| OpenError::PathTooLong)?;
            map::limits(&path, true)
        };
        let region = open().map_err(|error| HostError::Open(path.clone(), error))?;
        region.gpus[index].limit_bytes.store(limit_bytes, Ordering::Release);
        Ok(())
    }
}
