//! Events that the driver reports about a GPU. Each GPU has an event set of its own, so that a hanging GPU does not
//! delay the others.

use std::ptr;

use nvml_wrapper_sys::bindings::{nvmlEventData_t, nvmlEventSet_t};

use super::*;
use crate::Xid;

/// `nvmlEventTypeXidCriticalError`.
const XID_CRITICAL_ERROR: u64 = 8;
const NVML_ERROR_TIMEOUT: nvmlReturn_t = 10;
/// At one poll: a GPU that reports without end is not waited for.
const AT_ONCE: usize = 32;

/// NVML's set of events that one GPU reports into.
pub(super) struct EventSet(nvmlEventSet_t);

// SAFETY: the pointer is NVML's own handle, never dereferenced here; NVML's functions may be called by any thread.
unsafe impl Send for EventSet {}
// SAFETY: the pointer is never dereferenced here; NVML orders the calls that wait for one set itself.
unsafe impl Sync for EventSet {}

impl Session {
    /// A new set; `None` where the GPU or its driver reports no Xids.
    fn event_set(&self, gpu: &GpuUuid) -> Result<Option<EventSet>> {
        let handle = self.device(gpu)?;
        let mut types = 0;
        let supported = nvml!(self, Some(gpu), nvmlDeviceGetSupportedEventTypes(handle, &raw mut types));
        match supported {
            Ok(()) if types & XID_CRITICAL_ERROR != 0 => {}
            Ok(()) => return Ok(None),
            Err(error) if lacks_function(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut set: nvmlEventSet_t = ptr::null_mut();
        nvml!(self, Some(gpu), nvmlEventSetCreate(&raw mut set))?;
        if let Err(error) = nvml!(self, Some(gpu), nvmlDeviceRegisterEvents(handle, XID_CRITICAL_ERROR, set))
        {
            // The fault is known already.
            let _ = nvml!(self, Some(gpu), nvmlEventSetFree(set));
            return if lacks_function(&error) { Ok(None) } else { Err(error) };
        }
        Ok(Some(EventSet(set)))
    }

    pub(super) fn new_xids(&self, gpu: &GpuUuid) -> Result<Vec<Xid>> {
        let Some(device) = self.devices.get(gpu) else { return Err(DriverError::NoSuchGpu(gpu.clone())) };
        // Only this GPU's thread comes here: no second set is created meanwhile.
        if device.events.get().is_none() {
            let set = self.event_set(gpu)?;
            let _ = device.events.set(set);
        }
        let Some(Some(EventSet(set))) = device.events.get() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        while found.len() < AT_ONCE {
            let mut data = nvmlEventData_t {
                device: ptr::null_mut(),
                eventType: 0,
                eventData: 0,
                gpuInstanceId: 0,
                computeInstanceId: 0,
            };
            match nvml!(self, Some(gpu), nvmlEventSetWait_v2(*set, &raw mut data, 0)) {
                Ok(()) if data.eventType == XID_CRITICAL_ERROR => found.push(Xid(data.eventData)),
                Ok(()) => {}
                Err(DriverError::Nvml { code: NVML_ERROR_TIMEOUT, .. }) => break,
                Err(error) if lacks_function(&error) => break,
                // The events that were read must not be lost; the next poll meets the error again.
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
