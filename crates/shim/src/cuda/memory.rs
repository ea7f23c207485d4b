//! Linear memory: reserve, ask the driver, remember the address. And the way back.

use core::ffi::c_uint;

use super::charge::{self, Place};
use super::{Address, OUT_OF_MEMORY, SUCCESS, pool};
use crate::function::Status;
use crate::process::process;
use crate::table::Entry;

/// What pitches are multiples of, at most: used for the reservation before the driver has told the real pitch.
const PITCH_STEP_BYTES: u64 = 512;

/// The two widths of addresses and sizes in the API.
pub(super) trait Word: Copy {
    fn widen(self) -> u64;
}

impl Word for u64 {
    fn widen(self) -> u64 {
        self
    }
}

impl Word for usize {
    fn widen(self) -> u64 {
        self as u64
    }
}

impl Word for c_uint {
    fn widen(self) -> u64 {
        u64::from(self)
    }
}

pub(super) unsafe fn alloc<A: Word, S: Word>(
    real: unsafe extern "C" fn(*mut A, S) -> Status,
    address: *mut A,
    bytes: S,
) -> Status {
    // SAFETY: the caller's arguments; `address` was written by the driver when it is read.
    unsafe { charged(bytes.widen(), || real(address, bytes), || (*address).widen()) }
}

pub(super) unsafe fn alloc_managed(
    real: unsafe extern "C" fn(*mut Address, usize, c_uint) -> Status,
    address: *mut Address,
    bytes: usize,
    flags: c_uint,
) -> Status {
    // SAFETY: as in `alloc`.
    unsafe { charged(bytes as u64, || real(address, bytes, flags), || *address) }
}

pub(super) unsafe fn alloc_pitch<A: Word, S: Word>(
    real: unsafe extern "C" fn(*mut A, *mut S, S, S, c_uint) -> Status,
    address: *mut A,
    pitch: *mut S,
    width: S,
    height: S,
    element: c_uint,
) -> Status {
    let Some((context, device)) = charge::current() else {
        // SAFETY: the caller's arguments.
        return unsafe { real(address, pitch, width, height, element) };
    };
    let row = width.widen().div_ceil(PITCH_STEP_BYTES).saturating_mul(PITCH_STEP_BYTES);
    let mut reservation =
        match Place::of(device).and_then(|place| place.reserve(row.saturating_mul(height.widen()))) {
            Ok(reservation) => reservation,
            Err(status) => return status,
        };
    // SAFETY: the caller's arguments.
    let status = unsafe { real(address, pitch, width, height, element) };
    if status != SUCCESS {
        return status;
    }
    // SAFETY: both were written by the driver.
    let (key, bytes) = unsafe { ((*address).widen(), (*pitch).widen().saturating_mul(height.widen())) };
    if reservation.resize(bytes).is_err() {
        return give_up(key);
    }
    let (gpu, bytes) = reservation.keep();
    remember(Entry::new(key, context as u64, gpu, bytes))
}

/// Reserves `bytes` on the current device, allocates, and remembers the address.
#[inline]
fn charged(bytes: u64, real: impl FnOnce() -> Status, address: impl FnOnce() -> u64) -> Status {
    let Some((context, device)) = charge::current() else { return real() };
    let reservation = match Place::of(device).and_then(|place| place.reserve(bytes)) {
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

fn remember(entry: Entry) -> Status {
    let Some(process) = process() else { return OUT_OF_MEMORY };
    match process.memory.insert(entry) {
        Ok(None) => SUCCESS,
        Ok(Some(gone)) => {
            charge::release(gone.gpu(), gone.bytes());
            SUCCESS
        }
        Err(_) => {
            let status = give_up(entry.key);
            charge::release(entry.gpu(), entry.bytes());
            status
        }
    }
}

/// Frees what can't be accounted for.
#[cold]
fn give_up(address: Address) -> Status {
    if let Ok(free) = super::real::cuMemFree_v2.get() {
        // SAFETY: just allocated, and nobody has seen it.
        unsafe { free(address) };
    }
    OUT_OF_MEMORY
}

/// Frees linear memory however it was allocated. What is not ours is the driver's to judge.
pub(super) unsafe fn free<A: Word>(real: unsafe extern "C" fn(A) -> Status, address: A) -> Status {
    let Some(process) = process() else {
        // SAFETY: the caller's argument.
        return unsafe { real(address) };
    };
    // Forgotten first: once the driver has freed it, another thread may get the same address.
    let known = process.memory.remove(address.widen());
    // SAFETY: the caller's argument.
    let status = unsafe { real(address) };
    match known {
        Some(entry) if status == SUCCESS => charge::release(entry.gpu(), entry.bytes()),
        // Full can't be: its place has just been left.
        Some(entry) => drop(process.memory.insert(entry)),
        // Perhaps from a pool.
        None => pool::settle_all(),
    }
    status
}
