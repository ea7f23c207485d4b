//! The driver's own figures against what the shim has counted.
//!
//! The shim counts the calls that pass through it. Memory that is allocated otherwise still shows in the driver's list of
//! processes: contexts that NVIDIA's runtime makes through a private table, modules, stacks, workspaces of libraries, OpenCL and
//! video encoders, and programs that evade the shim. Whose processes they are is said by the kernel, so what they hold is charged
//! to their slice, and the limit holds for all of it.
//!
//! What is taken without asking may still exceed the limit. The charge is the first answer to that: the slice gets nothing more.
//! A task is reported, and killed if it lasts, if it holds more than an honest program's modules, or if a neighbor could not
//! have all of its slice for it ([ADR 0015](../../../docs/adr/0015-what-is-taken-unasked.md)).
//!
//! It fails closed ([ADR 0018](../../../docs/adr/0018-whose-process-it-is.md)): what it needs to look is set aside when it starts, it
//! goes by what it has read once, and where it can't look it says so. A task that nobody watches any more is watched by every
//! watchdog of the machine.

mod leases;
mod over;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;

use cantle_driver::{Driver, DriverError, ProcessMemory};
use cantle_ledger::GRANULE_BYTES;
use cantle_ledger::host::{GpuUse, Observer};
use cantle_model::{Bytes, Gpu, GpuUuid, Lease, LeaseId, Slice};
use cantle_runtime::{Cgroup, alive, end_now};
use tokio::time::Instant;

use crate::loaded::other_libcuda;
use crate::members::{self, Members};
use crate::store::NodeStore;
use leases::Remembered;
pub use over::LOOK_INTERVAL;
use over::Overs;

/// Descriptors that a look needs at a time, and some to spare for the driver.
const RESERVED_FILES: usize = 16;

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
    /// Nobody can look at a GPU of the task: it is to be reported.
    Unseen(String),
}

/// Scans the same leases again and again.
#[derive(Debug, Default)]
pub struct Watchdog {
    overs: Overs,
    leases: Remembered,
    /// GPUs that did not answer at the last look.
    unseen: BTreeSet<GpuUuid>,
    reserve: Vec<File>,
}

impl Watchdog {
    /// Scans those of the node's leases that are `ours` once; the others are scanned by their own agents. A task that is nobody's, because
    /// the `cantle run` or the agent that watched it was killed, is scanned too, and killed here.
    pub fn scan(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        // Whatever else this process has open, these are free now.
        self.reserve.clear();
        let findings = self.look(driver, node, gpus, ours, now);
        self.reserve.extend((0..RESERVED_FILES).map_while(|_| File::open("/dev/null").ok()));
        findings
    }

    /// The leases that were [`Lease::kept`] at the last look.
    pub(crate) fn kept(&self) -> Vec<Lease> {
        self.leases.all().filter(|lease| lease.kept).cloned().collect()
    }

    fn look(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        let leases = self.leases.read(node, &ours);
        if leases.is_empty() {
            return Vec::new();
        }
        let before: BTreeMap<_, _> =
            leases.iter().map(|lease| (&lease.id, counted(&node.slice_dir(&lease.id)))).collect();
        let neighbors = node.neighbors();
        let everybody = Everybody::ask(driver, gpus, &Members::of(node, &leases).and(&neighbors));
        let crowded: BTreeSet<&GpuUuid> = gpus
            .iter()
            .filter(|gpu| everybody.claims_bytes(gpu, leases.iter().chain(&neighbors)) > gpu.memory_bytes)
            .map(|gpu| &gpu.uuid)
            .collect();
        let nothing = Held::new();
        let mut findings = self.unseen(&leases, &everybody, &ours);
        let stands_for = self.overs.look(now);
        let watched = |lease: &&Lease| (ours(&lease.id) || is_orphan(lease)) && is_known(lease, gpus);
        for lease in leases.iter().filter(watched) {
            let used = everybody.held.get(&lease.id);
            let dir = node.slice_dir(&lease.id);
            let before = before.get(&lease.id).map_or(&[][..], Vec::as_slice);
            let wrong = check(lease, &dir, used.unwrap_or(&nothing), before, gpus, &crowded);
            let finding = wrong.and_then(|wrong| self.overs.found(&lease.id, wrong, stands_for, now));
            match finding {
                Some(finding) if ours(&lease.id) => findings.push((lease.id.clone(), finding)),
                Some(Finding::Guilty(why)) => {
                    tracing::error!(lease = %lease.id, name = lease.name, why, "a task that nobody watched is killed");
                    end(lease);
                }
                _ => {}
            }
        }
        findings
    }

    /// Of the leases that are `ours` on GPUs that can't be looked at since this look.
    fn unseen(
        &mut self,
        leases: &[Lease],
        everybody: &Everybody,
        ours: impl Fn(&LeaseId) -> bool,
    ) -> Vec<(LeaseId, Finding)> {
        let newly = |gpu: &GpuUuid| everybody.unseen.get(gpu).filter(|_| !self.unseen.contains(gpu));
        let findings = leases.iter().filter(|lease| ours(&lease.id)).filter_map(|lease| {
            let why = lease.slices.iter().find_map(|slice| newly(&slice.gpu))?;
            let text =
                format!("its use of memory cannot be seen, and the GPU takes no new task meanwhile: {why}");
            Some((lease.id.clone(), Finding::Unseen(text)))
        });
        let findings = findings.collect();
        self.unseen = everybody.unseen.keys().cloned().collect();
        findings
    }
}

/// Did whoever watched it end before it? What a cluster gave out is watched by the node driver, whose own process is not in the
/// lease.
fn is_orphan(lease: &Lease) -> bool {
    !lease.kept && !alive(&lease.owner)
}

/// Ends a task by what its lease says of it.
fn end(lease: &Lease) {
    if let Some(cgroup) = &lease.cgroup {
        Cgroup::at(cgroup).kill();
    }
    if let Some(leader) = &lease.leader {
        end_now(leader);
    }
}

/// Is each slice on one of these GPUs? The accounting region of a lease that can't be read names a MIG instance and not its GPU, so nobody
/// can say what the task may hold there; the hardware keeps it to its instance.
fn is_known(lease: &Lease, gpus: &[Gpu]) -> bool {
    lease.slices.iter().all(|slice| gpus.iter().any(|gpu| gpu.uuid == slice.gpu))
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
fn check(
    lease: &Lease,
    dir: &Path,
    used: &Held,
    before: &[u64],
    gpus: &[Gpu],
    crowded: &BTreeSet<&GpuUuid>,
) -> Option<String> {
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
            is_crowded: crowded.contains(&gpu.uuid),
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
        tracing::warn!(%error, "hidden memory cannot be charged");
    }
}

type Held = BTreeMap<GpuUuid, Vec<ProcessMemory>>;

/// What everybody holds, by the driver's own figures.
#[derive(Default)]
struct Everybody {
    held: BTreeMap<LeaseId, Held>,
    /// By processes that no lease answers for.
    foreign_bytes: BTreeMap<GpuUuid, u64>,
    /// GPUs that do not answer, and why. No answer proves nothing against a task; [`crate::capacity`] gives nothing more of them.
    unseen: BTreeMap<GpuUuid, String>,
}

impl Everybody {
    fn ask(driver: &dyn Driver, gpus: &[Gpu], members: &Members) -> Self {
        let mut everybody = Self::default();
        for gpu in gpus {
            let processes = driver.processes(&gpu.uuid).unwrap_or_else(|error: DriverError| {
                everybody.unseen.insert(gpu.uuid.clone(), error.to_string());
                Vec::new()
            });
            for process in processes {
                match members.lease_of(process.pid) {
                    Some(lease) => {
                        let held = everybody.held.entry(lease.clone()).or_default();
                        held.entry(gpu.uuid.clone()).or_default().push(process);
                    }
                    None => {
                        *everybody.foreign_bytes.entry(gpu.uuid.clone()).or_default() +=
                            process.used_bytes.unwrap_or(0);
                    }
                }
            }
        }
        everybody
    }

    /// What is spoken for on a GPU: each slice's limit, or what its task holds if that is more, and what others use. If it is more
    /// than there is, somebody could not have all of his slice.
    fn claims_bytes<'a>(&self, gpu: &Gpu, leases: impl Iterator<Item = &'a Lease>) -> u64 {
        let claim = |lease: &Lease| {
            let slices = lease.slices.iter().filter(|slice| slice.gpu == gpu.uuid);
            let limit: u64 = slices.map(|slice| slice.memory_limit_bytes).sum();
            let held = self.held.get(&lease.id).and_then(|held| held.get(&gpu.uuid));
            let processes = held.map_or(&[][..], Vec::as_slice);
            limit.max(actual_bytes(processes).saturating_sub(tolerance_bytes(processes)))
        };
        leases.map(claim).sum::<u64>() + self.foreign_bytes.get(&gpu.uuid).copied().unwrap_or(0)
    }
}

pub(crate) fn actual_bytes(processes: &[ProcessMemory]) -> u64 {
    processes.iter().filter_map(|process| process.used_bytes).sum()
}

/// Always borne: modules and stacks of an honest program grow without a call that the shim sees, also in a full slice. A task has no
/// more of it for having more processes than eight: it is memory that nobody reserved.
pub(crate) fn tolerance_bytes(processes: &[ProcessMemory]) -> u64 {
    const PER_PROCESS_BYTES: u64 = 64 << 20;
    const PER_TASK_BYTES: u64 = 512 << 20;
    (PER_PROCESS_BYTES * processes.len() as u64).min(PER_TASK_BYTES)
}

/// Borne as long as everybody can have all of his slice. Kernels and workspaces of cuBLAS, cuDNN and Triton, which load lazily,
/// take 100 to 600 MiB of a process that has filled its slice by then. Eight processes of a task may.
fn modules_bytes(processes: &[ProcessMemory]) -> u64 {
    const PER_PROCESS_BYTES: u64 = 1 << 30;
    const PER_TASK_BYTES: u64 = 8 << 30;
    (PER_PROCESS_BYTES * processes.len() as u64).min(PER_TASK_BYTES)
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
    /// Not everybody could have all of his slice now.
    is_crowded: bool,
}

impl TaskOnGpu<'_> {
    fn hidden_bytes(&self) -> u64 {
        actual_bytes(self.processes).saturating_sub(self.counted_bytes)
    }

    fn wrong(&self) -> Option<String> {
        let (index, actual) = (self.index, actual_bytes(self.processes));
        let first = self.processes.first()?;
        let Some(slice) = self.slice else {
            let (pid, held) = (first.pid, Bytes(actual));
            return Some(format!("process {pid} holds {held} of GPU {index}, of which it has no slice"));
        };
        let limit = slice.memory_limit_bytes;
        if actual <= limit + self.borne_bytes() {
            return None;
        }
        let held = format!("it holds {} of GPU {index}, its limit is {}", Bytes(actual), Bytes(limit));
        let strangers = self.processes.iter().filter(|process| !knows(self.attached, process.pid));
        let Some(stranger) = strangers.max_by_key(|stranger| stranger.used_bytes) else { return Some(held) };
        let loaded = other_libcuda(stranger.pid).map_or_else(String::new, |path| format!(", with {path}"));
        Some(format!(
            "process {} reached GPU {index} past the slice's accounting{loaded} and holds {} of it; the task: {held}",
            stranger.pid,
            Bytes(stranger.used_bytes.unwrap_or(0)),
        ))
    }

    /// How much more than its slice the task may hold.
    fn borne_bytes(&self) -> u64 {
        if self.is_crowded { tolerance_bytes(self.processes) } else { modules_bytes(self.processes) }
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

    fn processes(processes: &[(u32, u64)]) -> Vec<ProcessMemory> {
        let process = |&(pid, bytes): &_| ProcessMemory { pid, used_bytes: Some(bytes), instance: None };
        processes.iter().map(process).collect()
    }

    fn slice(limit_bytes: u64) -> Slice {
        Slice { gpu: "GPU-a".into(), milli: Milli(250), memory_limit_bytes: limit_bytes, mig: None }
    }

    fn on_gpu(held: &[(u32, u64)], attached: &[u32], has_slice: bool, is_crowded: bool) -> Option<String> {
        let slice = slice(10 * GIB);
        let on_gpu = TaskOnGpu {
            index: 2,
            slice: has_slice.then_some(&slice),
            counted_bytes: 0,
            processes: &processes(held),
            attached: &attached.iter().copied().collect(),
            is_crowded,
        };
        on_gpu.wrong()
    }

    #[test]
    fn honest_tasks_are_left_alone() {
        assert_eq!(on_gpu(&[(7, 6 * GIB), (8, 4 * GIB)], &[7, 8], true, true), None);
        assert_eq!(on_gpu(&[(7, 10 * GIB + (32 << 20))], &[7], true, true), None, "a module was loaded");
        assert_eq!(
            on_gpu(&[(7, 10 * GIB + (600 << 20))], &[7], true, false),
            None,
            "cuDNN, and nobody is hurt"
        );
        assert_eq!(
            on_gpu(&[(7, 4 * GIB), (9, GIB)], &[7], true, true),
            None,
            "a context or OpenCL, within the slice"
        );
        assert_eq!(on_gpu(&[(9, 1 << 20)], &[], true, true), None, "nothing but a context");
    }

    #[test]
    fn who_takes_more_is_reported() {
        let said = on_gpu(&[(7, 9 * GIB), (9, 4 * GIB)], &[7], true, false).unwrap();
        let held = "it holds 13 GiB of GPU 2, its limit is 10 GiB";
        assert_eq!(
            said,
            format!(
                "process 9 reached GPU 2 past the slice's accounting and holds 4 GiB of it; the task: {held}"
            )
        );
        assert_eq!(on_gpu(&[(7, 13 * GIB)], &[7], true, false).unwrap(), held);
        let said = on_gpu(&[(7, 10 * GIB + GIB / 2)], &[7], true, true).unwrap();
        assert_eq!(said, "it holds 10.5 GiB of GPU 2, its limit is 10 GiB", "a neighbor would be hurt");
        let said = on_gpu(&[(7, GIB)], &[7], false, false).unwrap();
        assert_eq!(said, "process 7 holds 1 GiB of GPU 2, of which it has no slice");
    }

    #[test]
    fn more_processes_do_not_bear_more_and_more() {
        let with = |count: u32, over: u64, is_crowded| {
            let mut held: Vec<(u32, u64)> = (0..count).map(|pid| (pid, 0)).collect();
            held[0].1 = 10 * GIB + over;
            on_gpu(&held, &(0..count).collect::<Vec<_>>(), true, is_crowded)
        };
        let mib = 1 << 20;
        assert_eq!(with(4, 256 * mib, true), None);
        assert!(with(4, 257 * mib, true).is_some());
        assert_eq!(with(64, 512 * mib, true), None);
        assert!(with(64, 513 * mib, true).is_some(), "a neighbor's memory is not 64 processes' to take");
        assert_eq!(with(64, 8 * GIB, false), None);
        assert!(with(64, 8 * GIB + mib, false).is_some());
    }

    #[test]
    fn a_task_on_an_instance_of_an_unreadable_lease_is_not_judged() {
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.into(),
            index: 0,
            model: String::new(),
            memory_bytes: 40 * GIB,
            mig: true,
        };
        let lease = members::tests::lease_of("a", 1, vec![slice(10 * GIB)]);
        assert!(is_known(&lease, &[gpu("GPU-a"), gpu("GPU-b")]));
        assert!(!is_known(&lease, &[gpu("GPU-b")]));
        let without_gpu = members::tests::lease_of("b", 1, Vec::new());
        assert!(is_known(&without_gpu, &[gpu("GPU-b")]), "who has no GPU is judged");
    }

    #[test]
    fn what_is_spoken_for_is_the_larger_of_limit_and_use() {
        let gpu =
            Gpu { uuid: "GPU-a".into(), index: 0, model: String::new(), memory_bytes: 40 * GIB, mig: false };
        let lease = |id: &str| members::tests::lease_of(id, 1, vec![slice(10 * GIB)]);
        let leases = [lease("a"), lease("b")];
        let mut everybody = Everybody::default();
        assert_eq!(everybody.claims_bytes(&gpu, leases.iter()), 20 * GIB);
        let held = |bytes| Held::from([("GPU-a".into(), processes(&[(7, bytes)]))]);
        everybody.held.insert("a".into(), held(2 * GIB));
        everybody.held.insert("b".into(), held(12 * GIB));
        everybody.foreign_bytes.insert("GPU-a".into(), 3 * GIB);
        assert_eq!(everybody.claims_bytes(&gpu, leases.iter()), 25 * GIB - (64 << 20));
    }
}
