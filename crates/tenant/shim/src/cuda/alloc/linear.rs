//! Linear memory: reserves, asks the driver, records the address; and the reverse to free it.

use core::ffi::c_uint;

use cantle_ledger::{GRANULE_BYTES, Uses};

use super::release;
use super::reservation::Reservation;
use super::slab;
use super::slice_gpu::SliceGpu;
use crate::cuda::device;
use crate::cuda::pool::reserved;
use crate::cuda::{Address, Context, OUT_OF_MEMORY, SUCCESS, graph, pool};
use crate::function::Status;
use crate::holdings::SMALL_BYTES;
use crate::process::process;
use crate::table::Entry;

/// Pitches are multiples of this or less: used for the reservation, before the driver has returned the real pitch.
const PITCH_STEP_BYTES: u64 = 512;

/// The two widths of addresses and sizes in the API.
pub(crate) trait Width: Copy {
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

pub(crate) unsafe fn alloc<A: Width, S: Width>(
    real: unsafe extern "C" fn(*mut A, S) -> Status,
    address: *mut A,
    bytes: S,
) -> Status {
    // SAFETY: the call contract, the arguments are passed unchanged. `charged` reads `address` only after success (out-parameter
    // contract).
    unsafe { charged(bytes.widen(), || real(address, bytes), || (*address).widen()) }
}

pub(crate) unsafe fn alloc_managed(
    real: unsafe extern "C" fn(*mut Address, usize, c_uint) -> Status,
    address: *mut Address,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: the call contract; the arguments are passed unchanged.
    let real = || unsafe { real(address, bytes, flags) };
    let Some((context, device)) = device::current() else { return real() };
    let gpu = match SliceGpu::of(device) {
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    if let Err(status) = gpu.reserve_managed(bytes as u64) {
        return status;
    }
    let status = real();
    if status != SUCCESS {
        gpu.release_managed(bytes as u64);
        return status;
    }
    gpu.keep_managed();
    gpu.note_use(Uses::Managed);
    // SAFETY: the out-parameter contract for `address`, after success.
    let address = unsafe { *address };
    remember(Entry::new(address, context as u64, gpu.index, bytes as u64).managed())
}

pub(crate) unsafe fn alloc_pitch<A: Width, S: Width>(
    real: unsafe extern "C" fn(*mut A, *mut S, S, S, c_uint) -> Status,
    address: *mut A,
    pitch: *mut S,
    width: S,
    height: S,
    element: c_uint,
) -> Status {
    let Some((context, device)) = device::current() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(address, pitch, width, height, element) };
    };
    let gpu = match SliceGpu::of(device) {
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    let row = width.widen().div_ceil(PITCH_STEP_BYTES).saturating_mul(PITCH_STEP_BYTES);
    let reservation = match gpu.reserve(takes(row.saturating_mul(height.widen()))) {
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
    keep(gpu, context, key, bytes, reservation)
}

/// Reserves `bytes` on the current device, calls `real`, and remembers the address if that returns success.
#[inline]
fn charged(bytes: u64, real: impl FnOnce() -> Status, address: impl FnOnce() -> u64) -> Status {
    let Some((context, device)) = device::current() else { return real() };
    let gpu = match SliceGpu::of(device) {
        Ok(gpu) => gpu,
        Err(status) => return status,
    };
    let reservation = match gpu.reserve(takes(bytes)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    let status = real();
    if status == SUCCESS { keep(gpu, context, address(), bytes, reservation) } else { status }
}

/// The most memory that an allocation of `bytes` takes: a small one, a slab.
const fn takes(bytes: u64) -> u64 {
    if bytes <= SMALL_BYTES { GRANULE_BYTES } else { bytes }
}

/// Charges an allocation that the driver has just made, with the reservation for it, and remembers it.
#[inline]
fn keep(
    gpu: SliceGpu,
    context: Context,
    address: Address,
    bytes: u64,
    mut reservation: Reservation,
) -> Status {
    let is_charged = reservation.resize(takes(bytes)).is_ok()
        && if bytes <= SMALL_BYTES {
            slab::enter(gpu, address, reservation)
        } else {
            reservation.keep();
            true
        };
    if !is_charged {
        // SAFETY: the driver has just allocated it, and the program gets an error.
        return unsafe { give_up(address) };
    }
    remember(Entry::new(address, context as u64, gpu.index, bytes))
}

/// Enters an allocation that the driver has just made and the program does not know yet. If there is no room for the entry, the
/// allocation is freed again.
fn remember(entry: Entry) -> Status {
    let Some(process) = process() else { return OUT_OF_MEMORY };
    match process.memory.insert(entry) {
        Ok(None) => SUCCESS,
        Ok(Some(gone)) => {
            release::linear(&gone);
            SUCCESS
        }
        Err(_) => {
            // SAFETY: the driver has just allocated it, and the program gets an error.
            let status = unsafe { give_up(entry.key) };
            release::linear(&entry);
            status
        }
    }
}

/// Frees memory that cannot be accounted for, and returns the answer for the program.
///
/// # Safety
/// No code uses the memory at `address`.
#[cold]
unsafe fn give_up(address: Address) -> Status {
    if let Ok(free) = crate::cuda::real::cuMemFree_v2.get() {
        // SAFETY: takes an address of the driver's; by this function's condition no code uses the memory that is freed.
        unsafe { free(address) };
    }
    OUT_OF_MEMORY
}

/// Frees linear memory however it was allocated. Addresses that are not in the table are left to the driver.
pub(crate) unsafe fn free<A: Width>(real: unsafe extern "C" fn(A) -> Status, address: A) -> Status {
    let Some(process) = process() else {
        // SAFETY: the call contract; the arguments are passed unchanged.
        return unsafe { real(address) };
    };
    // Removed first: once the driver has freed it, another thread may get the same address.
    let known = process.memory.remove(address.widen());
    let left = graph::is_no_longer_left(address.widen());
    // SAFETY: the call contract; the arguments are passed unchanged.
    let status = unsafe { real(address) };
    if let Some(left) = left.filter(|_| status != SUCCESS) {
        graph::is_left(&left);
    }
    match known {
        Some(entry) if status == SUCCESS => release::linear(&entry),
        // If another thread has filled the table meanwhile, the memory stays charged: too much is safe, too little is not.
        Some(entry) => drop(process.memory.insert(entry)),
        // Perhaps from a pool.
        None => {
            pool::note_any_free();
            reserved::settle_all();
        }
    }
    status
}
