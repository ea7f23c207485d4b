//! Arrays and mipmapped arrays: how large they are only the driver knows, and only afterwards.
//!
//! The packed size is reserved first; once the array exists the driver tells what it takes, and the reservation follows. If that
//! does not fit, the array goes.

use core::ffi::{c_int, c_uint, c_void};

use super::charge::{self, Place};
use super::memory::Word;
use super::{Context, Device, OUT_OF_MEMORY, SUCCESS, driver};
use crate::function::{Function, Status};
use crate::process::process;
use crate::table::Entry;

/// `CUarray` or `CUmipmappedArray`.
pub(super) type Array = *mut c_void;

/// `CUDA_ARRAY_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(super) struct Descriptor<S> {
    width: S,
    height: S,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`, with sizes of either width.
#[repr(C)]
pub(super) struct Descriptor3d<S> {
    width: S,
    height: S,
    depth: S,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: without memory until some is mapped, and that is charged.
const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Requirements {
    bytes: usize,
    alignment: usize,
    reserved: [c_uint; 4],
}

/// Packed size; 0 if it has no memory of its own.
fn packed_bytes(width: u64, height: u64, depth: u64, format: c_int, channels: c_uint) -> u64 {
    // CUarray_format: 8-bit 1 and 8, 16-bit 2, 9 and half 16, 32-bit 3, 10 and float 32. Others are packed in 16 bytes at most.
    let element = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 16,
    };
    [height, depth, u64::from(channels)]
        .iter()
        .fold(width.saturating_mul(element), |bytes, &factor| bytes.saturating_mul(factor.max(1)))
}

type Create<D> = unsafe extern "C" fn(*mut Array, *const D) -> Status;

pub(super) unsafe fn create<S: Word>(
    real: Create<Descriptor<S>>,
    array: *mut Array,
    descriptor: *const Descriptor<S>,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe {
        let bytes = descriptor
            .as_ref()
            .map_or(0, |d| packed_bytes(d.width.widen(), d.height.widen(), 1, d.format, d.channels));
        created(array, bytes, || real(array, descriptor), &ARRAYS)
    }
}

pub(super) unsafe fn create_3d<S: Word>(
    real: Create<Descriptor3d<S>>,
    array: *mut Array,
    descriptor: *const Descriptor3d<S>,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe { created(array, bytes_3d(descriptor, 1), || real(array, descriptor), &ARRAYS) }
}

pub(super) unsafe fn create_mipmapped(
    real: unsafe extern "C" fn(*mut Array, *const Descriptor3d<usize>, c_uint) -> Status,
    array: *mut Array,
    descriptor: *const Descriptor3d<usize>,
    levels: c_uint,
) -> Status {
    // SAFETY: the caller's arguments.
    unsafe { created(array, bytes_3d(descriptor, levels), || real(array, descriptor, levels), &MIPMAPPED) }
}

/// Packed size of all levels: each further one takes at most half of the one before.
unsafe fn bytes_3d<S: Word>(descriptor: *const Descriptor3d<S>, levels: c_uint) -> u64 {
    // SAFETY: the caller's.
    let Some(d) = (unsafe { descriptor.as_ref() }) else { return 0 };
    if d.flags & WITHOUT_MEMORY != 0 {
        return 0;
    }
    let first = packed_bytes(d.width.widen(), d.height.widen(), d.depth.widen(), d.format, d.channels);
    (0..levels.min(64)).fold(0, |sum: u64, level| sum.saturating_add(first >> level))
}

/// What tells arrays from mipmapped ones.
struct Kind {
    requirements: &'static Function<unsafe extern "C" fn(*mut Requirements, Array, Device) -> Status>,
    destroy: &'static Function<unsafe extern "C" fn(Array) -> Status>,
}

static ARRAYS: Kind =
    Kind { requirements: &driver::cuArrayGetMemoryRequirements, destroy: &super::real::cuArrayDestroy };
static MIPMAPPED: Kind = Kind {
    requirements: &driver::cuMipmappedArrayGetMemoryRequirements,
    destroy: &super::real::cuMipmappedArrayDestroy,
};

unsafe fn created(array: *mut Array, bytes: u64, real: impl FnOnce() -> Status, kind: &Kind) -> Status {
    let place = charge::current().filter(|_| bytes > 0);
    let Some((context, device)) = place else { return real() };
    let mut reservation = match Place::of(device).and_then(|place| place.reserve(bytes)) {
        Ok(reservation) => reservation,
        Err(status) => return status,
    };
    let status = real();
    if status != SUCCESS {
        return status;
    }
    // SAFETY: written by the driver.
    let array = unsafe { *array };
    let fits = required_bytes(array, device, kind).is_none_or(|bytes| reservation.resize(bytes).is_ok());
    if fits && remember(array, context, reservation) {
        return status;
    }
    if let Ok(destroy) = kind.destroy.get() {
        // SAFETY: just created, and nobody has seen it.
        unsafe { destroy(array) };
    }
    OUT_OF_MEMORY
}

/// What an array takes; `None` if the driver (before 11.6) can't tell.
fn required_bytes(array: Array, device: Device, kind: &Kind) -> Option<u64> {
    let mut requirements = Requirements::default();
    // SAFETY: writes to where it is told.
    let status = unsafe { kind.requirements.get().ok()?(&raw mut requirements, array, device) };
    (status == SUCCESS && requirements.bytes > 0).then_some(requirements.bytes as u64)
}

fn remember(array: Array, context: Context, reservation: charge::Reservation) -> bool {
    let Some(process) = process() else { return false };
    let entry = Entry::new(array as u64, context as u64, reservation.gpu(), reservation.bytes());
    let Ok(gone) = process.arrays.insert(entry) else { return false };
    reservation.keep();
    if let Some(gone) = gone {
        charge::release(gone.gpu(), gone.bytes());
    }
    true
}

pub(super) unsafe fn destroy(real: unsafe extern "C" fn(Array) -> Status, array: Array) -> Status {
    // Forgotten first, as linear memory is.
    let known = process().and_then(|process| process.arrays.remove(array as u64));
    // SAFETY: the caller's argument.
    let status = unsafe { real(array) };
    if let Some(entry) = known {
        if status == SUCCESS {
            charge::release(entry.gpu(), entry.bytes());
        } else if let Some(process) = process() {
            // Full can't be: its place has just been left.
            let _ = process.arrays.insert(entry);
        }
    }
    status
}
