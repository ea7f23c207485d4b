//! Events: sets can be made, GPUs registered in them, and events waited for. The only events are scripted Xid errors (see `faults`).
//! A real driver gives each set its own copy of an event; here the first one that asks gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::faults::next_xid;
use super::handle::{Handle, gpu, of_gpu};
use super::session::sim;
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::Out;

/// The handle of the first event set.
const EVENT_SET: usize = 0xC0DE_E000;

/// The GPUs that are registered in each set of this process.
static SETS: Mutex<BTreeMap<usize, BTreeSet<usize>>> = Mutex::new(BTreeMap::new());

fn sets() -> MutexGuard<'static, BTreeMap<usize, BTreeSet<usize>>> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn registered(set: usize) -> Result<BTreeSet<usize>, NvmlError> {
    sim()?;
    sets().get(&set).cloned().ok_or(NvmlError::INVALID_ARGUMENT)
}

const EVENT_XID: u64 = 8;
const NO_INSTANCE: u32 = u32::MAX;
const POLL: Duration = Duration::from_millis(20);

/// `nvmlEventData_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct EventData {
    device: Handle,
    kind: u64,
    data: u64,
    gpu_instance: u32,
    compute_instance: u32,
}

fn wait(set: usize, event: Out<EventData>, timeout_ms: u32) -> NvmlResult {
    let (gpus, sim) = (registered(set)?, sim()?);
    let mut left = Duration::from_millis(u64::from(timeout_ms));
    loop {
        if let Some((gpu, data)) = next_xid(sim, |gpu| gpus.contains(&gpu)) {
            let instances = NO_INSTANCE;
            let device = of_gpu(gpu);
            let xid = EventData {
                device,
                kind: EVENT_XID,
                data,
                gpu_instance: instances,
                compute_instance: instances,
            };
            return Ok(event.set(xid)?);
        }
        if left.is_zero() {
            return Err(NvmlError::TIMEOUT);
        }
        let pause = left.min(POLL);
        std::thread::sleep(pause);
        left -= pause;
    }
}

nvml_api! {
    fn nvmlEventSetCreate(set: Out<usize>) {
        sim()?;
        let mut sets = sets();
        let next = sets.last_key_value().map_or(EVENT_SET, |(last, _)| last + 1);
        sets.insert(next, BTreeSet::new());
        Ok(set.set(next)?)
    }

    fn nvmlEventSetFree(set: usize) {
        sim()?;
        sets().remove(&set).map(drop).ok_or(NvmlError::INVALID_ARGUMENT)
    }

    fn nvmlEventSetWait(set: usize, event: Out<EventData>, timeout_ms: u32) { wait(set, event, timeout_ms) }

    fn nvmlEventSetWait_v2(set: usize, event: Out<EventData>, timeout_ms: u32) { wait(set, event, timeout_ms) }

    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) {
        gpu(device)?;
        Ok(types.set(EVENT_XID)?)
    }

    fn nvmlDeviceRegisterEvents(device: Handle, types: u64, set: usize) {
        let gpu = gpu(device)?.index;
        if types & !EVENT_XID != 0 {
            return Err(NvmlError::NOT_SUPPORTED);
        }
        sets().get_mut(&set).ok_or(NvmlError::INVALID_ARGUMENT)?.insert(gpu);
        Ok(())
    }
}
