//! Which processes use a GPU.

use super::handle::{Handle, Target, target};
use super::{NvmlError, NvmlResult, nvml_api};
use crate::GRANULE_BYTES;
use crate::ffi::Out;
use crate::state::WHOLE_GPU;

/// GPU or compute instance of a process outside MIG.
const NO_INSTANCE: u32 = u32::MAX;

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

impl From<Process> for ProcessV1 {
    fn from(p: Process) -> Self {
        Self { pid: p.pid, used_bytes: p.used_bytes }
    }
}

/// The processes that hold memory of a GPU or MIG device, and with it a context.
pub(super) fn running(target: &Target) -> Vec<Process> {
    let gpu = target.gpu();
    let state = gpu.swept();
    let mut found = Vec::new();
    for (slot, process) in state.processes() {
        for domain in target.domains() {
            let held = process.held_granules[gpu.index][domain];
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

/// NVML's way with lists: the count goes both ways, and a short buffer gets only the count that would do.
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

fn list_running<T: From<Process>>(device: Handle, count: Out<u32>, buffer: Out<T>) -> NvmlResult {
    let running = running(&target(device)?);
    list(count, buffer, running.into_iter().map(T::from).collect())
}

/// Nothing draws, and nobody uses MPS.
fn list_none<T>(device: Handle, count: Out<u32>, buffer: Out<T>) -> NvmlResult {
    target(device)?;
    list(count, buffer, Vec::new())
}

nvml_api! {
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        list_running(device, count, buffer)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_running(device, count, buffer)
    }
    fn nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_running(device, count, buffer)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: Out<u32>, buffer: Out<ProcessV1>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_none(device, count, buffer)
    }
    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<u32>, buffer: Out<Process>) {
        list_none(device, count, buffer)
    }
}
