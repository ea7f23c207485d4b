//! The driver's own figures against what the shim has counted.
//!
//! The shim counts the calls that pass through it. Memory that is allocated otherwise (modules, stacks, workspaces of
//! libraries, or a program that evades the shim) still shows in the driver's list of processes. The harmless part is
//! charged to the slice, so that the limit holds for all of it. A task that holds more is reported, and killed if that lasts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use cantle_driver::{Driver, DriverError, ProcessMemory};
use cantle_ledger::GRANULE_BYTES;
use cantle_ledger::host::{GpuUse, Observer};
use cantle_model::{Bytes, Gpu, GpuUuid, Lease, LeaseId, Slice};
use tokio::time::Instant;

use crate::members::{self, Members};
use crate::store::NodeStore;

/// How long a finding must last before the task is stopped: a scan takes time, and memory use changes meanwhile.
const GRACE_PERIOD: Duration = Duration::from_secs(1);

/// What happens to a task that holds memory outside its slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// It is reported.
    Warn,
    /// It is reported, and stopped after a second.
    #[default]
    Kill,
}

/// What a scan found out about one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Found for the first time: the task is to be reported.
    Suspect(String),
    /// It has lasted: the task is to be stopped, if the policy says so.
    Guilty(String),
}

/// Scans the same leases again and again.
#[derive(Debug, Default)]
pub struct Watchdog {
    since: BTreeMap<LeaseId, Instant>,
}

impl Watchdog {
    /// Scans those of the node's leases that are `ours` once; the others are scanned by their own agents.
    pub fn scan(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        let leases = node.leases().unwrap_or_else(|error| {
            tracing::error!(%error, "the watchdog can't read the leases and checks no task");
            Vec::new()
        });
        self.since.retain(|id, _| leases.iter().any(|lease| lease.id == *id));
        let before: BTreeMap<_, _> =
            leases.iter().map(|lease| (&lease.id, counted(&node.slice_dir(&lease.id)))).collect();
        let held = held_by_lease(driver, gpus, &Members::of(node, &leases));
        let nothing = Held::new();
        let mut findings = Vec::new();
        for lease in leases.iter().filter(|lease| ours(&lease.id)) {
            let used = held.get(&lease.id);
            let dir = node.slice_dir(&lease.id);
            let before = before.get(&lease.id).map_or(&[][..], Vec::as_slice);
            let Some(wrong) = check(lease, &dir, used.unwrap_or(&nothing), before, gpus) else {
                self.since.remove(&lease.id);
                continue;
            };
            match self.since.get(&lease.id) {
                None => {
                    self.since.insert(lease.id.clone(), now);
                    findings.push((lease.id.clone(), Finding::Suspect(wrong)));
                }
                Some(since) if now.duration_since(*since) >= GRACE_PERIOD => {
                    findings.push((lease.id.clone(), Finding::Guilty(wrong)));
                }
                Some(_) => {}
            }
        }
        findings
    }
}

/// What the shim has counted on each GPU of a slice.
fn counted(dir: &Path) -> Vec<u64> {
    let snapshot = Observer::open(dir).and_then(|region| region.snapshot());
    snapshot
        .map_or_else(|_| Vec::new(), |snapshot| snapshot.gpus.iter().map(|gpu| gpu.counted_bytes).collect())
}

/// Charges hidden memory to the slice, and returns what is wrong, if anything is.
///
/// The driver was asked between `before` and now. Memory that was freed meanwhile was counted before, memory that was
/// allocated is counted now. Neither is hidden, so the larger count is the right one.
fn check(lease: &Lease, dir: &Path, used: &Held, before: &[u64], gpus: &[Gpu]) -> Option<String> {
    let region = Observer::open(dir).ok();
    let snapshot = region.as_ref().and_then(|region| region.snapshot().ok());
    // A region that its tenant has damaged counts nothing and lists no process.
    let processes = snapshot.iter().flat_map(|snapshot| &snapshot.processes);
    let attached: BTreeSet<u32> = processes.map(|process| process.pid).collect();
    let counted = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.gpus);
    let mut wrong = None;
    for gpu in gpus {
        let at = lease.slices.iter().position(|slice| slice.gpu == gpu.uuid);
        let now = at.and_then(|at| counted.get(at));
        let processes = used.get(&gpu.uuid).map_or(&[][..], Vec::as_slice);
        let on_gpu = TaskOnGpu {
            index: gpu.index,
            slice: at.and_then(|at| lease.slices.get(at)),
            counted_bytes: now
                .map_or(0, |now| now.counted_bytes)
                .max(at.and_then(|at| before.get(at)).copied().unwrap_or(0)),
            processes,
            attached: &attached,
        };
        if let (Some(region), Some(now)) = (&region, now) {
            charge(region, now, on_gpu.hidden_bytes());
        }
        wrong = wrong.or_else(|| on_gpu.wrong());
    }
    wrong
}

fn charge(region: &Observer, now: &GpuUse, hidden_bytes: u64) {
    if now.hidden_bytes == hidden_bytes.next_multiple_of(GRANULE_BYTES) {
        return;
    }
    if let Err(error) = region.set_hidden(&now.uuid, hidden_bytes) {
        tracing::warn!(%error, "hidden memory can't be charged");
    }
}

type Held = BTreeMap<GpuUuid, Vec<ProcessMemory>>;

/// GPUs that do not answer are left out: no answer proves nothing.
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
struct TaskOnGpu<'a> {
    index: u32,
    /// Its slice there.
    slice: Option<&'a Slice>,
    /// What the shim has counted.
    counted_bytes: u64,
    /// What the driver says.
    processes: &'a [ProcessMemory],
    /// Pids that the slice's processes know themselves by.
    attached: &'a BTreeSet<u32>,
}

impl TaskOnGpu<'_> {
    fn actual_bytes(&self) -> u64 {
        self.processes.iter().filter_map(|process| process.used_bytes).sum()
    }

    fn hidden_bytes(&self) -> u64 {
        self.actual_bytes().saturating_sub(self.counted_bytes)
    }

    fn wrong(&self) -> Option<String> {
        if self.processes.is_empty() {
            return None;
        }
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

    /// Modules and stacks of an honest program grow without a call that the shim sees. They are charged at the next scan,
    /// which refuses the next allocation, but are no reason to stop a program that had used up its slice.
    fn tolerance_bytes(&self) -> u64 {
        const PER_PROCESS_BYTES: u64 = 64 << 20;
        PER_PROCESS_BYTES * self.processes.len() as u64
    }
}

/// Is `pid`, a process of this machine, among those that have attached? They gave the pid of their own pid namespace,
/// which in a container is another one.
fn knows(attached: &BTreeSet<u32>, pid: u32) -> bool {
    attached.contains(&pid) || members::own_view(pid).is_some_and(|pid| attached.contains(&pid))
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
        let on_gpu = TaskOnGpu {
            index: 2,
            slice: with_slice.then_some(&slice),
            counted_bytes: counted,
            processes: &processes,
            attached: &attached,
        };
        on_gpu.wrong()
    }

    #[test]
    fn honest_tasks_are_left_alone() {
        assert_eq!(wrong(10 * GIB, &[(7, 6 * GIB), (8, 4 * GIB)], &[7, 8], true), None);
        assert_eq!(wrong(10 * GIB, &[(7, 10 * GIB + (32 << 20))], &[7], true), None, "a module was loaded");
    }

    #[test]
    fn evaders_are_reported() {
        let said = wrong(GIB, &[(7, GIB), (9, GIB)], &[7], true).unwrap();
        assert_eq!(said, "process 9 reached GPU 2 past the slice's accounting and holds 1 GiB of it");
        let said = wrong(GIB, &[(7, 11 * GIB)], &[7], true).unwrap();
        assert_eq!(said, "it holds 11 GiB of GPU 2, its limit is 10 GiB");
        let said = wrong(0, &[(7, GIB)], &[7], false).unwrap();
        assert_eq!(said, "process 7 holds 1 GiB of GPU 2, of which it has no slice");
    }
}
