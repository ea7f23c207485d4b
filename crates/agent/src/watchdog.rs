//! The driver's own figures against what the shim has counted.
//!
//! The shim sees what goes through it. What does not (modules, stacks, libraries' workspaces; or an evader with its own
//! way to the driver) still shows in the driver's list of processes. The harmless part is charged to the slice, so that
//! the limit holds for all of it; whoever goes beyond is named, and stopped if it does not end within a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use cantle_driver::{Driver, DriverError, ProcessMemory};
use cantle_ledger::host::Observer;
use cantle_ledger::{Attachment, granules_holding};
use cantle_model::{Bytes, Gpu, GpuUuid, Lease, LeaseId, Slice};
use tokio::time::Instant;

use crate::members::Members;
use crate::node::Node;

/// What is found must last so long before anybody is stopped: a look takes a moment, and things change meanwhile.
const GRACE: Duration = Duration::from_secs(1);

/// What happens to a task that takes what is not its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// It is named.
    Warn,
    /// It is named, and stopped after a second.
    #[default]
    Kill,
}

/// What a look brought to light about one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Seen for the first time: it is to be named.
    Suspect(String),
    /// It has lasted: by policy the task is stopped.
    Guilty(String),
}

/// Looks again and again at the same leases.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    since: BTreeMap<LeaseId, Instant>,
    /// One slot of ours in each slice that uses hidden memory, holding what is hidden.
    charged: BTreeMap<LeaseId, Attachment>,
}

impl Watchdog {
    /// One look at those of the node's leases that are `ours`: others are looked at by those who answer for them.
    pub(crate) fn look(
        &mut self,
        driver: &dyn Driver,
        node: &Node,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        let leases = node.leases().unwrap_or_else(|error| {
            tracing::error!(%error, "nobody is watched");
            Vec::new()
        });
        self.since.retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        self.charged.retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        let held = held_by_lease(driver, gpus, &Members::of(node, &leases));
        let mut findings = Vec::new();
        for lease in leases.iter().filter(|lease| ours(&lease.id)) {
            let used = held.get(&lease.id);
            let dir = node.slice_dir(&lease.id);
            let Some(wrong) = used.and_then(|used| self.weigh(lease, &dir, used, gpus)) else {
                self.since.remove(&lease.id);
                continue;
            };
            match self.since.get(&lease.id) {
                None => {
                    self.since.insert(lease.id.clone(), now);
                    findings.push((lease.id.clone(), Finding::Suspect(wrong)));
                }
                Some(since) if now.duration_since(*since) >= GRACE => {
                    findings.push((lease.id.clone(), Finding::Guilty(wrong)));
                }
                Some(_) => {}
            }
        }
        findings
    }

    /// Charges what is hidden, and tells what is wrong, if anything is.
    fn weigh(&mut self, lease: &Lease, dir: &Path, used: &Held, gpus: &[Gpu]) -> Option<String> {
        let region = Observer::open(dir).ok()?;
        let snapshot = region.snapshot().ok()?;
        let attached: BTreeSet<u32> = snapshot.processes.iter().map(|process| process.pid).collect();
        for (gpu, processes) in used {
            let index = gpus.iter().find(|known| known.uuid == *gpu).map_or(u32::MAX, |known| known.index);
            let at = lease.slices.iter().position(|slice| slice.gpu == *gpu);
            let counted = at.and_then(|at| snapshot.gpus.get(at)).map_or(0, |now| now.used_bytes);
            let ours = self.charged.get(&lease.id).zip(at).map_or(0, |(slot, at)| charged_bytes(slot, at));
            let slice = at.and_then(|at| lease.slices.get(at));
            let look = Look {
                index,
                slice,
                counted_bytes: counted.saturating_sub(ours),
                processes,
                attached: &attached,
            };
            if let (Some(at), true) = (at, look.hidden_bytes() != ours) {
                self.charge(&lease.id, dir, at, look.hidden_bytes());
            }
            if let Some(wrong) = look.wrong() {
                return Some(wrong);
            }
        }
        None
    }

    fn charge(&mut self, lease: &LeaseId, dir: &Path, gpu: usize, bytes: u64) {
        if !self.charged.contains_key(lease) {
            let Ok(path) = CString::new(dir.as_os_str().as_bytes()) else { return };
            match Attachment::new(&path) {
                Ok(slot) => drop(self.charged.insert(lease.clone(), slot)),
                Err(error) => return tracing::warn!(%lease, ?error, "hidden memory can't be charged"),
            }
        }
        if let Some(mut account) = self.charged.get(lease).and_then(|slot| slot.account(gpu)) {
            account.set_held(granules_holding(bytes));
        }
    }
}

fn charged_bytes(slot: &Attachment, gpu: usize) -> u64 {
    slot.account(gpu).map_or(0, |account| u64::from(account.held()) * cantle_ledger::GRANULE_BYTES)
}

type Held = BTreeMap<GpuUuid, Vec<ProcessMemory>>;

/// GPUs that can't be asked now are left out: the driver's silence proves nothing.
fn held_by_lease(driver: &dyn Driver, gpus: &[Gpu], members: &Members) -> BTreeMap<LeaseId, Held> {
    let mut held: BTreeMap<LeaseId, Held> = BTreeMap::new();
    for gpu in gpus {
        let processes: Result<_, DriverError> = driver.processes(&gpu.uuid);
        for process in processes.unwrap_or_default() {
            if let Some(lease) = members.lease_of(process.pid) {
                held.entry(lease.clone()).or_default().entry(gpu.uuid.clone()).or_default().push(process);
            }
        }
    }
    held
}

/// One task on one GPU at one moment.
struct Look<'a> {
    index: u32,
    /// What it was given there.
    slice: Option<&'a Slice>,
    /// What the shim has counted.
    counted_bytes: u64,
    /// What the driver says.
    processes: &'a [ProcessMemory],
    /// Pids that the slice's processes know themselves by.
    attached: &'a BTreeSet<u32>,
}

impl Look<'_> {
    fn actual_bytes(&self) -> u64 {
        self.processes.iter().filter_map(|process| process.used_bytes).sum()
    }

    fn hidden_bytes(&self) -> u64 {
        self.actual_bytes().saturating_sub(self.counted_bytes)
    }

    fn wrong(&self) -> Option<String> {
        let (index, actual) = (self.index, self.actual_bytes());
        let Some(slice) = self.slice else {
            let pid = self.processes.first().map_or(0, |process| process.pid);
            return Some(format!(
                "process {pid} holds {} of GPU {index}, of which it has no slice",
                Bytes(actual)
            ));
        };
        let stranger = self.processes.iter().find(|process| !knows(self.attached, process.pid));
        if let Some(stranger) = stranger.filter(|stranger| stranger.used_bytes != Some(0)) {
            return Some(format!(
                "process {} reached GPU {index} past the slice's accounting and holds {} of it",
                stranger.pid,
                Bytes(stranger.used_bytes.unwrap_or(0)),
            ));
        }
        let limit = slice.memory_limit_bytes;
        (actual > limit + self.tolerance_bytes())
            .then(|| format!("it holds {} of GPU {index}, its limit is {}", Bytes(actual), Bytes(limit)))
    }

    /// Modules and stacks of an honest program grow without asking anybody. That is charged when it is seen and keeps
    /// the next allocation out, but is no reason to stop a program that had used its slice up.
    fn tolerance_bytes(&self) -> u64 {
        const PER_PROCESS_BYTES: u64 = 64 << 20;
        PER_PROCESS_BYTES * self.processes.len() as u64
    }
}

/// Is `pid`, a process of this machine, among those that have attached? They gave the pid that they see, which in a
/// container is another one.
fn knows(attached: &BTreeSet<u32>, pid: u32) -> bool {
    attached.contains(&pid) || own_view(pid).is_some_and(|pid| attached.contains(&pid))
}

/// The pid that a process has in its own pid namespace: the last number of `NSpid`. One that has ended meanwhile is
/// nobody's.
fn own_view(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use cantle_model::Milli;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn wrong(counted: u64, processes: &[(u32, u64)], attached: &[u32], with_slice: bool) -> Option<String> {
        let slice = Slice { gpu: "GPU-a".into(), milli: Milli(250), memory_limit_bytes: 10 * GIB, mig: None };
        let processes: Vec<ProcessMemory> = processes
            .iter()
            .map(|&(pid, bytes)| ProcessMemory { pid, used_bytes: Some(bytes), instance: None })
            .collect();
        let attached = attached.iter().copied().collect();
        let look = Look {
            index: 2,
            slice: with_slice.then_some(&slice),
            counted_bytes: counted,
            processes: &processes,
            attached: &attached,
        };
        look.wrong()
    }

    #[test]
    fn honest_tasks_are_left_alone() {
        assert_eq!(wrong(10 * GIB, &[(7, 6 * GIB), (8, 4 * GIB)], &[7, 8], true), None);
        assert_eq!(wrong(10 * GIB, &[(7, 10 * GIB + (32 << 20))], &[7], true), None, "a module was loaded");
    }

    #[test]
    fn evaders_are_named() {
        let said = wrong(GIB, &[(7, GIB), (9, GIB)], &[7], true).unwrap();
        assert_eq!(said, "process 9 reached GPU 2 past the slice's accounting and holds 1 GiB of it");
        let said = wrong(GIB, &[(7, 11 * GIB)], &[7], true).unwrap();
        assert_eq!(said, "it holds 11 GiB of GPU 2, its limit is 10 GiB");
        let said = wrong(0, &[(7, GIB)], &[7], false).unwrap();
        assert_eq!(said, "process 7 holds 1 GiB of GPU 2, of which it has no slice");
    }

    #[test]
    fn a_process_sees_its_own_pid_here() {
        let me = std::process::id();
        assert_eq!(own_view(me), Some(me));
    }
}
