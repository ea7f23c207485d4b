//! The common parts of all MIG calls: the process's lock, and their duration.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::session::sim;
use super::settings::{Setting, get, is_on};

/// The functions under the lock. Of MIG mode itself none is.
const UNDER_LOCK: [&str; 24] = [
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetGpuInstanceRemainingCapacity",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGpuInstanceById",
    "nvmlGpuInstanceGetInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
    "nvmlGpuInstanceGetComputeInstanceRemainingCapacity",
    "nvmlGpuInstanceGetComputeInstancePossiblePlacements",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
];

static LOCKED: AtomicBool = AtomicBool::new(false);

/// A MIG call in progress.
pub(crate) struct MigCall {
    locks: bool,
}

/// Begins a call, and for one about MIG waits as the real library does: in a loop, which takes a core's time.
pub(crate) fn begin(call: &'static str) -> Option<MigCall> {
    if !UNDER_LOCK.contains(&call) {
        return None;
    }
    let locks = is_on(Setting::MigLock);
    while locks && LOCKED.swap(true, Ordering::Acquire) {
        // The real library does not give way either; here it lets machines with few cores get on, and takes as much time.
        thread::yield_now();
    }
    let started = MigCall { locks };
    if is_on(Setting::MigTrace) {
        trace(call);
    }
    match get(Setting::MigLatencyMs) {
        0 => {}
        milliseconds => thread::sleep(Duration::from_millis(milliseconds)),
    }
    Some(started)
}

impl Drop for MigCall {
    fn drop(&mut self) {
        if self.locks {
            LOCKED.store(false, Ordering::Release);
        }
    }
}

fn trace(call: &str) {
    let Ok(sim) = sim() else { return };
    let file = OpenOptions::new().append(true).create(true).open(sim.home().join("mig-calls"));
    // One write, so that lines of several processes do not mix. A witness that cannot write is missed by its test.
    let _ = file.and_then(|mut file| file.write_all(format!("{} {call}\n", std::process::id()).as_bytes()));
}
