//! The processes that were busy on a GPU.

use std::ffi::c_uint;

use cantle_model::GpuUuid;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlProcessUtilizationSample_t, nvmlReturn_t};

use super::{NVML_ERROR_INSUFFICIENT_SIZE, Session};
use crate::{DriverError, Result};

const NVML_ERROR_NOT_FOUND: nvmlReturn_t = 6;
/// Processes that may appear between two calls.
const SPARE_SAMPLES: usize = 16;

impl Session {
    /// See [`crate::Driver::busy_processes`].
    pub(super) fn busy_since(&self, handle: nvmlDevice_t, gpu: &GpuUuid, since_us: u64) -> Result<Vec<u32>> {
        let empty = nvmlProcessUtilizationSample_t {
            pid: 0,
            timeStamp: 0,
            smUtil: 0,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let mut samples = Vec::new();
        loop {
            let mut count = c_uint::try_from(samples.len()).unwrap_or(c_uint::MAX);
            // NVML counts them when there is no buffer, and refuses an empty one.
            let buffer = if samples.is_empty() { std::ptr::null_mut() } else { samples.as_mut_ptr() };
            let asked = nvml!(
                self,
                Some(gpu),
                nvmlDeviceGetProcessUtilization(handle, buffer, &raw mut count, since_us)
            );
            match asked {
                Ok(()) => samples.truncate(count as usize),
                Err(DriverError::Nvml { code: NVML_ERROR_INSUFFICIENT_SIZE, .. }) => {
                    samples.resize(count as usize + SPARE_SAMPLES, empty);
                    continue;
                }
                // No process was busy.
                Err(DriverError::Nvml { code: NVML_ERROR_NOT_FOUND, .. }) => samples.clear(),
                Err(error) => return Err(error),
            }
            let is_busy = |sample: &nvmlProcessUtilizationSample_t| {
                sample.smUtil | sample.memUtil | sample.encUtil | sample.decUtil != 0
            };
            return Ok(samples.into_iter().filter(is_busy).map(|sample| sample.pid).collect());
        }
    }
}
