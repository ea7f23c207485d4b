//! Removes leases whose holders are gone.

use std::path::Path;

use cantle_ledger::host::Observer;
use cantle_model::{Lease, Slice};
use cantle_runtime::TaskDirectory;
use cantle_runtime::files::is_no_room;

use super::unreadable::{self, LeaseFile};
use super::{Locked, TASK_LINK};
use crate::NodeError;
use crate::uuid::gpu_uuid_bytes;

impl Locked<'_> {
    /// Removes each lease without a live holder, and returns the active ones.
    ///
    /// A lease is active as long as its owner lives, or the task's first process or supervisor, or any process that is
    /// attached to its accounting region, according to the kernel's locks. So a task outlives a killed `cantle run` with its
    /// slice intact. One that is [`Lease::kept`] is active until it is retired.
    ///
    /// # Errors
    /// Names the file that cannot be read or removed.
    pub fn sweep(&self) -> Result<Vec<Lease>, NodeError> {
        let mut active = Vec::new();
        for found in self.node.lease_files()? {
            let is_readable = matches!(found, LeaseFile::Lease(_));
            let lease = found.into_lease();
            if self.is_held(&lease) {
                active.push(lease);
            } else {
                if !is_readable {
                    // A process that still arrives finds no memory: a pod may have it mounted, and not be seen yet.
                    close(&self.node.slice_dir(&lease.id), &lease);
                    unreadable::set_aside(&self.node.lease_path(&lease.id))?;
                }
                self.free(&lease)?;
            }
        }
        Ok(active)
    }

    fn is_held(&self, lease: &Lease) -> bool {
        if lease.kept {
            return true;
        }
        let lives = |holder| cantle_runtime::alive(holder);
        if lives(&lease.owner) || lease.leader.as_ref().is_some_and(lives) {
            return true;
        }
        let dir = self.node.slice_dir(&lease.id);
        if TaskDirectory::new(dir.join(TASK_LINK)).is_supervised() {
            return true;
        }
        let region = match Observer::open(&dir) {
            Ok(region) => region,
            // This process can open no file now, and so could not see above that a holder lives.
            Err(error) if error.system().is_some_and(|why| is_no_room(&why)) => {
                tracing::warn!(%error, lease = %lease.id, "a lease without a visible holder stays for now");
                return true;
            }
            // Never made, or removed: no process can allocate through it.
            Err(_) => return false,
        };
        if region.is_in_use() {
            return true;
        }
        // A child could still attach. With limits of zero it can reserve nothing.
        set_limits(&region, lease, |_| 0);
        let attached_late = region.is_in_use();
        if attached_late {
            set_limits(&region, lease, |slice| slice.memory_limit_bytes);
        }
        attached_late
    }
}

/// Lets nothing more be allocated from the slice in `dir`.
pub(super) fn close(dir: &Path, lease: &Lease) {
    if let Ok(region) = Observer::open(dir) {
        set_limits(&region, lease, |_| 0);
    }
}

fn set_limits(region: &Observer, lease: &Lease, limit_bytes: impl Fn(&Slice) -> u64) {
    for slice in &lease.slices {
        let Some(uuid) = gpu_uuid_bytes(slice.device()) else { continue };
        if let Err(error) = region.set_limit(&uuid, limit_bytes(slice)) {
            tracing::warn!(%error, lease = %lease.id, "cannot change a slice's limit");
        }
    }
}
