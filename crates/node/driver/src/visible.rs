//! The GPUs that CUDA shows to this process through the filters: a task checks with it whether its limits are enforced.

use std::ffi::{c_int, c_uint};

use libloading::{Library, Symbol};

/// UUID and total memory in bytes of each device that CUDA shows to this process, found the way any program finds it
/// (`libcuda.so.1` by name). Empty if there is no driver or no device.
#[must_use]
pub fn visible_memory() -> Vec<([u8; 16], u64)> {
    // SAFETY: runs the constructors of the driver's library, which ask nothing of the process that loads it.
    let Ok(lib) = (unsafe { Library::new("libcuda.so.1") }) else { return Vec::new() };
    devices(&lib).unwrap_or_default()
}

fn devices(lib: &Library) -> Option<Vec<([u8; 16], u64)>> {
    let init: Symbol<'_, unsafe extern "C" fn(c_uint) -> c_int> = symbol(lib, b"cuInit\0")?;
    let count_of: Symbol<'_, unsafe extern "C" fn(*mut c_int) -> c_int> = symbol(lib, b"cuDeviceGetCount\0")?;
    let get: Symbol<'_, unsafe extern "C" fn(*mut c_int, c_int) -> c_int> = symbol(lib, b"cuDeviceGet\0")?;
    let uuid_of: Symbol<'_, unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int> =
        symbol(lib, b"cuDeviceGetUuid\0")?;
    let total_of: Symbol<'_, unsafe extern "C" fn(*mut usize, c_int) -> c_int> =
        symbol(lib, b"cuDeviceTotalMem_v2\0")?;
    let mut count = 0;
    // SAFETY: no pointers; 0 is the only value that the flags may have.
    ok(unsafe { init(0) })?;
    // SAFETY: `count` is a live local to which one integer is written.
    ok(unsafe { count_of(&raw mut count) })?;
    let one = |ordinal| {
        let (mut device, mut uuid, mut total) = (0, [0u8; 16], 0usize);
        // SAFETY: `device` is a live local to which one integer is written; the driver refuses a wrong ordinal.
        ok(unsafe { get(&raw mut device, ordinal) })?;
        // SAFETY: `uuid` is a live local of 16 bytes, the size of a `CUuuid`, which is all that is written.
        ok(unsafe { uuid_of(&raw mut uuid, device) })?;
        // SAFETY: `total` is a live local to which one size is written.
        ok(unsafe { total_of(&raw mut total, device) })?;
        Some((uuid, u64::try_from(total).ok()?))
    };
    (0..count).map(one).collect()
}

fn ok(code: c_int) -> Option<()> {
    (code == 0).then_some(())
}

/// A function of the library. `T` must be its type, as CUDA's header declares it.
fn symbol<'lib, T>(lib: &'lib Library, name: &[u8]) -> Option<Symbol<'lib, T>> {
    // SAFETY: `T` is the function's type: `devices`, the only caller, writes the types down from CUDA's header.
    unsafe { lib.get(name) }.ok()
}
