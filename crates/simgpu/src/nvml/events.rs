//! Events: sets can be made and waited for, and nothing ever happens.

use std::time::Duration;

use super::handle::{Handle, gpu};
use super::session::sim;
use super::{NvmlError, NvmlResult, nvml_api};
use crate::ffi::Out;

/// The one event set there is; it holds nothing.
const EVENT_SET: usize = 0xC0DE_E000;

fn known(set: usize) -> NvmlResult {
    sim()?;
    if set == EVENT_SET { Ok(()) } else { Err(NvmlError::INVALID_ARGUMENT) }
}

fn wait(set: usize, timeout_ms: u32) -> NvmlResult {
    known(set)?;
    std::thread::sleep(Duration::from_millis(u64::from(timeout_ms)));
    Err(NvmlError::TIMEOUT)
}

nvml_api! {
    fn nvmlEventSetCreate(set: Out<usize>) {
        sim()?;
        Ok(set.set(EVENT_SET)?)
    }

    fn nvmlEventSetFree(set: usize) { known(set) }

    fn nvmlEventSetWait(set: usize, _event: usize, timeout_ms: u32) { wait(set, timeout_ms) }

    fn nvmlEventSetWait_v2(set: usize, _event: usize, timeout_ms: u32) { wait(set, timeout_ms) }

    fn nvmlDeviceGetSupportedEventTypes(device: Handle, types: Out<u64>) {
        gpu(device)?;
        Ok(types.set(0)?)
    }

    fn nvmlDeviceRegisterEvents(device: Handle, _types: u64, set: usize) {
        gpu(device)?;
        known(set)
    }
}
