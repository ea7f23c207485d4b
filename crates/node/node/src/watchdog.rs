//! The watchdog compares the driver's figures with what the shim has counted.
//!
//! The shim counts the calls that pass through it. Memory that is allocated otherwise still shows in the driver's list of
//! processes: contexts that NVIDIA's runtime makes through a private table, modules, stacks, workspaces of libraries, OpenCL and
//! video encoders, and programs that evade the shim. The kernel reports whose processes they are, so what they hold is
//! charged to their slice, and the limit holds for all of it.
//!
//! Memory that is taken without asking may still exceed the limit. The charge is the first response: the slice gets nothing
//! more. The task is reported. It is killed if the excess lasts, if it is more than an honest program's modules, or if a
//! neighbor could not get all of its slice because of it ([ADR 0015](../../../../docs/adr/0015-what-is-taken-unasked.md)).
//!
//! It fails closed ([ADR 0018](../../../../docs/adr/0018-whose-process-it-is.md)): it reserves its resources when it starts,
//! keeps what it has once read of a lease, and reports where it cannot look. If the watchdog of a task is gone, every
//! watchdog of the machine watches that task.

pub(crate) mod figures;
mod leases;
mod over;
mod region;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use cantle_driver::{Driver, DriverError, ProcessMemory};
use cantle_model::{Bytes, Gpu, GpuUuid, Lease, LeaseId, Slice};
use cantle_runtime::{Cgroup, alive, end_now};
use tokio::time::Instant;

use crate::health::new_faults;
use crate::launch::context_cache;
use crate::loaded::other_libcuda;
use crate::members::{self, Members, Signs};
use crate::native_limit;
use crate::store::NodeStore;
use figures::Unaccounted;
use leases::Remembered;
pub use over::LOOK_INTERVAL;
use over::Overs;
use region::{Region, Regions, charge, overgrown};

/// Memory that a task may always hold beyond its slice.
pub(crate) const ALWAYS_TOLERATED_BYTES: u64 = 512 << 20;

/// At each scan of this number, all files of a slice are searched for one that has grown, also those that no lease names.
const SEARCH_EVERY: u32 = 8;

/// Descriptors that a scan needs at a time, and some to spare for the driver.
const RESERVED_FILES: usize = 16;

/// The reaction to a task that holds memory outside its slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watch {
    /// It is reported.
    Warn,
    /// It is reported, and stopped after a second.
    #[default]
    Kill,
}

/// The findings of a scan about one lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Found for the first time: the task is to be reported.
    Suspect(String),
    /// It has lasted: the task has to be stopped, depending on the policy.
    Guilty(String),
    /// A GPU of the task cannot be scanned, or it failed: it is to be reported.
    Trouble(String),
}

/// Scans the same leases again and again.
#[derive(Debug, Default)]
pub struct Watchdog {
    overs: Overs,
    leases: Remembered,
    /// Memory that the driver's kernel module takes for a context, by the name of the GPU or the instance, where that
    /// was measured.
    unattributed_bytes: BTreeMap<String, u64>,
    /// Processes whose signs of ownership contradict each other, as reported at the last scan.
    contradicting: BTreeMap<u32, Signs>,
    /// GPUs that did not answer at the last scan.
    unseen: BTreeSet<GpuUuid>,
    /// GPUs of which the driver has no figure of a process.
    unaccounted: Unaccounted,
    /// The accounting of the watched tasks.
    regions: Regions,
    scans: u32,
    reserve: Vec<File>,
    /// Reports about GPUs, whether or not they have tasks.
    news: Vec<String>,
}

impl Watchdog {
    /// For tasks that begin now: what the first scan finds counts for the time since.
    pub(crate) fn since(now: Instant) -> Self {
        let mut watchdog = Self::default();
        watchdog.overs.look(now);
        watchdog
    }

    /// Scans those of the node's leases that are `ours` once; the others are scanned by their own agents. A task without an
    /// owner, because its `cantle run` or agent was killed, is scanned too, and killed here.
    pub fn scan(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        // These descriptors are free now, even if all others are in use.
        self.reserve.clear();
        let findings = self.look(driver, node, gpus, ours, now);
        self.reserve.extend((0..RESERVED_FILES).map_while(|_| File::open("/dev/null").ok()));
        findings
    }

    /// The leases that were [`Lease::kept`] at the last scan.
    pub(crate) fn kept(&self) -> Vec<Lease> {
        self.leases.all().filter(|lease| lease.kept).cloned().collect()
    }

    /// May a task of this node have more memory than its request?
    #[must_use]
    pub fn has_borrowers(&self) -> bool {
        self.leases.all().any(|lease| lease.burst.is_some())
    }

    /// The events of GPUs since the last call.
    pub fn news(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news)
    }

    fn look(
        &mut self,
        driver: &dyn Driver,
        node: &NodeStore,
        gpus: &[Gpu],
        ours: impl Fn(&LeaseId) -> bool,
        now: Instant,
    ) -> Vec<(LeaseId, Finding)> {
        let faults = new_faults(driver, node, gpus);
        let leases = self.leases.read(node, &ours);
        self.news.extend(faults.iter().map(|(_, why)| why.clone()));
        if leases.is_empty() {
            self.regions = Regions::default();
            return Vec::new();
        }
        let watched: Vec<&Lease> = leases
            .iter()
            .filter(|lease| (ours(&lease.id) || is_orphan(lease)) && is_known(lease, gpus))
            .collect();
        // The counters of other programs' tasks are read by the programs that watch those tasks.
        let regions: Vec<_> = watched.iter().map(|lease| self.regions.take(node, &lease.id)).collect();
        let neighbors = node.neighbors();
        let members = Members::of(node, &leases).and(&neighbors);
        let everybody = Everybody::ask(driver, node, gpus, &members);
        let crowded: BTreeSet<&GpuUuid> = gpus
            .iter()
            .filter(|gpu| everybody.claims_bytes(gpu, leases.iter().chain(&neighbors)) > gpu.memory_bytes)
            .map(|gpu| &gpu.uuid)
            .collect();
        let nothing = Held::new();
        let mut findings = self.unseen(&leases, &everybody, &ours);
        findings.extend(self.contradicting(&leases, members.contradictions(), &ours));
        let ours_on = |gpu: &GpuUuid| {
            let on = |lease: &&Lease| lease.slices.iter().any(|slice| slice.gpu == *gpu);
            leases
                .iter()
                .filter(|lease| ours(&lease.id))
                .filter(on)
                .map(|lease| lease.id.clone())
                .collect::<Vec<_>>()
        };
        findings.extend(faults.iter().flat_map(|(gpu, why)| {
            ours_on(gpu).into_iter().map(|lease| (lease, Finding::Trouble(why.clone())))
        }));
        for gpu in gpus.iter().filter(|gpu| everybody.without_figures.contains(&gpu.uuid)) {
            let found = self.unaccounted.look(driver, node, gpu, (&leases, &neighbors), now);
            let ours = found.into_iter().filter(|(lease, _)| ours(lease));
            findings.extend(ours.map(|(lease, text)| (lease, Finding::Trouble(text))));
        }
        findings.extend(limits_set_again(driver, node, gpus, &watched, &ours));
        self.learn_contexts(driver, node, gpus, &watched);
        let stands_for = self.overs.look(now);
        self.scans = self.scans.wrapping_add(1);
        for (lease, region) in watched.iter().copied().zip(&regions) {
            let used = everybody.held.get(&lease.id);
            let wrong =
                check(lease, region, used.unwrap_or(&nothing), gpus, &crowded, &self.unattributed_bytes);
            // An intact region has the lengths of its files; only a share of compute time has others.
            let is_known = region.is_intact && lease.compute.is_none();
            let is_searched = !is_known || self.scans.is_multiple_of(SEARCH_EVERY);
            let wrong =
                wrong.or_else(|| is_searched.then(|| overgrown(&node.slice_dir(&lease.id))).flatten());
            let finding = wrong.and_then(|wrong| self.overs.found(&lease.id, wrong, stands_for, now));
            match finding {
                Some(finding) if ours(&lease.id) => findings.push((lease.id.clone(), finding)),
                Some(Finding::Guilty(why)) => {
                    tracing::error!(lease = %lease.id, name = lease.name, why, "a task without a watchdog is killed");
                    end(lease);
                }
                _ => {}
            }
        }
        self.regions.keep(watched.iter().map(|lease| &lease.id).zip(regions));
        findings
    }

    /// Reads what was measured when the task's region was made.
    fn learn_contexts(&mut self, driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu], watched: &[&Lease]) {
        for slice in watched.iter().flat_map(|lease| &lease.slices) {
            if !self.unattributed_bytes.contains_key(slice.device())
                && let Some(gpu) = gpus.iter().find(|gpu| gpu.uuid == slice.gpu)
                && let Some(context) = context_cache(node).known(driver, gpu, slice.mig.as_ref())
            {
                self.unattributed_bytes.insert(slice.device().to_owned(), context.unattributed_bytes);
            }
        }
    }

    /// Reports for the leases of `ours` about processes whose signs contradict each other since this scan: to each task that a sign names.
    fn contradicting(
        &mut self,
        leases: &[Lease],
        found: BTreeMap<u32, Signs>,
        ours: impl Fn(&LeaseId) -> bool,
    ) -> Vec<(LeaseId, Finding)> {
        let name = |id: &LeaseId| {
            let lease = leases.iter().find(|lease| lease.id == *id);
            lease.map_or_else(|| id.to_string(), |lease| format!("task {} (lease {id})", lease.name))
        };
        let known = std::mem::replace(&mut self.contradicting, found);
        let mut findings = Vec::new();
        for (pid, signs) in self.contradicting.iter().filter(|(pid, signs)| known.get(pid) != Some(signs)) {
            let text = signs.report(*pid, name);
            tracing::error!("{text}");
            let named = signs.named().into_iter().filter(|lease| ours(lease));
            findings.extend(named.map(|lease| (lease.clone(), Finding::Trouble(text.clone()))));
        }
        findings
    }

    /// Reports for the leases of `ours` on GPUs that cannot be scanned since this scan.
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
            Some((lease.id.clone(), Finding::Trouble(text)))
        });
        let findings = findings.collect();
        self.unseen = everybody.unseen.keys().cloned().collect();
        findings
    }
}

/// The driver's limit is the stronger one, so it is checked as well.
fn limits_set_again(
    driver: &dyn Driver,
    node: &NodeStore,
    gpus: &[Gpu],
    watched: &[&Lease],
    ours: impl Fn(&LeaseId) -> bool,
) -> Vec<(LeaseId, Finding)> {
    let changed =
        watched.iter().filter(|lease| ours(&lease.id) && native_limit::is_changed(driver, lease, gpus));
    let set = changed.filter_map(|lease| {
        let line = native_limit::set_again(driver, node, &lease.id, gpus)?;
        Some((lease.id.clone(), Finding::Trouble(line)))
    });
    set.collect()
}

/// Did the program that watched it end before it? The node driver watches a cluster's allocations; its own process is not
/// in the lease.
fn is_orphan(lease: &Lease) -> bool {
    !lease.kept && !alive(&lease.owner)
}

/// Ends a task by the data of its lease.
pub(crate) fn end(lease: &Lease) {
    if let Some(cgroup) = &lease.cgroup {
        Cgroup::at(cgroup).kill();
    }
    if let Some(leader) = &lease.leader {
        end_now(leader);
    }
}

/// Is each slice on one of these GPUs? The accounting region of a lease that cannot be read names a MIG instance and
/// not its GPU, so the task's limit there is unknown; the hardware enforces the instance.
fn is_known(lease: &Lease, gpus: &[Gpu]) -> bool {
    lease.slices.iter().all(|slice| gpus.iter().any(|gpu| gpu.uuid == slice.gpu))
}

/// Charges hidden memory to the slice, and returns what is wrong, if anything is.
///
/// The driver was asked between `region.before` and now.
fn check(
    lease: &Lease,
    region: &Region,
    used: &Held,
    gpus: &[Gpu],
    crowded: &BTreeSet<&GpuUuid>,
    unattributed_bytes: &BTreeMap<String, u64>,
) -> Option<String> {
    let before = region.before.as_ref().map_or(&[][..], |before| &before.gpus);
    let snapshot = region.after(!used.is_empty());
    let processes = snapshot.iter().flat_map(|snapshot| &snapshot.processes);
    let attached: BTreeSet<u32> = processes.map(|process| process.pid).collect();
    let counted = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.gpus);
    let mut wrong = None;
    for gpu in gpus {
        let at = lease.slices.iter().position(|slice| slice.gpu == gpu.uuid);
        let now = at.and_then(|at| counted.get(at));
        let processes = used.get(&gpu.uuid).map_or(&[][..], Vec::as_slice);
        let slice = at.and_then(|at| lease.slices.get(at));
        let on_gpu = TaskOnGpu {
            index: gpu.index,
            slice,
            per_context_bytes: slice
                .and_then(|slice| unattributed_bytes.get(slice.device()))
                .copied()
                .unwrap_or(0),
            counted_bytes: [at.and_then(|at| before.get(at)), now]
                .map(|count| count.map_or(0, |count| count.counted_bytes)),
            charged_bytes: now.map_or(0, |now| now.hidden_bytes),
            processes,
            attached: &attached,
            is_crowded: crowded.contains(&gpu.uuid),
        };
        if let (Some(region), Some(now)) = (&region.observer, now) {
            let reserve = slice.map_or(0, |slice| lease.module_reserve(slice));
            charge(region, now, on_gpu.hidden_bytes().max(reserve));
        }
        wrong = wrong.or_else(|| on_gpu.wrong());
    }
    wrong
}

type Held = BTreeMap<GpuUuid, Vec<ProcessMemory>>;

/// The memory of all processes, by the driver's own figures.
#[derive(Default)]
struct Everybody {
    held: BTreeMap<LeaseId, Held>,
    /// By processes that no lease answers for.
    foreign_bytes: BTreeMap<GpuUuid, u64>,
    /// GPUs that do not answer, and why. No answer proves nothing against a task; [`crate::capacity`] gives nothing more of them.
    unseen: BTreeMap<GpuUuid, String>,
    /// GPUs of which the driver has no figure of a process.
    without_figures: BTreeSet<GpuUuid>,
}

impl Everybody {
    fn ask(driver: &dyn Driver, node: &NodeStore, gpus: &[Gpu], members: &Members) -> Self {
        let mut everybody = Self::default();
        for gpu in gpus {
            let processes = driver.processes(&gpu.uuid).unwrap_or_else(|error: DriverError| {
                everybody.unseen.insert(gpu.uuid.clone(), error.to_string());
                Vec::new()
            });
            if figures::are_missing(driver, node, gpu, &processes) {
                everybody.without_figures.insert(gpu.uuid.clone());
            }
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

    /// The committed memory of a GPU: each slice's limit, or what its task holds if that is more, and what others use. If it
    /// exceeds the memory, a task could not get all of its slice.
    fn claims_bytes<'a>(&self, gpu: &Gpu, leases: impl Iterator<Item = &'a Lease>) -> u64 {
        let claim = |lease: &Lease| {
            let limit = lease.memory_limit_on(&gpu.uuid);
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
/// more of it for having more processes than eight: it is memory without a reservation.
pub(crate) fn tolerance_bytes(processes: &[ProcessMemory]) -> u64 {
    const PER_PROCESS_BYTES: u64 = 64 << 20;
    const PER_TASK_BYTES: u64 = ALWAYS_TOLERATED_BYTES;
    (PER_PROCESS_BYTES * processes.len() as u64).min(PER_TASK_BYTES)
}

/// Tolerated as long as every task can have all of its slice. Kernels and workspaces of cuBLAS, cuDNN and Triton, which
/// load lazily, take 100 to 600 MiB of a process that has filled its slice by then. Eight processes of a task may.
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
    /// Memory of a context that no process has in the driver's list.
    per_context_bytes: u64,
    /// The counts of the shim before and after the driver was asked.
    counted_bytes: [u64; 2],
    /// Memory that is charged as hidden so far.
    charged_bytes: u64,
    /// The figure of the driver.
    processes: &'a [ProcessMemory],
    /// Pids that the slice's processes know themselves by.
    attached: &'a BTreeSet<u32>,
    /// Not every task could have all of its slice now.
    is_crowded: bool,
}

impl TaskOnGpu<'_> {
    /// The memory that the driver shows beyond the shim's count. If the count has changed meanwhile, it is unknown
    /// which part of the change the driver's figure contains. Then the charge changes only as far as it cannot be
    /// right: a program that fills its slice would get the hidden memory a second time, if the smallest amount counted.
    fn hidden_bytes(&self) -> u64 {
        let [before, after] = self.counted_bytes;
        let beyond = |counted: u64| self.actual_bytes().saturating_sub(counted);
        self.charged_bytes.clamp(beyond(before.max(after)), beyond(before.min(after)))
    }

    /// The driver's figures, and what it takes for these processes in addition; each has a context.
    fn actual_bytes(&self) -> u64 {
        actual_bytes(self.processes) + self.per_context_bytes * self.processes.len() as u64
    }

    fn wrong(&self) -> Option<String> {
        let (index, actual) = (self.index, self.actual_bytes());
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

    /// The memory beyond its slice that the task may hold.
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
mod tests;
