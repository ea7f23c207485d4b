//! The context that a call works in: the thread's current one or, for a thread that has none, its device's primary context.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use super::driver::{DriverFunction, driver};
use super::{CudaError, CudaResult, VERSION};
use crate::private_table::{ID, PrivateTable};

thread_local! {
    static DEVICE: Cell<i32> = const { Cell::new(0) };
    /// The generation in which this thread has entered a primary context.
    static ENTERED: Cell<u64> = const { Cell::new(0) };
}

/// Counts resets of devices: contexts of earlier generations may be gone.
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Primary contexts that this library holds, by device.
static HELD: Mutex<Vec<(i32, usize)>> = Mutex::new(Vec::new());

/// `cuInit`, once; as the runtime does, it wants a driver that is as new as its own major version.
pub(super) fn init() -> CudaResult {
    static DONE: OnceLock<CudaResult> = OnceLock::new();
    *DONE.get_or_init(|| {
        let mut version = 0;
        driver!(cuDriverGetVersion(&raw mut version => *mut i32))
            .map_err(|_| CudaError::INSUFFICIENT_DRIVER)?;
        if version / 1000 < VERSION / 1000 {
            return Err(CudaError::INSUFFICIENT_DRIVER);
        }
        driver!(cuInit(0 => u32))
    })
}

/// The thread's current context as the driver has it; 0: none.
pub(super) fn current() -> CudaResult<usize> {
    let mut context = 0;
    driver!(cuCtxGetCurrent(&raw mut context => *mut usize))?;
    Ok(context)
}

/// Sees to it that the thread has a current context.
pub(super) fn enter() -> CudaResult {
    init()?;
    let generation = GENERATION.load(Ordering::Relaxed);
    if current()? != 0 && (ENTERED.get() == 0 || ENTERED.get() == generation) {
        return Ok(());
    }
    enter_primary(DEVICE.get())
}

/// Makes a device's primary context current to this thread.
pub(super) fn enter_primary(device: i32) -> CudaResult {
    init()?;
    let mut held = HELD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let context = match held.iter().find(|(of, _)| *of == device) {
        Some((_, context)) => *context,
        None => {
            let context = retain(device)?;
            held.push((device, context));
            context
        }
    };
    driver!(cuCtxSetCurrent(context => usize))?;
    DEVICE.set(device);
    ENTERED.set(GENERATION.load(Ordering::Relaxed));
    Ok(())
}

/// NVIDIA's runtime takes the primary context through a private table of NVIDIA's driver, invisible to any library in front
/// of the driver's exported functions. So does this library, through a table of the simulated driver's own.
fn retain(device: i32) -> CudaResult<usize> {
    static TABLE: DriverFunction = DriverFunction::new("cuGetExportTable\0");
    let (mut context, mut table): (usize, *const PrivateTable) = (0, std::ptr::null());
    let found = TABLE.get()?;
    type GetExportTable = unsafe extern "C" fn(*mut *const PrivateTable, *const [u8; 16]) -> i32;
    // SAFETY: the driver gave `found` for this name, whose signature this is; both pointers are to values that live longer.
    let code =
        unsafe { std::mem::transmute::<*mut c_void, GetExportTable>(found)(&raw mut table, &raw const ID) };
    if code != 0 || table.is_null() {
        driver!(cuDevicePrimaryCtxRetain(&raw mut context => *mut usize, device => i32))?;
        return Ok(context);
    }
    // SAFETY: only the simulated driver knows this id; what it returns for it is a table of this layout with the lifetime
    // of the process.
    let retain = unsafe { (*table).primary_context_retain };
    super::driver::check(retain(crate::ffi::Out(&raw mut context), device))?;
    Ok(context)
}

/// Ends a device's primary context and with it all that was made there.
pub(super) fn reset() -> CudaResult {
    let device = device()?;
    driver!(cuDevicePrimaryCtxReset(device => i32))?;
    let mut held = HELD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    held.retain(|(of, _)| *of != device);
    GENERATION.fetch_add(1, Ordering::Relaxed);
    super::kernel::forget_loaded();
    driver!(cuCtxSetCurrent(0 => usize))
}

/// The device that calls of this thread mean.
pub(super) fn device() -> CudaResult<i32> {
    init()?;
    if current()? == 0 || (ENTERED.get() != 0 && ENTERED.get() != GENERATION.load(Ordering::Relaxed)) {
        return Ok(DEVICE.get());
    }
    let mut device = 0;
    driver!(cuCtxGetDevice(&raw mut device => *mut i32))?;
    Ok(device)
}
