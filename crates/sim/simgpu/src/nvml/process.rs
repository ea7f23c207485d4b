//! The processes that use a GPU.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::handle::{Handle, Target, target};
use super::settings::{Setting, get, is_on};
use super::versions::{ThirdLists, third_lists};
use super::{NvmlError, NvmlResult, nvml_api, version_word};
use crate::GRANULE_BYTES;
use crate::ffi::Out;
use crate::state::WHOLE_GPU;
use crate::state::pids::INVISIBLE;
use crate::time::now_ns;

/// GPU or compute instance of a process outside MIG.
const NO_INSTANCE: u32 = u32::MAX;

/// `NVML_VALUE_NOT_AVAILABLE`: the driver does not know the memory of the process.
const NOT_AVAILABLE: u64 = u64::MAX;

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ProcessV1 {
    pid: u32,
    used_bytes: u64,
}

/// `nvmlProcessInfo_v2_t`, which `…_v3` functions fill too.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) used_bytes: u64,
    pub(super) gpu_instance: u32,
    pub(super) compute_instance: u32,
}

/// `nvmlProcessInfo_t` of drivers 535.43 to 535.86.
#[repr(C)]
#[derive(Clone, Copy)]
struct LongProcess {
    process: Process,
    protected_bytes: u64,
}

/// `nvmlProcessDetail_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Detail {
    process: Process,
    protected_bytes: u64,
}

/// `nvmlProcessDetailList_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct DetailList {
    version: u32,
    mode: u32,
    count: u32,
    rows: *mut Detail,
}

/// `NVML_PROCESS_MODE_COMPUTE`, `NVML_PROCESS_MODE_ALL`: between them are the kinds of which there are none.
const COMPUTE: u32 = 0;
const ALL: u32 = 3;

impl From<Process> for Detail {
    fn from(process: Process) -> Self {
        // Confidential computing is not simulated.
        Self { process, protected_bytes: 0 }
    }
}

impl From<Process> for ProcessV1 {
    fn from(p: Process) -> Self {
        Self { pid: p.pid, used_bytes: p.used_bytes }
    }
}

/// The last report of a device's processes.
struct Shown {
    at_ns: u64,
    processes: Vec<Process>,
}

/// The last reports, by GPU and first domain.
static SHOWN: Mutex<BTreeMap<(usize, usize), Shown>> = Mutex::new(BTreeMap::new());

/// The processes that hold memory of a GPU or MIG device, and with it a context; as they were a while ago, if this driver is slow.
pub(super) fn running(target: &Target) -> Vec<Process> {
    let lag_ns = get(Setting::FiguresLagMs) * 1_000_000;
    if lag_ns == 0 {
        return running_now(target);
    }
    let (key, now) = ((target.gpu().index, target.domains().start), now_ns());
    let mut shown = SHOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let is_fresh = |shown: &Shown| now < shown.at_ns + lag_ns;
    if !shown.get(&key).is_some_and(is_fresh) {
        shown.insert(key, Shown { at_ns: now, processes: running_now(target) });
    }
    shown[&key].processes.clone()
}

fn running_now(target: &Target) -> Vec<Process> {
    let mut visible = holders(target);
    visible.retain(|process| process.pid != INVISIBLE);
    match get(Setting::NoFigures) {
        0 => {}
        1 => visible.iter_mut().for_each(|process| process.used_bytes = NOT_AVAILABLE),
        _ => visible.clear(),
    }
    visible
}

/// All that hold memory there, also those that this process cannot see.
pub(super) fn holders(target: &Target) -> Vec<Process> {
    let gpu = target.gpu();
    let state = gpu.swept();
    let mut found = Vec::new();
    for (slot, process) in state.processes() {
        for domain in target.domains() {
            let held =
                process.held_granules[gpu.index][domain] - process.unattributed_granules[gpu.index][domain];
            if held > 0 {
                found.push(Process {
                    pid: state.pid_of(slot),
                    used_bytes: u64::from(held) * GRANULE_BYTES,
                    gpu_instance: if domain == WHOLE_GPU { NO_INSTANCE } else { domain as u32 - 1 },
                    compute_instance: if domain == WHOLE_GPU { NO_INSTANCE } else { 0 },
                });
            }
        }
    }
    found
}

/// Those that are no clients of MPS.
fn computing(target: &Target) -> Vec<Process> {
    if is_on(Setting::Mps) { Vec::new() } else { running(target) }
}

/// Clients of MPS.
fn clients(target: &Target) -> Vec<Process> {
    if is_on(Setting::Mps) { running(target) } else { Vec::new() }
}

/// NVML's protocol for lists: the count is read and written, and a buffer that is too small gets only the count that it needs.
pub(super) fn list<T>(count: Out<u32>, buffer: Out<T>, items: Vec<T>) -> NvmlResult {
    let capacity = count.get()? as usize;
    count.set(items.len() as u32)?;
    if items.len() > capacity {
        return Err(NvmlError::INSUFFICIENT_SIZE);
    }
    if !items.is_empty() {
        buffer.fill(capacity, items)?;
    }
    Ok(())
}

/// Only callers who may see all processes get those of a GPU in MIG mode.
fn permitted(target: &Target) -> NvmlResult {
    let is_parent = matches!(target, Target::Gpu(gpu) if gpu.device().mig_enabled != 0);
    if is_parent && is_on(Setting::Unprivileged) { Err(NvmlError::NO_PERMISSION) } else { Ok(()) }
}

fn earlier<T: From<Process>>(
    device: Handle,
    count: Out<u32>,
    buffer: Out<T>,
    rows: fn(&Target) -> Vec<Process>,
) -> NvmlResult {
    let target = target(device)?;
    permitted(&target)?;
    list(count, buffer, rows(&target).into_iter().map(T::from).collect())
}

/// The third version of a list, as this driver has it.
fn third(
    device: Handle,
    count: Out<u32>,
    buffer: Out<Process>,
    rows: fn(&Target) -> Vec<Process>,
) -> NvmlResult {
    let target = target(device)?;
    permitted(&target)?;
    let rows = rows(&target);
    match third_lists(target.gpu().sim) {
        ThirdLists::Missing => Err(NvmlError::FUNCTION_NOT_FOUND),
        ThirdLists::Short => list(count, buffer, rows),
        ThirdLists::Long => {
            let long = |process| LongProcess { process, protected_bytes: 0 };
            list(count, Out(buffer.0.cast()), rows.into_iter().map(long).collect())
        }
    }
}

/// No process draws.
fn list_none<T>(device: Handle, count: Out<u32>, buffer: Out<T>) -> NvmlResult {
    target(device)?;
    list(count, buffer, Vec::new())
}

nvml_api! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        earlier(device, count, buffer, computing)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        earlier(device, count, buffer, computing)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        third(device, count, buffer, computing)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        third(device, count, buffer, |_| Vec::new())
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        earlier(device, count, buffer, clients)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        earlier(device, count, buffer, clients)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        third(device, count, buffer, clients)
    }
    fn nvmlDeviceGetRunningProcessDetailList(device: Handle, list: Out<DetailList>) {
        let mut asked = list.get()?;
        if asked.version != version_word::<DetailList>(1) {
            return Err(NvmlError::ARGUMENT_VERSION_MISMATCH);
        }
        let rows = match asked.mode {
            COMPUTE | ALL => running(&target(device)?),
            _ if asked.mode < ALL => Vec::new(),
            _ => return Err(NvmlError::INVALID_ARGUMENT),
        };
        let count = Out(&raw mut asked.count);
        let listed = self::list(count, Out(asked.rows), rows.into_iter().map(Detail::from).collect());
        list.set(asked)?;
        listed
    }
}
