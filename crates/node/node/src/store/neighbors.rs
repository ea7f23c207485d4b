//! The leases of other users of this machine. Each user has a store that only this user writes and everybody can read. One
//! lock orders the decisions of all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_model::{Holder, Lease};
use nix::fcntl::OFlag;

use super::{NodeStore, own_uid};
use crate::NodeError;

/// Root's store.
pub(super) const OF_ROOT: &str = "/run/cantle/node";
/// On a disk, where the store is in memory.
pub(super) const PACKAGES_OF_ROOT: &str = "/var/lib/cantle/compat";
/// The parent of all other stores: every distribution has it, everybody may write there, a restart empties it, and services to
/// which systemd gives a private `/tmp` share it.
const SHARED: &str = "/dev/shm";
/// Followed by the user's id.
const PREFIX: &str = "cantle-";
const LOCK: &str = "/dev/shm/cantle.lock";
/// How often the lock is tried. Decisions take milliseconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// Three seconds: a process that holds the lock for longer does not decide.
const RETRIES_MAX: u32 = 1500;

/// More leases than a machine has GPUs for, and more bytes than a lease needs.
const LEASES_MAX: usize = 1024;
const LEASE_BYTES_MAX: u64 = 64 << 10;

/// A process holds the lock for longer than a decision takes.
static IS_HELD_ON_PURPOSE: AtomicBool = AtomicBool::new(false);

/// The store of the user of this process.
pub(super) fn own_store() -> PathBuf {
    match own_uid() {
        0 => OF_ROOT.into(),
        uid => Path::new(SHARED).join(format!("{PREFIX}{uid}")).join("node"),
    }
}

impl NodeStore {
    /// Is this one of the stores by which the users of this machine share its GPUs?
    pub(super) fn is_shared(&self) -> bool {
        self.dir == own_store()
    }

    /// The paths that the tasks of this machine find empty: the stores of all users, this one among them, and the state
    /// and the keys of servers and agents.
    pub(crate) fn hidden_from_tasks(&self) -> Vec<PathBuf> {
        let others = stores().into_iter().map(|(_, dir)| dir).filter(|dir| *dir != self.dir);
        std::iter::once(self.dir.clone()).chain(others).chain(super::private::hidden_from_tasks()).collect()
    }

    /// The active leases of other users. A store that cannot be read, or belongs to the wrong user, counts for nothing:
    /// no user may block a GPU by writing invalid files.
    pub fn neighbors(&self) -> Vec<Lease> {
        if !self.is_shared() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (uid, dir) in stores() {
            if dir == self.dir || fs::metadata(&dir).map_or(true, |meta| meta.uid() != uid) {
                continue;
            }
            match read_leases(&dir.join("leases")) {
                Ok(leases) => found.extend(leases.into_iter().filter(|lease| is_active(lease, uid))),
                Err(error) => tracing::warn!(%error, uid, "cannot read the leases of another user"),
            }
        }
        found
    }

    /// Waits until no process on this machine decides.
    pub(super) fn machine_lock(&self) -> Result<Option<File>, NodeError> {
        if !self.is_shared() {
            return Ok(None);
        }
        let path = Path::new(LOCK);
        let file = open_lock().map_err(|e| NodeError::file(path, e))?;
        // After one vain wait the lock is only tried.
        let mut retries = if IS_HELD_ON_PURPOSE.load(Ordering::Relaxed) { 0 } else { RETRIES_MAX };
        loop {
            match file.try_lock() {
                Ok(()) => {
                    IS_HELD_ON_PURPOSE.store(false, Ordering::Relaxed);
                    return Ok(Some(file));
                }
                Err(fs::TryLockError::WouldBlock) if retries > 0 => {
                    retries -= 1;
                    std::thread::sleep(RETRY_INTERVAL);
                }
                // Root does not wait for a user that holds the lock on purpose.
                Err(fs::TryLockError::WouldBlock) if own_uid() == 0 => {
                    if !IS_HELD_ON_PURPOSE.swap(true, Ordering::Relaxed) {
                        tracing::warn!("somebody holds {LOCK} for seconds; see lsof {LOCK}");
                    }
                    return Ok(None);
                }
                Err(fs::TryLockError::WouldBlock) => {
                    let why = io::Error::other("somebody holds it for seconds; see lsof");
                    return Err(NodeError::file(path, why));
                }
                Err(fs::TryLockError::Error(why)) => return Err(NodeError::file(path, why)),
            }
        }
    }
}

/// Does its owner live, or the task's first process, as a process of this user? A lease that names a process of another
/// user, such as the machine's first, is not active. Root's tasks may run as any user. Only the owner of the lease can
/// see other processes of the task.
fn is_active(lease: &Lease, uid: u32) -> bool {
    let is_of_user =
        |pid: u32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == uid);
    let lives = |holder: &Holder| cantle_runtime::alive(holder) && (uid == 0 || is_of_user(holder.pid));
    lives(&lease.owner) || lease.leader.as_ref().is_some_and(lives)
}

/// Each lease of another user. These files may be anything, so links are not followed, and reads neither block nor are
/// unbounded.
fn read_leases(dir: &Path) -> io::Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for entry in fs::read_dir(dir)?.take(LEASES_MAX) {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        match open_file(&path) {
            Ok(file) => leases.push(serde_json::from_reader(file.take(LEASE_BYTES_MAX))?),
            // Removed since the directory was read.
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            Err(why) => return Err(why),
        }
    }
    Ok(leases)
}

/// All stores, with the users that they must belong to.
pub(super) fn stores() -> Vec<(u32, PathBuf)> {
    let of_user = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        let uid = name.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some((uid, Path::new(SHARED).join(name).join("node")))
    };
    let of_users = fs::read_dir(SHARED).into_iter().flatten().filter_map(of_user);
    std::iter::once((0, OF_ROOT.into())).chain(of_users).collect()
}

fn open_lock() -> io::Result<File> {
    let lock = Path::new(LOCK);
    match open_file(lock) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            match OpenOptions::new().read(true).write(true).create_new(true).open(lock) {
                // A lock needs no right to write. The umask has cut the mode.
                Ok(file) => file.set_permissions(fs::Permissions::from_mode(0o444)).map(|()| file),
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => open_file(lock),
                Err(why) => Err(why),
            }
        }
        other => other,
    }
}

/// Opens a file that any user may have created: never through a link, and never something that blocks.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}
