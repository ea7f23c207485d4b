//! Events: sets can be made and waited for. The only events are scripted Xid errors (see `faults`).

use std::time::Duration;

use super::faults::next_xid;
use super::handle::{Handle, gpu, of_gpu};
use super::session::sim;
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::Out;

/// The one event set there is; it holds nothing.
const EVENT_SET: usize = 0xC0DE_E000;

fn known(set: usize) -> NvmlResult {
    sim()?;
    if set == EVENT_SET { Ok(()) } else { Err(NvmlError::INVALID_ARGUMENT) }
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
    known(set)?;
    let sim = sim()?;
    let mut left = Duration::from_millis(u64::from(timeout_ms));
    loop {
        if let Some((gpu, data)) = next_xid(sim) {
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
        Ok(set.set(EVENT_SET)?)
    }

    fn nvmlEventSetFree(set: usize) { known(set) }

    fn nvmlEventSetWait(set: usize, event: Out<EventData>, timeout_ms: u32) { wait(set, event, timeout_ms) }

    fn nvmlEventSetWait_v2(set: usize, event: Out<EventData>, timeout_ms: u32) { wait(set, event, timeout_ms) }

    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) {
        gpu(device)?;
        Ok(types.set(EVENT_XID)?)
    }

    fn nvmlDeviceRegisterEvents(device: Handle, _types: u64, set: usize) {
        gpu(device)?;
        known(set)
    }
}
