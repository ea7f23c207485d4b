//! Utilization per process. For a process whose kernels take time, it is the part of the last period that its engines
//! report. Otherwise it is invented: every process that holds memory computes, and all of them share the GPU evenly. Each
//! process has one sample, one period after the last one that the caller names.

use super::handle::{Handle, Target, gpu};
use super::process::{holders, list, running};
use super::{NvmlError, NvmlResult, nvml_api, version_word};
use crate::ffi::Out;
use crate::time::{Engine, EngineId, PERIOD_NS, Process, view};

const PERIOD_US: u64 = PERIOD_NS / 1000;

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
    let gpu = gpu(device)?;
    if gpu.device().mig_enabled == 1 {
        return Err(NvmlError::NOT_SUPPORTED);
    }
    let target = Target::Gpu(gpu);
    let processes = running(&target);
    if processes.is_empty() {
        return Err(NvmlError::NOT_FOUND);
    }
    let measured = Measured::of(&target);
    let share = 100 / holders(&target).len().max(1) as u32;
    let percent = |pid| measured.as_ref().map_or(share, |measured| measured.percent_of(pid));
    let sample = |pid| Sample {
        pid,
        time_us: since_us.saturating_add(PERIOD_US),
        multiprocessors: percent(pid),
        memory: percent(pid) / 2,
        encoder: 0,
        decoder: 0,
    };
    Ok(processes.into_iter().map(|process| sample(process.pid)).collect())
}

/// The work of a device's engines in the last period.
pub(super) struct Measured {
    /// Of the busiest engine: instances of a GPU have one each.
    pub(super) percent: u32,
    processes: Vec<(u32, u32)>,
}

impl Measured {
    /// `None` if no kernel that takes time ever ran there.
    pub(super) fn of(target: &Target) -> Option<Self> {
        let gpu = target.gpu();
        let engine = |domain| view(gpu.sim, EngineId { device: gpu.index, domain });
        let engines: Vec<Engine> = target.domains().map(engine).collect();
        let state = gpu.sim.lock();
        let of_process = |process: &Process| (state.pid_of(process.slot), process.utilization_percent());
        let processes: Vec<_> = engines.iter().flat_map(|engine| &engine.processes).map(of_process).collect();
        let percent = engines.iter().map(Engine::utilization_percent).max()?;
        engines.iter().any(Engine::was_used).then_some(Self { percent, processes })
    }

    fn percent_of(&self, pid: u32) -> u32 {
        self.processes.iter().filter(|(found, _)| *found == pid).map(|(_, percent)| percent).sum()
    }
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
