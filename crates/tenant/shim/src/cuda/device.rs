//! Devices: which is current, and which GPU of the slice each is.

use super::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::function::Status;
use crate::process::{Process, process};

/// The context that is current in the calling thread, and its device. `None` if there is none: then the driver reports the error.
pub(crate) fn current() -> Option<(Context, Device)> {
    let (mut context, mut device) = (core::ptr::null_mut(), 0);
    // SAFETY: `device` and `context` are live locals of the types that the two functions write.
    let found = unsafe {
        driver::cuCtxGetDevice.get().ok()?(&raw mut device) == SUCCESS
            && driver::cuCtxGetCurrent.get().ok()?(&raw mut context) == SUCCESS
    };
    (found && !context.is_null()).then_some((context, device))
}

/// Index of a device in the slice, by its UUID: ordinals depend on the program's environment. If the driver does not tell the
/// UUID, because it is not initialized or there is no such device, its status is the answer, and the next call asks again.
#[inline]
pub(super) fn gpu_index(process: &Process, device: Device) -> Result<usize, Status> {
    let mut refused = OUT_OF_MEMORY;
    let mut find = || {
        let ledger = process.ledger()?;
        // A MIG instance has a UUID of its own, which only the newer function reports.
        let newer = uuid(device, &driver::cuDeviceGetUuid_v2).map(|uuid| ledger.gpu_index(&uuid));
        if let Ok(Some(index)) = newer {
            return Some(Some(index));
        }
        let older = uuid(device, &driver::cuDeviceGetUuid).map(|uuid| ledger.gpu_index(&uuid));
        older.or(newer).map_err(|status| refused = status).ok()
    };
    let known = usize::try_from(device).ok().and_then(|device| process.devices.get(device));
    let found = match known {
        Some(known) => known.get_or(find),
        None => find().flatten(),
    };
    found.ok_or(refused)
}

type UuidFunction = crate::function::Function<unsafe extern "C" fn(*mut [u8; 16], Device) -> Status>;

fn uuid(device: Device, function: &UuidFunction) -> Result<[u8; 16], Status> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` is a live local of 16 bytes, the size of a `CUuuid`, which is all that the function writes.
    match unsafe { function.get()?(&raw mut uuid, device) } {
        SUCCESS => Ok(uuid),
        status => Err(status),
    }
}

/// The slice's limit on a device; 0 if it is not of the slice or there is no ledger.
pub(crate) fn limit_granules(device: Device) -> u32 {
    let limit = || {
        let process = process()?;
        Some(process.ledger()?.gpus().get(gpu_index(process, device).ok()?)?.limit_granules())
    };
    limit().unwrap_or(0)
}
