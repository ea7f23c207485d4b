//! The leases as they were read last. The watchdog and the agent's loop read all of them several times a second, and a lease
//! seldom changes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use cantle_model::Lease;

use crate::clock::now_ms;

/// File systems note the time of a change in steps of up to 10 ms: within a step, a second change shows in nothing else.
const STEP_MS: i64 = 100;

/// Properties of a file, at least one of which every change of it changes: also a change in place, or of its permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl Stamp {
    /// `None` if the file is not there, or cannot be asked about.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let meta = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Self { device: meta.dev(), inode: meta.ino(), length: meta.len(), changed })
    }

    /// Would a change from now on show?
    fn is_settled(&self) -> bool {
        now_ms().saturating_sub(self.changed.0.saturating_mul(1000) + self.changed.1 / 1_000_000) > STEP_MS
    }
}

/// Shared by the copies of a store.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownLeases(Arc<Mutex<BTreeMap<PathBuf, (Stamp, Lease)>>>);

impl KnownLeases {
    /// The lease of a file that has not changed since it was read.
    pub(super) fn unchanged(&self, path: &Path, now: Stamp) -> Option<Lease> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(path).filter(|(then, _)| *then == now).map(|(_, lease)| lease.clone())
    }

    /// Notes what was read; `stamp` is from before.
    pub(super) fn note(&self, path: &Path, stamp: Stamp, lease: &Lease) {
        if stamp.is_settled() {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            known.insert(path.to_owned(), (stamp, lease.clone()));
        }
    }

    /// Forgets all other files. `paths` are in order.
    pub(super) fn keep(&self, paths: &[PathBuf]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|path, _| paths.binary_search(path).is_ok());
    }
}
