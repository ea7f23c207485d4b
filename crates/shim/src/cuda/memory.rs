//! Linear memory: reserves, asks the driver, records the address; and the reverse to free it.

use core::ffi::c_uint;

use super::charge::{self, SliceGpu};
use super::{Address, OUT_OF_MEMORY, SUCCESS, pool_charge};
use crate::function::Status;
use crate::process::process;
use crate::table::Entry;

/// Pitches are multiples of this or less: used for the reservation, before the driver has returned the real pitch.
const PITCH_STEP_BYTES: u64 = 512;

/// The two widths of addresses and sizes in the API.
pub(super) trait Width: Copy {
    fn widen(self) -> u64;
}

impl Width for u64 {
    fn widen(self) -> u64 {
        self
    }
}

impl Width for usize {
    fn widen(self) -> u64 {
        self as u64
    }
}

impl Width for c_uint {
    fn widen(self) -> u64 {
        u64::from(self)
    }
}

pub(super) unsafe fn alloc<A: Width, S: Width>(
    real: unsafe extern "C" fn(*mut A, S) -> Status,
    address: *mut A,
    bytes: S,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged. `charged` reads `address` only after success (out-parameter
    // contract).
    unsafe { charged(bytes.widen(), || real(address, bytes), || (*address).widen()) }
}

pub(super) unsafe fn alloc_managed(
    real: unsafe extern "C" fn(*mut Address, usize, c_uint) -> Status,
    address: *mut Address,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged. `charged` reads `address` only after success (out-parameter
    // contract).
    unsafe { charged(bytes as u64, || real(address, bytes, flags), || *address) }
}

pub(super) unsafe fn alloc_pitch<A: Width, S: Width>(
    real: unsafe extern "C" fn(*mut A, *mut S, S, S, c_uint) -> Status,
    address: *mut A,
    pitch: *mut S,
    width: S,
    height: S,
    element: c_uint,
) -> Status {
    let Some((context, device)) = charge::current() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(address, pitch, width, height, element) };
    };
    let row = width.widen().div_ceil(PITCH_STEP_BYTES).saturating_mul(PITCH_STEP_BYTES);
    let mut reservation =
        match SliceGpu::of(device).and_then(|gpu| gpu.reserve(row.saturating_mul(height.widen()))) {
            Ok(reservation) => reservation,
            Err(status) => return status,
        };
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address, pitch, width, height, element) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: the out-parameter contract for `address` and `pitch`, after success.
    let (key, bytes) = unsafe { ((*address).widen(), (*pitch).widen().saturating_mul(height.widen())) };
    if reservation.resize(bytes).is_err() {
        // SAFETY: the driver has just allocated it, and the program gets an error.
        return unsafe { give_up(key) };
    }
    let (gpu, bytes) = reservation.keep();
    remember(Entry::new(key, context as u64, gpu, bytes))
}

/// Reserves `bytes` on the current device, calls `real`, and remembers the address if that returns success.
#[inline]
fn charged(bytes: u64, real: impl FnOnce() -> Status, address: impl FnOnce() -> u64) -> Status {
    let Some((context, device)) = charge::current() else { return real() };
    let reservation = match SliceGpu::of(device).and_then(|gpu| gpu.reserve(bytes)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        return status;
    }
    let (gpu, bytes) = reservation.keep();
    remember(Entry::new(address(), context as u64, gpu, bytes))
}

/// Enters an allocation that the driver has just made and the program does not know yet. If there is no room for the entry, the
/// allocation is freed again.
fn remember(entry: Entry) -> Status {
    let Some(process) = process() else { return OUT_OF_MEMORY };
    match process.memory.insert(entry) {
        Ok(None) => SUCCESS,
        Ok(Some(gone)) => {
            charge::release(&gone);
            SUCCESS
        }
        Err(_) => {
            // SAFETY: the driver has just allocated it, and the program gets an error.
            let status = unsafe { give_up(entry.key) };
            charge::release(&entry);
            status
        }
    }
}

/// Frees memory that can't be accounted for, and returns the answer for the program.
///
/// # Safety
/// Nobody uses the memory at `address`.
#[cold]
unsafe fn give_up(address: Address) -> Status {
    if let Ok(free) = super::real::cuMemFree_v2.get() {
        // SAFETY: takes an address of the driver's; by this function's condition nobody uses what is freed.
        unsafe { free(address) };
    }
    OUT_OF_MEMORY
}

/// Frees linear memory however it was allocated. Addresses that are not in the table are left to the driver.
pub(super) unsafe fn free<A: Width>(real: unsafe extern "C" fn(A) -> Status, address: A) -> Status {
    let Some(process) = process() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(address) };
    };
    // Removed first: once the driver has freed it, another thread may get the same address.
    let known = process.memory.remove(address.widen());
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address) };
    match known {
        Some(entry) if status == SUCCESS => charge::release(&entry),
        // If another thread has filled the table meanwhile, the memory stays charged: too much is safe, too little is not.
        Some(entry) => drop(process.memory.insert(entry)),
        // Perhaps from a pool.
        None => pool_charge::settle_all(),
    }
    status
}
