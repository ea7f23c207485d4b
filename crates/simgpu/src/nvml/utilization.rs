//! Use of the engines by process. Simulated: a process that holds memory computes, and all that do share the GPU evenly. There is
//! one sample of each, one period after the last one that the caller names.

use super::handle::{Handle, Target, gpu};
use super::process::{list, running};
use super::{NvmlError, NvmlResult, nvml_api, version_word};
use crate::ffi::Out;

const PERIOD_US: u64 = 100_000;

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pid: u32,
    time_us: u64,
    multiprocessors: u32,
    memory: u32,
    encoder: u32,
    decoder: u32,
}

/// `nvmlProcessUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Info {
    time_us: u64,
    pid: u32,
    multiprocessors: u32,
    memory: u32,
    encoder: u32,
    decoder: u32,
    jpeg: u32,
    optical_flow: u32,
}

/// `nvmlProcessesUtilizationInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Infos {
    version: u32,
    count: u32,
    since_us: u64,
    rows: *mut Info,
}

fn samples(device: Handle, since_us: u64) -> NvmlResult<Vec<Sample>> {
    let processes = running(&Target::Gpu(gpu(device)?));
    if processes.is_empty() {
        return Err(NvmlError::NOT_FOUND);
    }
    let share = 100 / processes.len() as u32;
    let sample = |pid| Sample {
        pid,
        time_us: since_us.saturating_add(PERIOD_US),
        multiprocessors: share,
        memory: share / 2,
        encoder: 0,
        decoder: 0,
    };
    Ok(processes.into_iter().map(|process| sample(process.pid)).collect())
}

impl From<Sample> for Info {
    fn from(sample: Sample) -> Self {
        let Sample { pid, time_us, multiprocessors, memory, encoder, decoder } = sample;
        Self { time_us, pid, multiprocessors, memory, encoder, decoder, jpeg: 0, optical_flow: 0 }
    }
}

nvml_api! {
    fn nvmlDeviceGetProcessUtilization(device: Handle, buffer: Out<Sample>, count: Out<u32>, since_us: u64) {
        list(count, buffer, samples(device, since_us)?)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(device: Handle, infos: Out<Infos>) {
        let mut asked = infos.get()?;
        if asked.version != version_word::<Infos>(1) {
            return Err(NvmlError::ARGUMENT_VERSION_MISMATCH);
        }
        let rows = samples(device, asked.since_us)?.into_iter().map(Info::from).collect();
        let listed = list(Out(&raw mut asked.count), Out(asked.rows), rows);
        infos.set(asked)?;
        listed
    }
}
