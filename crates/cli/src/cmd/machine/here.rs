//! `cantle ps`, and `cantle gpus` and `cantle top` without a server: the GPUs and slices of this machine, from its leases and its
//! driver.

use std::process::ExitCode;
use std::sync::Arc;

use cantle_clearml::cantle::{ForeignView, GpuView, NodeView, ProcessView, SliceView, TaskView};
use cantle_driver::{Driver, Installation};
use cantle_model::{
    Bytes, GpuMode, GpuUuid, Lease, MigInstance, Milli, Suspension, SuspensionStep, TaskStatus,
};
use cantle_node::{GpuHere, NodeStore, SliceHere, UserNames, gpus_here, suspended};
use jiff::Timestamp;
use serde::Serialize;

use crate::cmd::tasks::list::{allocated, bar, or_dash};
use crate::context::{CommandResult, Context};
use crate::error::{CliError, ErrorKind, as_kind};
use crate::host::host_name;
use crate::out::{Column, age};

/// A slice as `cantle ps` shows it.
#[derive(Debug, Serialize)]
struct Slice {
    name: String,
    task: String,
    user: Option<String>,
    /// Index of the GPU.
    gpu: u32,
    gpu_uuid: String,
    milli: u32,
    mig_profile: Option<String>,
    memory_used_bytes: u64,
    memory_limit_bytes: u64,
    /// On this machine: as `nvidia-smi`, `htop` and `kill` know them.
    pids: Vec<u32>,
    queue: Option<String>,
    since: String,
    /// running, suspending, suspended, resuming or failed
    state: &'static str,
    /// In host memory, while it is suspended.
    parked_bytes: u64,
}

const SLICE_COLUMNS: [Column<Slice>; 10] = [
    Column { head: "NAME", wide: false, cell: |s| s.name.clone() },
    Column { head: "USER", wide: false, cell: |s| or_dash(s.user.as_deref()) },
    Column { head: "GPU", wide: false, cell: |s| s.gpu.to_string() },
    Column {
        head: "SLICE",
        wide: false,
        cell: |s| {
            let size = s.mig_profile.clone().unwrap_or_else(|| Milli(s.milli).to_string());
            if s.state == RUNNING { size } else { format!("{size}, {}", s.state) }
        },
    },
    Column {
        head: "USED / LIMIT",
        wide: false,
        cell: |s| format!("{} / {}", Bytes(s.memory_used_bytes), Bytes(s.memory_limit_bytes)),
    },
    Column { head: "PIDS", wide: false, cell: pids },
    Column { head: "AGE", wide: false, cell: |s| age(&s.since) },
    Column { head: "QUEUE", wide: false, cell: |s| or_dash(s.queue.as_deref()) },
    Column { head: "TASK", wide: true, cell: |s| s.task.clone() },
    Column { head: "UUID", wide: true, cell: |s| s.gpu_uuid.clone() },
];

/// A few of them: a task may have hundreds of processes.
fn pids(slice: &Slice) -> String {
    const SHOWN: usize = 4;
    let shown: Vec<String> = slice.pids.iter().take(SHOWN).map(ToString::to_string).collect();
    let more = slice.pids.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(",+{more}") } else { String::new() };
    or_dash(Some(&format!("{}{more}", shown.join(","))))
}

/// The GPUs of this machine, and the leases that they are described from.
fn look() -> Result<(Vec<GpuHere>, Vec<Lease>), CliError> {
    let (driver, node) = open()?;
    let leases = node.leases()?;
    Ok((gpus_here(driver.as_ref(), &node, &leases)?, leases))
}

fn open() -> Result<(Arc<dyn Driver>, NodeStore), CliError> {
    let installation = Installation::of_this_machine();
    let driver = cantle_driver::open(&installation).map_err(as_kind(ErrorKind::Unavailable))?;
    Ok((driver, NodeStore::open(&NodeStore::dir_for(&installation))?))
}

/// Slices of this machine, of all its users, with or without a server.
pub(crate) fn ps(context: &Context) -> CommandResult {
    let users = UserNames::read();
    // A task that is suspended meanwhile is in one of both: they are of the same reading.
    let (gpus, leases) = look()?;
    let mut slices: Vec<Slice> =
        gpus.iter().flat_map(|gpu| gpu.slices.iter().map(|slice| row(gpu, slice, &users))).collect();
    slices
        .extend(suspended(&leases).filter_map(|(lease, suspension)| suspended_row(&gpus, lease, suspension)));
    context.printer.items(&slices, |slice| slice.task.clone(), &SLICE_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

fn row(gpu: &GpuHere, here: &SliceHere, users: &UserNames) -> Slice {
    let held = here.processes.iter().map(|process| process.pid);
    let pids: Vec<u32> = held.collect();
    Slice {
        name: name_of(&here.lease),
        task: here.lease.task.0.clone(),
        user: here.uid.map(|uid| users.name(uid)),
        gpu: gpu.gpu.index,
        gpu_uuid: gpu.gpu.uuid.0.clone(),
        milli: here.slice.milli.0,
        mig_profile: here.slice.mig.as_ref().map(|mig| mig.profile.clone()),
        memory_used_bytes: here.used_bytes(),
        memory_limit_bytes: here.slice.memory_limit_bytes,
        // One that holds no memory yet is known by its first process.
        pids: if pids.is_empty() { here.leader.into_iter().collect() } else { pids },
        queue: here.lease.queue.clone(),
        since: since(&here.lease),
        state: state(&here.lease),
        parked_bytes: here.lease.suspension.as_ref().map_or(0, |suspension| suspension.parked_bytes),
    }
}

const RUNNING: &str = "running";

fn state(lease: &Lease) -> &'static str {
    match lease.suspension.as_ref().map(|suspension| suspension.step) {
        None => RUNNING,
        Some(SuspensionStep::Suspending) => "suspending",
        Some(SuspensionStep::Suspended) => "suspended",
        Some(SuspensionStep::Resuming) => "resuming",
        Some(SuspensionStep::Failed) => "failed",
    }
}

/// A task that is out, where it was.
fn suspended_row(gpus: &[GpuHere], lease: &Lease, suspension: &Suspension) -> Option<Slice> {
    let slice = suspension.slices.first()?;
    let alive = suspension.processes.iter().filter(|process| cantle_runtime::alive(process));
    Some(Slice {
        name: name_of(lease),
        task: lease.task.0.clone(),
        user: None,
        gpu: gpus.iter().find(|gpu| gpu.gpu.uuid == slice.gpu)?.gpu.index,
        gpu_uuid: slice.gpu.0.clone(),
        milli: slice.milli.0,
        mig_profile: None,
        memory_used_bytes: 0,
        memory_limit_bytes: slice.memory_limit_bytes,
        pids: alive.map(|process| process.pid).collect(),
        queue: lease.queue.clone(),
        since: since(lease),
        state: state(lease),
        parked_bytes: suspension.parked_bytes,
    })
}

fn name_of(lease: &Lease) -> String {
    if lease.name.is_empty() { lease.task.0.clone() } else { lease.name.clone() }
}

fn since(lease: &Lease) -> String {
    Timestamp::from_millisecond(lease.placed_ms).map_or_else(|_| String::new(), |time| time.to_string())
}

/// A GPU of this machine as `cantle gpus` shows it.
#[derive(Serialize)]
struct Gpu {
    node: String,
    #[serde(flatten)]
    view: GpuView,
    busy_percent: Option<u32>,
    celsius: Option<u32>,
    milliwatts: Option<u32>,
    /// In use by any process.
    memory_used_bytes: Option<u64>,
    /// Names of the tasks, one for each slice.
    names: Vec<String>,
}

const GPU_COLUMNS: [Column<Gpu>; 9] = [
    Column { head: "GPU", wide: false, cell: |g| g.view.index.to_string() },
    Column { head: "NAME", wide: false, cell: |g| g.view.model.clone() },
    Column { head: "BUSY", wide: false, cell: |g| figure(g.busy_percent, "%") },
    Column { head: "TEMP", wide: false, cell: |g| figure(g.celsius, " °C") },
    Column { head: "POWER", wide: false, cell: |g| figure(g.milliwatts.map(|power| power / 1000), " W") },
    Column { head: "SLICES", wide: false, cell: |g| bar(&g.view) },
    Column { head: "ALLOCATED", wide: false, cell: |g| allocated(&g.view) },
    Column {
        head: "USED / TOTAL",
        wide: false,
        cell: |g| {
            let used = g.memory_used_bytes.map_or_else(|| "?".to_owned(), |used| Bytes(used).to_string());
            format!("{used} / {}", Bytes(g.view.memory_bytes))
        },
    },
    Column { head: "TASKS", wide: false, cell: |g| or_dash(Some(&g.names.join(", "))) },
];

fn figure(value: Option<u32>, unit: &str) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
}

/// `cantle gpus` without a server.
pub(crate) fn gpus(context: &Context) -> CommandResult {
    let node = host_name()?;
    let (found, _) = look()?;
    let gpus: Vec<Gpu> = found
        .iter()
        .map(|gpu| Gpu {
            node: node.clone(),
            view: view(gpu),
            busy_percent: gpu.load.map(|load| load.busy_percent),
            celsius: gpu.load.map(|load| load.celsius),
            milliwatts: gpu.load.and_then(|load| load.milliwatts),
            memory_used_bytes: gpu.used_bytes,
            names: gpu.slices.iter().map(|slice| name_of(&slice.lease)).collect(),
        })
        .collect();
    context.printer.say("no server: this machine, from its leases and its driver");
    context.printer.items(&gpus, |gpu| gpu.view.uuid.clone(), &GPU_COLUMNS);
    Ok(ExitCode::SUCCESS)
}

/// This machine as a node with its tasks, for `cantle top` without a server.
pub(crate) fn node() -> Result<(NodeView, Vec<TaskView>), CliError> {
    let ((gpus, _), name, users) = (look()?, host_name()?, UserNames::read());
    let mut tasks: Vec<TaskView> = Vec::new();
    for here in gpus.iter().flat_map(|gpu| &gpu.slices) {
        if tasks.iter().all(|task| task.id != here.lease.task.0) {
            tasks.push(task(here, &name, &users));
        }
    }
    let node = NodeView {
        node: name,
        worker: String::new(),
        last_seen: Timestamp::now().to_string(),
        alive: true,
        queues: Vec::new(),
        gpus: gpus.iter().map(view).collect(),
        links: Vec::new(),
        suspended: Vec::new(),
    };
    Ok((node, tasks))
}

/// The same with the connections of its GPUs, and without tasks.
pub(crate) fn connected() -> Result<NodeView, CliError> {
    let (mut node, topology) = (node()?.0, open()?.0.topology());
    let uuids = node.gpus.iter().map(|gpu| GpuUuid(gpu.uuid.clone())).collect();
    node.links = topology.among(uuids).links().to_vec();
    Ok(node)
}

fn task(here: &SliceHere, node: &str, users: &UserNames) -> TaskView {
    let slices = &here.lease.slices;
    TaskView {
        id: here.lease.task.0.clone(),
        name: name_of(&here.lease),
        user: here.uid.map(|uid| users.name(uid)).unwrap_or_default(),
        project: None,
        queue: here.lease.queue.clone(),
        state: TaskStatus::InProgress,
        node: Some(node.to_owned()),
        gpus: slices.iter().map(|slice| slice.gpu.0.clone()).collect(),
        milli: slices.iter().map(|slice| slice.milli.0).sum(),
        memory_limit_bytes: slices.iter().map(|slice| slice.memory_limit_bytes).sum(),
        reason: None,
        exit_code: None,
        created: since(&here.lease),
        started: Some(since(&here.lease)),
        ended: None,
        // A lease has its end alone.
        time_limit_s: None,
        idle_limit_s: None,
        host: None,
        array: None,
    }
}

fn view(gpu: &GpuHere) -> GpuView {
    let slice = |here: &SliceHere| SliceView {
        task: here.lease.task.0.clone(),
        lease: here.lease.id.0.clone(),
        milli: here.slice.milli.0,
        memory_limit_bytes: here.slice.memory_limit_bytes,
        memory_used_bytes: here.used_bytes(),
        mig: here.slice.mig.clone(),
        enforcement: here.lease.enforcement,
        enforced_by: here.lease.enforced_by(&here.slice),
        processes: here
            .processes
            .iter()
            .map(|process| ProcessView { pid: process.pid, memory_bytes: process.used_bytes.unwrap_or(0) })
            .collect(),
        compute: None,
        direct: None,
    };
    let slices: Vec<SliceView> = gpu.slices.iter().map(slice).collect();
    let allocated_milli = slices.iter().map(|slice| slice.milli).sum();
    let mode = match slices.as_slice() {
        _ if gpu.gpu.mig => GpuMode::Mig,
        [] => GpuMode::Idle,
        [one] if one.milli == Milli::ONE.0 => GpuMode::Whole,
        _ => GpuMode::Shared,
    };
    GpuView {
        index: gpu.gpu.index,
        uuid: gpu.gpu.uuid.0.clone(),
        model: gpu.gpu.model.clone(),
        memory_bytes: gpu.gpu.memory_bytes,
        mode,
        allocated_milli,
        slices,
        foreign: gpu.foreign.iter().map(foreign).collect(),
        fault: None,
    }
}

fn foreign((MigInstance { profile, start, size, .. }, milli): &(MigInstance, Milli)) -> ForeignView {
    ForeignView { profile: profile.clone(), start: *start, size: *size, milli: milli.0 }
}
