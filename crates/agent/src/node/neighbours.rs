//! What other users of this machine have given out. Each user has a store of his own, which only he writes; all can read
//! which leases stand, and one lock orders the decisions of all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_model::Lease;
use nix::fcntl::OFlag;

use super::{Node, files, own_uid};
use crate::AgentError;

/// Root's store.
const OF_ROOT: &str = "/run/cantle/node";
/// Where the stores of others are: on every distribution, writable for all, emptied by a restart, and the same folder for
/// services that systemd gives a `/tmp` of their own.
const SHARED: &str = "/dev/shm";
/// Followed by the user's number.
const PREFIX: &str = "cantle-";
const LOCK: &str = "/dev/shm/cantle.lock";
/// Decisions take milliseconds. Whoever holds the lock for longer is not deciding.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Three seconds.
const LOOKS_MAX: u32 = 1500;

/// Somebody holds the lock for longer than a decision takes.
static IS_HELD_ON_PURPOSE: AtomicBool = AtomicBool::new(false);

/// The store of the user who runs this.
pub(super) fn own_store() -> PathBuf {
    match own_uid() {
        0 => OF_ROOT.into(),
        uid => Path::new(SHARED).join(format!("{PREFIX}{uid}")).join("node"),
    }
}

impl Node {
    /// Whether this is one of the stores that users of this machine share it by.
    fn is_shared(&self) -> bool {
        self.dir == own_store()
    }

    /// The leases of other users that stand. What can't be read or is not theirs counts for nothing: nobody may take
    /// another's share of a GPU by writing nonsense.
    pub(crate) fn neighbours(&self) -> Vec<Lease> {
        if !self.is_shared() {
            return Vec::new();
        }
        let mut found = Vec::new();
        for (uid, dir) in stores() {
            if dir == self.dir || fs::metadata(&dir).map_or(true, |meta| meta.uid() != uid) {
                continue;
            }
            match files::read_all::<Lease>(&dir.join("leases")) {
                Ok(leases) => found.extend(leases.into_iter().filter(stands)),
                Err(error) => tracing::warn!(%error, uid, "can't read what another user was given"),
            }
        }
        found
    }

    /// Waits until nobody on this machine decides.
    pub(super) fn machine_lock(&self) -> Result<Option<File>, AgentError> {
        if !self.is_shared() {
            return Ok(None);
        }
        let path = Path::new(LOCK);
        let file = open_lock().map_err(|e| AgentError::file(path, &e))?;
        // Once it was waited for in vain, it is only tried.
        let mut looks = if IS_HELD_ON_PURPOSE.load(Ordering::Relaxed) { 0 } else { LOOKS_MAX };
        loop {
            match file.try_lock() {
                Ok(()) => {
                    IS_HELD_ON_PURPOSE.store(false, Ordering::Relaxed);
                    return Ok(Some(file));
                }
                Err(fs::TryLockError::WouldBlock) if looks > 0 => {
                    looks -= 1;
                    std::thread::sleep(LOOK_EVERY);
                }
                // Root's decisions do not wait for a user who holds it on purpose.
                Err(fs::TryLockError::WouldBlock) if own_uid() == 0 => {
                    if !IS_HELD_ON_PURPOSE.swap(true, Ordering::Relaxed) {
                        tracing::warn!("somebody holds {LOCK} for seconds; see lsof {LOCK}");
                    }
                    return Ok(None);
                }
                Err(fs::TryLockError::WouldBlock) => {
                    let why = io::Error::other("somebody holds it for seconds; see lsof");
                    return Err(AgentError::file(path, &why));
                }
                Err(fs::TryLockError::Error(why)) => return Err(AgentError::file(path, &why)),
            }
        }
    }
}

/// The process that answers for it lives, or the task itself. Whether something of the task is left that neither of them
/// knows, only its owner can see.
fn stands(lease: &Lease) -> bool {
    let lives = |holder| cantle_runtime::alive(holder);
    lives(&lease.owner) || lease.leader.as_ref().is_some_and(lives)
}

/// All stores that there can be, with the users they must belong to.
fn stores() -> Vec<(u32, PathBuf)> {
    let of_user = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name();
        let uid = name.to_str()?.strip_prefix(PREFIX)?.parse().ok()?;
        Some((uid, Path::new(SHARED).join(name).join("node")))
    };
    let of_users = fs::read_dir(SHARED).into_iter().flatten().filter_map(of_user);
    std::iter::once((0, OF_ROOT.into())).chain(of_users).collect()
}

/// Never through a link, and never something that blocks: anybody may have made it.
fn open_lock() -> io::Result<File> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let open = || OpenOptions::new().read(true).custom_flags(flags).open(LOCK);
    let file = match open() {
        Err(why) if why.kind() == io::ErrorKind::NotFound => {
            match OpenOptions::new().read(true).write(true).create_new(true).custom_flags(flags).open(LOCK) {
                // A lock needs no right to write; the mode was cut by our umask.
                Ok(file) => file.set_permissions(fs::Permissions::from_mode(0o444)).map(|()| file),
                Err(why) if why.kind() == io::ErrorKind::AlreadyExists => open(),
                Err(why) => Err(why),
            }
        }
        other => other,
    }?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}
