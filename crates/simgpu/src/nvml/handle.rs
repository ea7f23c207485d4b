//! `nvmlDevice_t`: no pointer, but a number that says which GPU is meant.

use super::session::sim;
use super::{NvmlError, NvmlResult};
use crate::models::Model;
use crate::state::Sim;

/// What C holds.
pub(super) type Handle = usize;

const BASE: Handle = 0xC0DE_0000_0000;
const STEP: Handle = 0x1000;

/// A GPU of the machine.
#[derive(Clone, Copy)]
pub(super) struct Gpu {
    pub(super) sim: &'static Sim,
    pub(super) index: usize,
    pub(super) model: &'static Model,
}

/// The handle of GPU `index`.
pub(super) fn of_gpu(index: usize) -> Handle {
    BASE + index * STEP
}

/// The GPU that a handle names.
pub(super) fn gpu(handle: Handle) -> NvmlResult<Gpu> {
    let sim = sim()?;
    let offset = handle.checked_sub(BASE).filter(|offset| offset % STEP == 0);
    let index = offset.ok_or(NvmlError::INVALID_ARGUMENT)? / STEP;
    let device = sim.lock().devices().get(index).copied().ok_or(NvmlError::INVALID_ARGUMENT)?;
    Ok(Gpu { sim, index, model: device.model() })
}

impl Gpu {
    /// Granules in use on the GPU, by all its domains.
    pub(super) fn used_granules(&self) -> u64 {
        self.sim.swept().devices()[self.index].used_granules.iter().map(|&g| u64::from(g)).sum()
    }
}
