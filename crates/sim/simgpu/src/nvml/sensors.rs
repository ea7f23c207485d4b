//! Utilization, power, temperature, clocks and modes. All of it simulated, see the module above.

use super::handle::{Gpu, Handle, Target, gpu};
use super::utilization::Measured;
use super::{NvmlError, NvmlResult, nvml_api};
use crate::GRANULE_BYTES;
use crate::ffi::Out;

const IDLE_C: u32 = 35;
const BUSY_C: u32 = 62;
const SLOWDOWN_C: u32 = 90;
const IDLE_POWER_PERCENT: u32 = 15;
const BUSY_POWER_PERCENT: u32 = 60;
const IDLE_CLOCK_DIVISOR: u32 = 4;
const SAMPLING_PERIOD_US: u32 = 100_000;
const CLOCK_MEMORY: u32 = 2;

/// `nvmlUtilization_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Utilization {
    gpu: u32,
    memory: u32,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency_us: i64,
    value_type: u32,
    result: i32,
    value: u64,
}

fn busy(gpu: &Gpu) -> bool {
    percent(gpu) > 0
}

/// As measured, if kernels take time; else a GPU with a context is busy.
fn percent(gpu: &Gpu) -> u32 {
    let target = Target::Gpu(*gpu);
    let simulated = || if target.used_granules() > 0 { 100 } else { 0 };
    Measured::of(&target).map_or_else(simulated, |measured| measured.percent)
}

fn with(device: Handle, out: Out<u32>, value: impl FnOnce(&Gpu) -> u32) -> NvmlResult {
    let gpu = gpu(device)?;
    Ok(out.set(value(&gpu))?)
}

fn power_limit_mw(gpu: &Gpu) -> u32 {
    gpu.model.power_limit_w * 1000
}

fn clock_mhz(gpu: &Gpu, which: u32) -> u32 {
    let (sm, memory) = gpu.model.clocks_mhz;
    if which == CLOCK_MEMORY { memory } else { sm }
}

/// Encoders and decoders are always idle.
fn media(device: Handle, utilization: Out<u32>, period_us: Out<u32>) -> NvmlResult {
    gpu(device)?;
    utilization.set(0)?;
    Ok(period_us.set(SAMPLING_PERIOD_US)?)
}

nvml_api! {
    fn nvmlDeviceGetUtilizationRates(device: Handle, out: Out<Utilization>) {
        let gpu = gpu(device)?;
        let used_bytes = Target::Gpu(gpu).used_granules() * GRANULE_BYTES;
        let memory = (used_bytes * 100 / gpu.model.memory_bytes()) as u32;
        Ok(out.set(Utilization { gpu: percent(&gpu), memory })?)
    }
    fn nvmlDeviceGetEncoderUtilization(device: Handle, utilization: Out<u32>, period_us: Out<u32>) {
        media(device, utilization, period_us)
    }
    fn nvmlDeviceGetDecoderUtilization(device: Handle, utilization: Out<u32>, period_us: Out<u32>) {
        media(device, utilization, period_us)
    }
    fn nvmlDeviceGetTemperature(device: Handle, _sensor: u32, celsius: Out<u32>) {
        with(device, celsius, |gpu| if busy(gpu) { BUSY_C } else { IDLE_C })
    }
    fn nvmlDeviceGetTemperatureThreshold(device: Handle, _which: u32, celsius: Out<u32>) {
        with(device, celsius, |_| SLOWDOWN_C)
    }
    fn nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<u32>) {
        with(device, milliwatts, |gpu| {
            power_limit_mw(gpu) / 100 * if busy(gpu) { BUSY_POWER_PERCENT } else { IDLE_POWER_PERCENT }
        })
    }
    fn nvmlDeviceGetPowerManagementLimit(device: Handle, milliwatts: Out<u32>) {
        with(device, milliwatts, power_limit_mw)
    }
    fn nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: Out<u32>) {
        with(device, milliwatts, power_limit_mw)
    }
    fn nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: Out<u32>) {
        with(device, milliwatts, power_limit_mw)
    }
    fn nvmlDeviceGetPowerState(device: Handle, state: Out<u32>) { with(device, state, |gpu| if busy(gpu) { 0 } else { 8 }) }
    fn nvmlDeviceGetPerformanceState(device: Handle, state: Out<u32>) {
        with(device, state, |gpu| if busy(gpu) { 0 } else { 8 })
    }
    fn nvmlDeviceGetClockInfo(device: Handle, which: u32, mhz: Out<u32>) {
        with(device, mhz, |gpu| clock_mhz(gpu, which) / if busy(gpu) { 1 } else { IDLE_CLOCK_DIVISOR })
    }
    fn nvmlDeviceGetMaxClockInfo(device: Handle, which: u32, mhz: Out<u32>) {
        with(device, mhz, |gpu| clock_mhz(gpu, which))
    }
    fn nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<u32>) { with(device, mode, |_| 1) }
    fn nvmlDeviceGetComputeMode(device: Handle, mode: Out<u32>) { with(device, mode, |_| 0) }
    fn nvmlDeviceGetDisplayMode(device: Handle, mode: Out<u32>) { with(device, mode, |_| 0) }
    fn nvmlDeviceGetDisplayActive(device: Handle, active: Out<u32>) { with(device, active, |_| 0) }
    fn nvmlDeviceGetEccMode(device: Handle, current: Out<u32>, pending: Out<u32>) {
        with(device, current, |_| 1)?;
        Ok(pending.set(1)?)
    }
    fn nvmlDeviceGetTotalEccErrors(device: Handle, _kind: u32, _counter: u32, count: Out<u64>) {
        gpu(device)?;
        Ok(count.set(0)?)
    }
    fn nvmlDeviceGetPcieThroughput(device: Handle, _direction: u32, kib_per_s: Out<u32>) {
        with(device, kib_per_s, |_| 0)
    }
    fn nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: Out<u32>) {
        with(device, generation, |gpu| if gpu.model.capability.0 >= 9 { 5 } else { 4 })
    }
    fn nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: Out<u32>) {
        with(device, generation, |gpu| if gpu.model.capability.0 >= 9 { 5 } else { 4 })
    }
    fn nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Out<u32>) { with(device, lanes, |_| 16) }
    fn nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<u32>) { with(device, lanes, |_| 16) }

    /// Field values are not simulated; as in the real library, each field has a status of its own that says so.
    fn nvmlDeviceGetFieldValues(device: Handle, count: i32, values: Out<FieldValue>) {
        gpu(device)?;
        let count = usize::try_from(count).map_err(|_| NvmlError::INVALID_ARGUMENT)?;
        let asked = crate::ffi::In(values.0.cast_const()).get_all(count)?;
        let answered = asked.into_iter().map(|v| FieldValue { result: NvmlError::NOT_SUPPORTED.0, ..v });
        Ok(values.fill(count, answered.collect::<Vec<_>>())?)
    }
}
