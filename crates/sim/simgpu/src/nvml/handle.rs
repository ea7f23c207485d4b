//! NVML's handles: not pointers, but numbers that name a GPU, MIG device, GPU instance or compute instance.

use super::faults::happen;
use super::session::sim;
use super::{NvmlError, NvmlResult};
use crate::models::Model;
use crate::state::{MAX_DOMAINS, Sim, SimGpu, StateGuard};

/// A handle as C programs have it.
pub(super) type Handle = usize;

/// One range of handles for each type, in it one step per GPU, in that GPU instance and compute instance (plus 1 each).
const DEVICES: Handle = 0xC0DE_0000_0000;
const GPU_INSTANCES: Handle = 0xC1DE_0000_0000;
const COMPUTE_INSTANCES: Handle = 0xC2DE_0000_0000;
const GPU_STEP: usize = 0x1000;
const INSTANCE_STEP: usize = 0x10;

/// A GPU of the machine.
#[derive(Clone, Copy)]
pub(super) struct Gpu {
    pub(super) sim: &'static Sim,
    pub(super) index: usize,
    pub(super) model: &'static Model,
}

/// A GPU instance, and in it perhaps a compute instance.
#[derive(Clone, Copy)]
pub(super) struct MigTarget {
    pub(super) gpu: Gpu,
    pub(super) instance: usize,
    pub(super) compute: usize,
}

/// The kinds of `nvmlDevice_t`.
#[derive(Clone, Copy)]
pub(super) enum Target {
    Gpu(Gpu),
    Mig(MigTarget),
}

/// The handle of GPU `index`.
pub(super) fn of_gpu(index: usize) -> Handle {
    DEVICES + index * GPU_STEP
}

fn of_place(base: Handle, gpu: usize, instance: usize, compute: Option<usize>) -> Handle {
    base + gpu * GPU_STEP + (instance + 1) * INSTANCE_STEP + compute.map_or(0, |c| c + 1)
}

/// The device handle of a MIG device.
pub(super) fn of_mig_device(gpu: usize, instance: usize, compute: usize) -> Handle {
    of_place(DEVICES, gpu, instance, Some(compute))
}

/// The handle of a GPU instance.
pub(super) fn of_gpu_instance(gpu: usize, instance: usize) -> Handle {
    of_place(GPU_INSTANCES, gpu, instance, None)
}

/// The handle of a compute instance.
pub(super) fn of_compute_instance(gpu: usize, instance: usize, compute: usize) -> Handle {
    of_place(COMPUTE_INSTANCES, gpu, instance, Some(compute))
}

/// GPU, and instance numbers plus 1. The GPU exists; a scripted fault of the call happens here.
fn parse(base: Handle, handle: Handle) -> NvmlResult<(Gpu, usize, usize)> {
    let sim = sim()?;
    let offset = handle.checked_sub(base).ok_or(NvmlError::INVALID_ARGUMENT)?;
    let index = offset / GPU_STEP;
    let device = sim.lock().devices().get(index).copied().ok_or(NvmlError::INVALID_ARGUMENT)?;
    happen(sim, index)?;
    let (instance, compute) = (offset % GPU_STEP / INSTANCE_STEP, offset % INSTANCE_STEP);
    Ok((Gpu { sim, index, model: device.model() }, instance, compute))
}

/// The GPU or living MIG device that a handle names.
pub(super) fn target(handle: Handle) -> NvmlResult<Target> {
    match parse(DEVICES, handle)? {
        (gpu, 0, 0) => Ok(Target::Gpu(gpu)),
        (gpu, i, c) if i > 0 && c > 0 => {
            living(MigTarget { gpu, instance: i - 1, compute: c - 1 }).map(Target::Mig)
        }
        _ => Err(NvmlError::INVALID_ARGUMENT),
    }
}

/// The GPU that a handle names; a MIG device is none.
pub(super) fn gpu(handle: Handle) -> NvmlResult<Gpu> {
    match target(handle)? {
        Target::Gpu(gpu) => Ok(gpu),
        Target::Mig(_) => Err(NvmlError::NOT_SUPPORTED),
    }
}

/// The living GPU instance that a handle names.
pub(super) fn gpu_instance(handle: Handle) -> NvmlResult<MigTarget> {
    let (gpu, instance, _) = parse(GPU_INSTANCES, handle)?;
    let instance = instance.checked_sub(1).ok_or(NvmlError::INVALID_ARGUMENT)?;
    gpu.device().instance(instance)?;
    Ok(MigTarget { gpu, instance, compute: 0 })
}

/// The living compute instance that a handle names.
pub(super) fn compute_instance(handle: Handle) -> NvmlResult<MigTarget> {
    match parse(COMPUTE_INSTANCES, handle)? {
        (gpu, i, c) if i > 0 && c > 0 => living(MigTarget { gpu, instance: i - 1, compute: c - 1 }),
        _ => Err(NvmlError::INVALID_ARGUMENT),
    }
}

fn living(place: MigTarget) -> NvmlResult<MigTarget> {
    let device = place.gpu.device();
    let exists = device.compute_instances(place.instance)?.any(|(found, ..)| found == place.compute);
    if exists { Ok(place) } else { Err(NvmlError::INVALID_ARGUMENT) }
}

impl Gpu {
    /// A copy of the GPU's state.
    pub(super) fn device(&self) -> SimGpu {
        self.sim.lock().devices()[self.index]
    }

    /// The machine's state, to be changed, after what dead processes held was given back.
    pub(super) fn swept(&self) -> StateGuard {
        self.sim.swept()
    }
}

impl Target {
    pub(super) fn gpu(&self) -> Gpu {
        match *self {
            Self::Gpu(gpu) => gpu,
            Self::Mig(place) => place.gpu,
        }
    }

    /// The memory domains that belong to it.
    pub(super) fn domains(&self) -> std::ops::Range<usize> {
        match *self {
            Self::Gpu(_) => 0..MAX_DOMAINS,
            Self::Mig(place) => {
                let domain = SimGpu::domain_of(place.instance);
                domain..domain + 1
            }
        }
    }

    /// Granules in use in those domains.
    pub(super) fn used_granules(&self) -> u64 {
        let state = self.gpu().swept();
        state.devices()[self.gpu().index].used_granules[self.domains()].iter().map(|&g| u64::from(g)).sum()
    }
}
