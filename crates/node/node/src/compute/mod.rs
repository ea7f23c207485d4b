//! Shares of compute time: the thread that opens and closes the gates of this node's slices.
//!
//! One process of a node arbitrates all slices of its store: the holder of `compute.lock`. The others keep trying for the
//! lock, so when the holder ends, or is killed, the next one takes over within [`RETRY_INTERVAL`]. In between, the
//! heartbeats in the slices' pages are old, and every gate counts as open. All state is in the pages, so there is nothing
//! else to hand over.

mod slices;

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cantle_ledger::compute;
use cantle_model::{ComputeMode, ComputeShare, Milli};

use crate::clock::monotonic_ns;
use crate::store::NodeStore;
use slices::Slices;

/// Its holder arbitrates.
const LOCK: &str = "compute.lock";
/// How often a process that does not arbitrate tries to.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Between two polls while slices compete, or one has used up its limit.
const BUSY_INTERVAL: Duration = Duration::from_micros(50);
/// Between two polls without competitors. A slice that begins to work waits for it once.
const QUIET_INTERVAL: Duration = Duration::from_micros(500);
/// Between two checks whether there are slices at all.
const EMPTY_INTERVAL: Duration = Duration::from_millis(20);

/// Arbitrates until it is dropped.
#[derive(Debug)]
pub struct ComputeArbiter {
    ended: Arc<AtomicBool>,
}

impl ComputeArbiter {
    /// Starts the thread for the slices of `node`.
    #[must_use]
    pub fn start(node: &NodeStore) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (node, told) = (node.clone(), Arc::clone(&ended));
        let started = thread::Builder::new().name("compute".to_owned()).spawn(move || work(&node, &told));
        if let Err(error) = started {
            tracing::error!(%error, "compute shares are not enforced: the thread cannot be started");
        }
        Self { ended }
    }
}

impl Drop for ComputeArbiter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

fn work(node: &NodeStore, ended: &AtomicBool) {
    let ends = || ended.load(Ordering::Relaxed);
    compute::run_first();
    let path = node.dir().join(LOCK);
    let mut is_reported = false;
    while !ends() {
        match lock(&path) {
            Ok(Some(_held)) => arbitrate(node, &ends),
            Ok(None) => thread::sleep(RETRY_INTERVAL),
            Err(error) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::error!(path = %path.display(), %error, "this program cannot enforce shares of compute time");
                }
                thread::sleep(RETRY_INTERVAL);
            }
        }
    }
}

/// `None` if another program has it, and enforces the shares.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn arbitrate(node: &NodeStore, ends: &dyn Fn() -> bool) {
    let mut slices = Slices::new(node.clone());
    while !ends() {
        let pause = match slices.poll(monotonic_ns()) {
            slices::Activity::None => EMPTY_INTERVAL,
            slices::Activity::Quiet => QUIET_INTERVAL,
            slices::Activity::Busy => BUSY_INTERVAL,
        };
        thread::sleep(pause);
    }
}

/// A slice's use of its GPU's compute time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeUse {
    /// Its terms.
    pub share: ComputeShare,
    /// Its part of the GPU time that the gated slices of its GPU used in the last second, in millionths; none if they used none.
    pub share_ppm: Option<u32>,
    /// GPU time that it was charged since its start, in microseconds.
    pub granted_us: u64,
    /// Time that its threads have waited at the gate since its start, in microseconds.
    pub gate_wait_us: u64,
    /// Its work makes no progress, so the gates of its GPU are open.
    pub unweightable: bool,
}

/// Reads it from the pages of a slice; none if its compute is not enforced, or this user may not read its pages.
#[must_use]
pub fn compute_use(slice_dir: &Path) -> Option<ComputeUse> {
    let (terms, granted_ns, gate_wait_ns, share_ppm, unweightable) = compute::read_grant(slice_dir)?;
    let share = ComputeShare {
        mode: ComputeMode::from_number(terms.mode),
        request_milli: Milli(terms.request_milli),
        limit_milli: terms.limit_milli.map(Milli),
    };
    let (granted_us, gate_wait_us) = (granted_ns / 1000, gate_wait_ns / 1000);
    Some(ComputeUse { share, share_ppm, granted_us, gate_wait_us, unweightable })
}
