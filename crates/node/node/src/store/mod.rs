//! The leases of this machine: one store per set of GPUs, shared by every `cantle run` and the agent.
//!
//! All of it is in one directory, the *node directory*:
//!
//! ```text
//! lock                     flock: its holder may read, decide and write
//! leases/<lease>.unreadable  set aside, because it could not be read
//! leases/<lease>.json      on disk before the slice exists and until it is gone; all users may read them
//! slices/<lease>/          the accounting region of the lease: limits, usage; task → the directory of its task
//! agents/<worker>.json     which GPUs an agent has
//! mig/<gpu>.{json,lock}    which MIG instances are ours, and the lock for changing them
//! suspend.lock             flock: its holder suspends, resumes, moves or resizes a task
//! parked-memory            the host memory that suspended tasks may take, if the agent was given a limit
//! boot                     id of the boot that all of this belongs to
//! ```
//!
//! All of it describes processes, and no process outlives a restart of the machine. So the first process that locks the
//! store after a restart empties it, and nothing in it needs to be synced: it only has to survive the death of processes.

mod claim;
mod known;
mod neighbors;
mod private;
mod sweep;
mod unreadable;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink,
};
use std::path::{Path, PathBuf};

use cantle_driver::Installation;
use cantle_model::{Lease, LeaseId};

use cantle_runtime::Cgroup;
use cantle_runtime::files::{self, Durability};
pub use claim::{GpuClaim, agents};
pub use private::hide_from_tasks;

use crate::NodeError;
use known::KnownLeases;
use unreadable::LeaseFile;

const TASK_LINK: &str = "task";

const LEASES: &str = "leases";
const PARTS: [&str; 5] = [LEASES, "slices", "agents", "mig", HEALTH];
/// Notes about GPUs that failed ([`crate::GpuFault`]).
pub(crate) const HEALTH: &str = "health";

/// Modes of directories.
const OPEN: u32 = 0o755;
const CLOSED: u32 = 0o700;

/// The lease store of the GPUs of one machine (or of one set of simulated GPUs).
#[derive(Clone, Debug)]
pub struct NodeStore {
    dir: PathBuf,
    known: KnownLeases,
}

impl NodeStore {
    /// The node directory of the GPUs of this driver: all programs that use the same GPUs find the same one.
    #[must_use]
    pub fn dir_for(installation: &Installation) -> PathBuf {
        match installation.directory() {
            Some(dir) => dir.join("node"),
            None => neighbors::own_store(),
        }
    }

    /// The copies of the driver's libraries in images that were used here; `dir` is a node directory.
    #[must_use]
    pub fn searched_images(dir: &Path) -> PathBuf {
        dir.join("images.json")
    }

    /// The directory for compatibility packages of images. On a disk where that is known: they are large, and nothing runs
    /// from some file systems in memory. `dir` is a node directory.
    #[must_use]
    pub fn packages(dir: &Path) -> PathBuf {
        if dir == Path::new(neighbors::OF_ROOT) {
            neighbors::PACKAGES_OF_ROOT.into()
        } else {
            dir.join("compat")
        }
    }

    /// The node directory of agents without GPUs.
    #[must_use]
    pub fn gpuless_dir(installation: &Installation) -> PathBuf {
        Self::dir_for(installation).with_file_name("cpu")
    }

    /// Opens the store in `dir`, making it if needed.
    ///
    /// # Errors
    /// If the directory cannot be created, or belongs to another user.
    pub fn open(dir: &Path) -> Result<Self, NodeError> {
        let node = Self { dir: dir.to_owned(), known: KnownLeases::default() };
        // Checks the existing directories before any change, and then the created ones.
        node.is_ours()?;
        make_dir(&node.dir, OPEN)?;
        node.is_ours()?;
        // Removes what a former boot left, so that no reader takes it for current. Under the lock, because the first one
        // after a restart of the machine empties all parts.
        let locked = node.lock()?;
        node.make_dirs()?;
        // Leases are written under the lock, so no other process writes one now.
        files::remove_unfinished(&node.dir.join(LEASES))?;
        drop(locked);
        Ok(node)
    }

    /// In a directory that everybody may write to, another user could create the store first and then control all
    /// allocations. Or it could be a link to another directory of this user, which would be emptied. Only this user can
    /// change the contents of its own directory, so these names stay valid once they are checked.
    fn is_ours(&self) -> Result<(), NodeError> {
        let parent = self.dir.parent().filter(|_| self.is_shared()).map(Path::to_owned);
        let dirs = parent.into_iter().chain([self.dir.clone()]).chain(PARTS.map(|part| self.dir.join(part)));
        dirs.into_iter().try_for_each(|dir| is_ours(&dir))
    }

    /// The directory of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The accounting region of a lease.
    #[must_use]
    pub fn slice_dir(&self, lease: &LeaseId) -> PathBuf {
        self.dir.join("slices").join(&lease.0)
    }

    /// The directory of the journals of MIG instances.
    #[must_use]
    pub fn mig_dir(&self) -> PathBuf {
        self.dir.join("mig")
    }

    /// Waits until no other process decides about these GPUs. Held for milliseconds; the kernel releases it when its holder
    /// dies.
    ///
    /// # Errors
    /// If the lock file cannot be opened or locked.
    pub fn lock(&self) -> Result<Locked<'_>, NodeError> {
        let path = self.dir.join("lock");
        let lock = || -> io::Result<File> {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        let machine = self.machine_lock()?;
        let file = lock().map_err(|e| NodeError::file(&path, e))?;
        self.forget_former_boot()?;
        Ok(Locked { node: self, _file: file, _machine: machine })
    }

    fn forget_former_boot(&self) -> Result<(), NodeError> {
        const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
        let now = fs::read_to_string(BOOT_ID).map_err(|e| NodeError::file(Path::new(BOOT_ID), e))?;
        let path = self.dir.join("boot");
        if fs::read_to_string(&path).is_ok_and(|then| then == now) {
            return Ok(());
        }
        for part in PARTS {
            files::remove(&self.dir.join(part))?;
        }
        self.make_dirs()?;
        fs::write(&path, now).map_err(|e| NodeError::file(&path, e))
    }

    fn make_dirs(&self) -> Result<(), NodeError> {
        make_dir(&self.dir, OPEN)?;
        // The leases concern everybody on the machine, the rest only their owner.
        PARTS
            .iter()
            .try_for_each(|part| make_dir(&self.dir.join(part), if *part == LEASES { OPEN } else { CLOSED }))
    }

    /// The leases at this instant, to be shown: decisions need the lock. For one that cannot be read, the data of its
    /// accounting region.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn leases(&self) -> Result<Vec<Lease>, NodeError> {
        Ok(self.lease_files()?.into_iter().map(LeaseFile::into_lease).collect())
    }

    /// One lease at this instant, if it is active.
    ///
    /// # Errors
    /// Names the lease file that cannot be read.
    pub(crate) fn lease(&self, id: &LeaseId) -> Result<Option<Lease>, NodeError> {
        Ok(files::read_json(&self.lease_path(id))?)
    }

    fn lease_files(&self) -> Result<Vec<LeaseFile>, NodeError> {
        unreadable::read(self, &self.dir.join(LEASES))
    }

    /// Records the directory of a lease's task. The supervisor's lock there keeps the lease active from before the task's
    /// first process is known until nothing of the task is left.
    ///
    /// # Errors
    /// Names the link that could not be made.
    pub fn link_task(&self, lease: &LeaseId, dir: &Path) -> Result<(), NodeError> {
        let link = self.slice_dir(lease).join(TASK_LINK);
        symlink(dir, &link).map_err(|e| NodeError::file(&link, e))
    }

    fn lease_path(&self, lease: &LeaseId) -> PathBuf {
        self.dir.join(LEASES).join(format!("{}.json", lease.0))
    }
}

/// The right to decide about the GPUs of a node.
#[derive(Debug)]
pub struct Locked<'a> {
    node: &'a NodeStore,
    _file: File,
    _machine: Option<File>,
}

impl Locked<'_> {
    /// The store it locks.
    #[must_use]
    pub const fn node(&self) -> &NodeStore {
        self.node
    }

    /// All leases, in order of id. An unreadable one counts as its accounting region states: it may not be given out twice.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn leases(&self) -> Result<Vec<Lease>, NodeError> {
        self.node.leases()
    }

    /// One lease, if it is active.
    ///
    /// # Errors
    /// Names the lease file that cannot be read.
    pub fn lease(&self, id: &LeaseId) -> Result<Option<Lease>, NodeError> {
        self.node.lease(id)
    }

    /// Writes a lease, new or changed; it outlives this process when this returns.
    ///
    /// # Errors
    /// Names the file that could not be written.
    pub fn put(&self, lease: &Lease) -> Result<(), NodeError> {
        Ok(files::write_public_json(&self.node.lease_path(&lease.id), lease, Durability::Crash)?)
    }

    /// Removes a lease whose task has ended. A process of the task that should be left can allocate nothing more.
    ///
    /// # Errors
    /// Names what could not be removed.
    pub fn retire(&self, lease: &Lease) -> Result<(), NodeError> {
        sweep::close(&self.node.slice_dir(&lease.id), lease);
        self.free(lease)
    }

    /// Removes first the accounting region of a lease, then the lease itself, so that no region is left without a lease.
    ///
    /// # Errors
    /// Names what could not be removed.
    fn free(&self, lease: &Lease) -> Result<(), NodeError> {
        files::remove(&self.node.slice_dir(&lease.id))?;
        if let Some(cgroup) = &lease.cgroup {
            Cgroup::at(cgroup).remove();
        }
        Ok(files::remove(&self.node.lease_path(&lease.id))?)
    }
}

/// Is the existing file a directory of this user, and no link to one?
fn is_ours(dir: &Path) -> Result<(), NodeError> {
    let meta = match fs::symlink_metadata(dir) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(|e| NodeError::file(dir, e))?,
    };
    if meta.uid() != own_uid() {
        return Err(NodeError::NotOurs { dir: dir.to_owned(), owner: meta.uid() });
    }
    if !meta.is_dir() {
        return Err(NodeError::file(dir, io::Error::other("it is not a directory, or a link to one")));
    }
    Ok(())
}

/// Creates a directory with this mode, independent of the umask; an existing one gets the mode too.
fn make_dir(dir: &Path, mode: u32) -> Result<(), NodeError> {
    let make = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(OPEN).create(dir)?;
        let meta = fs::metadata(dir)?;
        if meta.mode() & 0o777 != mode && meta.uid() == own_uid() {
            fs::set_permissions(dir, fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    make().map_err(|e| NodeError::file(dir, e))
}

fn own_uid() -> u32 {
    // The owner of /proc/self is our effective user; without /proc nothing of cantle works, root is the safe guess.
    fs::metadata("/proc/self").map_or(0, |meta| meta.uid())
}

#[cfg(test)]
mod tests;
